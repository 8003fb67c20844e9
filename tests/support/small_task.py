"""A task of forty sentences, a word-level tokenizer for them, and the weights of a tiny model, all made here."""

import itertools
from pathlib import Path
from typing import Any

import pytest

from zobench import models
from zobench.models.weights import RandomWeights, materialise
from zobench.runspec import RunSpec

GOOD, BAD = ("fine", "warm", "bright", "lovely", "sharp"), ("dull", "cold", "dreary", "stale", "flat")
NOUNS = ("film", "plot", "cast", "score")
WORDS = ("<unk>", "<pad>", "</s>", "a", "It", "was", "terrible", "great", *GOOD, *BAD, *NOUNS)


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SST-2's files: 40 sentences to train on, 16 to test with."""
    return write_data(tmp_path_factory.mktemp("data"))


def write_data(parent: Path) -> Path:
    """The files of :func:`data_dir`, into a new folder of ``parent``, which it returns."""
    folder = parent / "SST-2"
    folder.mkdir()
    rows = [
        f"a {word} {noun}\t{int(word in GOOD)}"
        for noun in NOUNS
        for word in itertools.chain(*zip(GOOD, BAD, strict=True))
    ]
    (folder / "train.tsv").write_text("\n".join(["sentence\tlabel", *rows]) + "\n")
    (folder / "dev.tsv").write_text("\n".join(["sentence\tlabel", *rows[:16]]) + "\n")
    return parent


@pytest.fixture(scope="session")
def weights_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face folder: opt-tiny's weights and a tokenizer that begins every text with id 2, as OPT's does."""
    return write_weights(tmp_path_factory.mktemp("weights"))


def write_weights(folder: Path) -> Path:
    """The files of :func:`weights_path`, into ``folder``, which it returns."""
    from tokenizers import Tokenizer, pre_tokenizers, processors
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    model = models.build("opt-tiny", "fp32")
    materialise(model, RandomWeights(model, 0), "cpu")
    model.save_pretrained(folder)
    words = Tokenizer(WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.post_processor = processors.TemplateProcessing(single="</s> $A", special_tokens=[("</s>", 2)])
    PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token="<unk>", pad_token="<pad>", bos_token="</s>", eos_token="</s>"
    ).save_pretrained(folder)
    return folder


@pytest.fixture
def spec(weights_path: Path) -> Any:
    """Makes the spec of a short run on the CPU, with changes."""

    def make(**changes: Any) -> RunSpec:
        return spec_of(weights_path, **changes)

    return make


def spec_of(weights: Path, **changes: Any) -> RunSpec:
    """A short run on the CPU of the model in ``weights``, with changes."""
    values = {
        "model": "opt-tiny", "weights": "pretrained", "weights_path": str(weights), "task": "sst2", "seq_len": 16,
        "batch_size": 4, "steps": 10, "eval_every": 4, "lr": 1e-3, "train_size": 24, "dev_size": 12, "test_size": 16,
    }  # fmt: skip
    return RunSpec(**{**values, **changes}).resolve("cpu")
