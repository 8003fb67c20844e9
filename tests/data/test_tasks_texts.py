"""TaskData: texts too long for a model, other tokenizers, masked models."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.task_data import examples_of, load, naive, scores, sets, spec, sst2, trained
from zobench.data.tasks.encode import Encoder
from zobench.data.tasks.task import Example


def test_a_text_too_long_is_named_with_its_remedy(tmp_path: Path, tokenizer: Any) -> None:
    folder = sst2(tmp_path, 12, 5)
    source = sets("sst2", folder)[1]
    first = source.examples[int(np.random.RandomState(0).permutation(5)[0])]
    count = len(tokenizer(first.prompt + " great")["input_ids"])
    run = spec("sst2", train_size=5, dev_size=2)
    for changes, positions, limit in (({"seq_len": 10}, 512, 10), ({}, 12, 12)):
        encoder = run.replace(**changes)
        with pytest.raises(ValueError, match="use truncate=true to cut its prompt from the left") as error:
            load(encoder, tokenizer, folder, positions)
        message = (
            f"a text must have at most {limit} tokens (seq_len={encoder.seq_len}, the model's positions {positions})"
        )
        assert message in str(error.value)
        number = int(np.random.RandomState(0).permutation(12)[0]) + 2  # the header is a line
        assert str(error.value).startswith(f"train text, {folder}/train.tsv:{number}: ")
    with pytest.raises(ValueError, match=r"; use seq_len=\d+, which the longest needs, or use truncate") as error:
        load(run.replace(seq_len=10), tokenizer, folder)
    needed = int(str(error.value).partition("use seq_len=")[2].partition(",")[0])
    train = load(run.replace(seq_len=10, truncate=True), tokenizer, folder).splits["train"]
    assert needed == max(item.length for item in train)
    data = load(run.replace(seq_len=10, truncate=True), tokenizer, folder)
    assert data.facts["truncated"] == {"train": 5, "dev": 2, "test": 5}
    kept, whole = data.splits["test"][0].rows[0], tokenizer(first.prompt)["input_ids"]
    assert kept == (whole[0], *whole[-8:])  # with its one candidate token: ten
    assert data.splits["test"][0].length == count


@torch.inference_mode()
def test_truncated_candidates_of_several_tokens_score_as_their_cut_texts(tmp_path: Path, model: Any) -> None:
    """MeZO: the text's first token and its last seq_len - 1."""
    tokenizer = trained(words=())
    folder = sst2(tmp_path, 12, 5)
    data = load(spec("sst2", train_size=5, dev_size=2, seq_len=14, truncate=True), tokenizer, folder)
    batch = data.batch(data.groups("test")[0])
    source = sets("sst2", folder)[1]
    examples = [source.examples[number] for number in np.random.RandomState(0).permutation(5)]
    expected = torch.tensor([naive(model, tokenizer, example, 14) for example in examples], dtype=torch.float64)
    torch.testing.assert_close(scores(model, batch), expected.flatten(), atol=1e-9, rtol=0)


def encoder(tokenizer: Any, limit: int = 64, truncate: bool = False, masked: bool = False) -> Encoder:
    return Encoder(tokenizer=tokenizer, masked=masked, limit=limit, limit_text="here", truncate=truncate)


def test_a_candidate_needs_a_token_before_it() -> None:
    begins, plain = trained(words=()), trained("$A", words=())
    empty = Example("", ("abc", "d"), 0)
    assert encoder(begins).encode([empty], ["x"])[0].candidates[1] == ((1, 0, begins("d")["input_ids"][1]),)
    with pytest.raises(ValueError, match=r"x: a candidate must follow at least one token of 64, but got one of \d+"):
        encoder(plain).encode([empty], ["x"])
    long = Example("ab", (" wxyzwxyz",), 0)
    count = len(plain(" wxyzwxyz")["input_ids"])
    with pytest.raises(ValueError, match=rf"at least one token of {count}, but got one of {count} tokens after none"):
        encoder(plain, limit=count, truncate=True).encode([long], ["x"])
    assert len(encoder(plain, limit=count + 1, truncate=True).encode([long], ["x"])[0].rows[0]) == count


