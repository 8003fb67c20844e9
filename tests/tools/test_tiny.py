"""The small pretrained OPT: its tokenizer, batches and loss against plain ones, what it writes, and what it refuses."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.support.files import written
from tools import tiny
from zobench import models
from zobench.data.tasks.task import Example
from zobench.machine import texts

SENTENCES = [
    (f"{start} {adjective} {noun} {end}", int(adjective in ("warm", "sharp", "lovely")))
    for start in ("a", "this is a truly")
    for adjective in ("warm", "sharp", "lovely", "dull", "stale", "flat")
    for noun in ("film", "cast", "story")
    for end in ("", "from the director of the last one , again")
]
SHORT = tiny.Recipe(epochs=5, tokens=128, warmup=4, lr=1e-2)


def _examples() -> list[Example]:
    return [Example(text.strip(), (" It was bad", " It was good"), label) for text, label in SENTENCES]


@pytest.fixture(scope="module")
def tokenizer():
    return tiny.train_tokenizer(_examples())


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    for name in ("train.tsv", "dev.tsv"):
        rows = "".join(f"{text}\t{label}\n" for text, label in SENTENCES)
        written(tmp_path / "data" / "SST-2" / name, f"sentence\tlabel\n{rows}")
    return tmp_path / "data"


@pytest.mark.parametrize("tokens", [1, 40])
def test_batches_hold_every_row_once_and_no_more_tokens_than_asked(tokens):
    generator = np.random.default_rng(3)
    rows = [[number, *range(int(generator.integers(1, 30)))] for number in range(200)]
    batches = list(tiny.batches(rows, tokens, np.random.default_rng(5)))
    assert sorted([x for x in row.tolist() if x != -100] for batch in batches for row in batch) == sorted(rows)
    for batch in batches:
        assert batch.numel() <= tokens or len(batch) == 1
        inside = batch != -100
        assert torch.equal(inside, inside.cummin(dim=1).values), "padding is on the right"
    again = tiny.batches(rows, tokens, np.random.default_rng(5))
    assert all(torch.equal(first_batch, other) for first_batch, other in zip(batches, again, strict=True))


def test_the_loss_is_that_of_each_row_by_itself():
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(models.build_config(tiny.MODEL)).eval()
    rows = [torch.randint(4, 2048, (n,)) for n in (3, 9, 17)]
    batch = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-100)
    weights = torch.ones(2048)
    weights[rows[1][4]] = 7.0
    with torch.no_grad():
        total = counted = 0.0
        for row in rows:
            predicted = model(input_ids=row[None]).logits[0].log_softmax(-1)
            for place, token in enumerate(row[1:].tolist()):
                total -= float(weights[token] * predicted[place, token])
                counted += float(weights[token])
        assert counted >= 26 + 6
        assert float(tiny.loss_of(model, batch, weights)) == pytest.approx(total / counted, rel=1e-6)


def test_pretraining_learns_and_repeats_bit_for_bit(tokenizer):
    examples, losses = _examples(), []
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    model, last = tiny.pretrain(examples, tokenizer, SHORT, lambda now: losses.append(now.loss))
    assert torch.equal(before, torch.random.get_rng_state()), "the caller's generator is untouched"
    torch.manual_seed(2)
    other, _ = tiny.pretrain(examples, tokenizer, SHORT, lambda now: None)
    assert last.step == last.steps == len(losses)
    assert losses[-1] == last.loss
    rows = tiny.epoch(examples, tokenizer, SHORT, np.random.default_rng(1))
    assert all(tiny.loss_of(model, batch, torch.ones(2048)).item() < 0.7 * losses[0] for batch in rows)
    for (name, value), (_, again) in zip(model.named_parameters(), other.named_parameters(), strict=True):
        assert torch.equal(value, again), name


def test_the_folder_is_a_hugging_face_checkpoint(data_dir, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(texts, "REPORT_EVERY", 0.001)
    tiny.make(tmp_path / "out", data_dir, SHORT)
    message = " ".join(capsys.readouterr().err.split())
    assert f"opt-mini: {models.parameter_count(tiny.MODEL)} parameters" in message
    assert re.match("opt-mini: reading and encoding SST-2 for 0 s .*step 1 of ", message)
    assert "loss " in message
    assert " s; saved in " in message
    words = AutoTokenizer.from_pretrained(tmp_path / "out")
    trained = tiny.train_tokenizer(tiny.sentences(data_dir))
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    expected, _ = tiny.pretrain(tiny.sentences(data_dir), trained, SHORT, lambda now: None)
    for text, _ in SENTENCES:
        assert words(text)["input_ids"] == trained(text)["input_ids"]
    assert model.lm_head.weight is model.model.decoder.embed_tokens.weight
    for (name, value), (_, again) in zip(model.named_parameters(), expected.named_parameters(), strict=True):
        assert torch.equal(value, again), name