def test_a_candidate_of_no_tokens_is_one_line() -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({"<pad>": 0, "good": 1}, unk_token="<pad>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()  # which a line's end is none of
    tokenizer = encoder(PreTrainedTokenizerFast(tokenizer_object=words))
    message = r"^x: a candidate must add a token to its prompt, but .* none of .*; give each"
    with pytest.raises(ValueError, match=message):
        tokenizer.encode([Example("good", (" \n",), 0)], ["x"])


def test_special_tokens_are_the_tokenizers_and_none_ends_a_row() -> None:
    example = Example("the film", (" great", " terrible"), 1)
    for template, front in (("</s> $A", (2,)), ("<s> $A </s>", (0,)), ("$A", ()), ("$A </s>", ())):
        tokenizer = trained(template)
        body = tuple(tokenizer("the film", add_special_tokens=False)["input_ids"])
        encoded = encoder(tokenizer).encode([example], ["x"])[0]
        assert encoded.rows == ((*front, *body),)
        words = [tokenizer(word, add_special_tokens=False)["input_ids"][0] for word in example.candidates]
        assert encoded.candidates == tuple(((0, len(front + body) - 1, word),) for word in words)


@pytest.mark.parametrize("name", ["sst2", "rte"])
def test_masked_texts_are_padded_on_the_right_and_scored_at_the_mask(tmp_path: Path, name: str) -> None:
    tokenizer = trained("<s> $A </s>")
    folder = sst2(tmp_path, 12, 5)
    row = {"premise": "It rained.", "hypothesis": "The street is wet.", "label": "not_entailment"}
    for file, count in (("train", 12), ("val", 5)):
        (folder / f"{file}.jsonl").write_text((json.dumps(row) + "\n") * count)
    data = load(spec(name, train_size=5, dev_size=2), tokenizer, folder, masked=True)
    batch = data.batch(data.groups("test")[0])
    assert batch.choices is not None
    words = {"sst2": (" terrible", " great"), "rte": (" Yes", " No")}[name]
    texts = examples_of(batch)
    if name == "rte":
        assert tokenizer.decode(texts[0]) == "<s>It rained?<mask>, the street is wet.</s>"
        answers = [1] * 5
    else:
        lines = (folder / "dev.tsv").read_text().splitlines()[1:]
        order = np.random.RandomState(0).permutation(5)
        expected = [f"<s>{lines[i].split(chr(9))[0].strip()} It was<mask>.</s>" for i in order]
        assert [tokenizer.decode(text) for text in texts] == expected
        answers = [int(lines[i].split("\t")[1]) for i in order]
    assert batch.choices.answers.tolist() == [2 * i + answer for i, answer in enumerate(answers)]
    assert (batch.input_ids[batch.choices.places[:, 0], batch.choices.places[:, 1]] == tokenizer.mask_token_id).all()
    ids = [tokenizer(word, add_special_tokens=False)["input_ids"][0] for word in words]
    assert batch.choices.tokens.tolist() == ids * 5
    assert (batch.input_ids[:, 0] == 0).all()
    mask = batch.attention_mask
    assert torch.equal(mask.sort(dim=1, descending=True).values, mask)


def test_what_a_masked_model_needs(tmp_path: Path) -> None:
    folder = sst2(tmp_path, 12, 5)
    run = spec("sst2", train_size=5, dev_size=2)
    with pytest.raises(ValueError, match=r"a label word must be one token, but got [2-9] for ' terrible'"):
        load(run, trained("<s> $A </s>", words=()), folder, masked=True)
    causal = trained()
    causal.mask_token = None
    with pytest.raises(ValueError, match="needs a tokenizer with a mask token, but got none; use a causal model"):
        load(run, causal, folder, masked=True)
    with pytest.raises(ValueError, match="but got cb; use a causal model"):
        load(spec("cb"), trained(), folder, masked=True)
