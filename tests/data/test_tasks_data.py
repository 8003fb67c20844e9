"""TaskData: encoding and batches of tasks, against an unbatched reference with a random OPT."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from zobench.data.batch import IGNORED, Batch
from zobench.data.tasks.encode import Encoded, Encoder, collate
from zobench.data.tasks.prompts import form_of
from zobench.data.tasks.read import read
from zobench.data.tasks.task import Example
from zobench.data.tasks.task_data import TaskData
from zobench.runspec import RunSpec
from zobench.runspec.registries import TASKS

POSITIONS = 512
WITH_LABELS = [task.name for task in TASKS.own() if task.names]
SENTENCES = [
    f"the {noun} is {very}{adjective} , and it was {other} ."
    for noun in ("film", "plot", "acting", "story", "music", "ending", "hero")
    for very in ("", "very ", "rarely ")
    for adjective, other in (("good", "great"), ("bad", "dreadful"), ("slow", "too long"), ("fresh", "short"))
]


def trained(
    template: str = "</s> $A", words: Sequence[str] = (" great", " terrible", "Yes", "No", " Yes", " No")
) -> Any:
    """A byte-level BPE tokenizer of 500 tokens; ``words`` are one token each; ``template`` adds special tokens."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    specials = ["<s>", "<pad>", "</s>", "<mask>"]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=500, special_tokens=specials, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([*SENTENCES, *(word for word in words for _ in range(2000))], trainer)
    used = [(token, specials.index(token)) for token in specials if token in template]
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True)])  # as RoBERTa's: it takes the space before it
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(single=template, special_tokens=used)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>", mask_token="<mask>"
    )


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return trained()


@pytest.fixture(scope="module")
def model(tokenizer: Any) -> Any:
    from transformers import OPTConfig, OPTForCausalLM

    torch.manual_seed(0)
    config = OPTConfig(
        vocab_size=len(tokenizer), hidden_size=32, ffn_dim=64, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=4096, word_embed_proj_dim=32, pad_token_id=1, init_std=0.5,
    )  # fmt: skip
    return OPTForCausalLM(config).double().eval()


def spec(task: str, **changes: Any) -> RunSpec:
    return RunSpec(model="opt-tiny", task=task, batch_size=3).replace(**changes)


def load(run: RunSpec, tokenizer: Any, folder: Path, positions: int = 4096, masked: bool = False) -> TaskData:
    return TaskData.load(run, tokenizer, positions=positions, masked=masked, data_dir=folder)


def sst2(folder: Path, train: int, validation: int) -> Path:
    """An SST-2 folder of that many sentences of different lengths, every third one negative."""
    pool = SENTENCES * (max(train, validation) // len(SENTENCES) + 1)
    for name, count in (("train", train), ("dev", validation)):
        rows = [f"{pool[i]}{' so' * (i % 7)} {i}\t{int(i % 3 > 0)}\n" for i in range(count)]
        (folder / f"{name}.tsv").write_text("sentence\tlabel\n" + "".join(rows), encoding="utf-8")
    return folder


def scores(model: Any, batch: Batch) -> Tensor:
    """Scores (c,) as :class:`Choices` defines them, from full logits, in float64."""
    assert batch.choices is not None
    logits = model(input_ids=batch.input_ids, attention_mask=batch.attention_mask).logits
    found = logits.log_softmax(-1)[batch.choices.places[:, 0], batch.choices.places[:, 1]]
    picked = found[torch.arange(len(found)), batch.choices.tokens]
    return torch.stack([picked[batch.choices.owners == c].mean() for c in range(len(batch.choices.groups))])


def naive(model: Any, tokenizer: Any, example: Example) -> list[float]:
    """Each candidate alone, unpadded: the mean log-probability of the tokens that it adds to its prompt."""
    found = []
    for candidate in example.candidates:
        ids = tokenizer(example.prompt + candidate)["input_ids"]
        count = len(ids) - len(tokenizer(example.prompt)["input_ids"])
        logs = model(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)
        own = [logs[place - 1, ids[place]] for place in range(len(ids) - count, len(ids))]
        found.append(float(torch.stack(own).mean()))
    return found


# --- scores against the unbatched reference ------------------------------------------------------------------------


@torch.inference_mode()
@pytest.mark.parametrize("name", WITH_LABELS)
def test_scores_of_a_batch_equal_those_of_each_candidate_alone(
    real_data: Path, name: str, tokenizer: Any, model: Any
) -> None:
    run = spec(name, batch_size=4, train_size=7, dev_size=2, test_size=4)
    data = load(run, tokenizer, real_data)
    source = read(TASKS.get(name), form_of(TASKS.get(name), aligned=True, masked=False), real_data)[1]
    order = np.random.RandomState(0).permutation(len(source.examples))[:4]
    expected = [naive(model, tokenizer, source.examples[i]) for i in order]
    batches = data.batches("test")
    assert len(batches) == 1
    batch = batches[0]
    found = scores(model, batch)
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64).flatten(), atol=1e-9, rtol=0)
    assert batch.choices is not None
    offsets = [sum(len(source.examples[i].candidates) for i in order[:k]) for k in range(4)]
    assert batch.choices.answers.tolist() == [
        o + source.examples[i].answer for o, i in zip(offsets, order, strict=True)
    ]
    per_example = 1 if set(TASKS.get(name).names) <= {"terrible", "great", "Yes", "No"} else len(TASKS.get(name).names)
    per_example = 2 if name == "cb" else per_example  # Yes and No share a row, Maybe has several tokens
    assert batch.input_ids.shape[0] == 4 * per_example
    assert batch.choices.loss == ("lm" if name in ("copa", "winogrande") else "choice")


@torch.inference_mode()
def test_shared_and_separate_rows_score_alike(tmp_path: Path, tokenizer: Any, model: Any) -> None:
    """One-token words share a row; the same task with words of several tokens gets a row each."""
    folder = sst2(tmp_path, 12, 5)
    for words, rows in (((" great", " terrible"), 5), ((), 10)):
        one = trained(words=words)
        batch = load(spec("sst2", train_size=5, dev_size=2, batch_size=8), one, folder).batches("test")[0]
        assert batch.input_ids.shape[0] == rows
        source = read(TASKS.get("sst2"), form_of(TASKS.get("sst2"), aligned=True, masked=False), folder)[1]
        order = np.random.RandomState(0).permutation(5)
        expected = [naive(model, one, source.examples[i]) for i in order]
        torch.testing.assert_close(
            scores(model, batch), torch.tensor(expected, dtype=torch.float64).flatten(), atol=1e-9, rtol=0
        )


# --- batches --------------------------------------------------------------------------------------------------------


def examples_of(batch: Batch) -> list[tuple[int, ...]]:
    """The unpadded rows of a batch whose examples have one row each."""
    assert batch.attention_mask is not None
    return [tuple(row[keep.bool()].tolist()) for row, keep in zip(batch.input_ids, batch.attention_mask, strict=True)]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    count=st.integers(1, 23), size=st.integers(1, 30), seed=st.integers(0, 3), epoch=st.integers(0, 2),
    grouped=st.booleans(),
)  # fmt: skip
def test_every_example_comes_once_per_epoch(count: int, size: int, seed: int, epoch: int, grouped: bool) -> None:
    run = spec("sst2", batch_size=size, seed=seed, length_grouping=grouped)
    items = [Encoded(((5, *range(100, 100 + i % 9), i),), (((0, 0, 7),), ((0, 0, 8),)), 0, i % 9 + 2, False) for i in
             range(count)]  # fmt: skip
    data = TaskData(spec=run, splits={"train": items}, facts={}, pad=1, masked=False, positions=64)
    steps = max(1, count // size)
    batches = [data.train_batch(epoch * steps + i) for i in range(steps)]
    seen = [row for batch in batches for row in examples_of(batch)]
    assert all(batch.input_ids.shape[0] == min(size, count) for batch in batches)
    assert len(set(seen)) == len(seen) == steps * min(size, count)
    assert set(seen) <= {item.rows[0] for item in items}
    if not grouped:
        order = np.random.default_rng((seed, epoch)).permutation(count)
        assert seen == [items[i].rows[0] for i in order[: len(seen)]]
    again = TaskData(spec=run, splits={"train": items}, facts={}, pad=1, masked=False, positions=64)
    assert torch.equal(again.train_batch(epoch * steps).input_ids, batches[0].input_ids)


def test_epochs_and_seeds_differ_and_grouping_saves_padding(tmp_path: Path, tokenizer: Any) -> None:
    folder = sst2(tmp_path, 300, 40)
    run = spec("sst2", batch_size=10, train_size=200, dev_size=50)
    plain, grouped = load(run, tokenizer, folder), load(run.replace(length_grouping=True), tokenizer, folder)
    epochs = [[data.train_batch(i + shift) for i in range(20)] for data in (plain, grouped) for shift in (0, 20)]
    rows = [[row for batch in epoch for row in examples_of(batch)] for epoch in epochs]
    assert len({tuple(found) for found in rows}) == 4
    assert len({tuple(sorted(found)) for found in rows}) == 1
    other = load(run.replace(seed=1), tokenizer, folder)
    assert examples_of(other.train_batch(0)) != examples_of(plain.train_batch(0))
    padding = [sum(int((batch.attention_mask == 0).sum()) for batch in epoch) for epoch in epochs]  # type: ignore[union-attr]
    assert max(padding[2:]) < min(padding[:2])
    lengths = [batch.input_ids.shape[1] for batch in epochs[2]]
    assert lengths != sorted(lengths)  # batches of like length come in no order


@settings(max_examples=40, deadline=None)
@given(
    shapes=st.lists(
        st.lists(st.tuples(st.integers(1, 20), st.integers(1, 3)), min_size=2, max_size=3), min_size=1, max_size=5
    ),
    left=st.booleans(),
    widest=st.integers(22, 40),
)
def test_places_point_at_what_precedes_each_token(shapes: list[list[tuple[int, int]]], left: bool, widest: int) -> None:
    """Rows are numbered through, so that the token at a place says where it is."""
    counter = iter(range(10, 10**6))
    items = []
    for shape in shapes:
        rows = [tuple(next(counter) for _ in range(prompt + tokens - 1)) for prompt, tokens in shape]
        places = [
            tuple((i, prompt - 1 + k, 10**6 + rows[i][prompt - 1 + k]) for k in range(tokens))
            for i, (prompt, tokens) in enumerate(shape)
        ]
        items.append(Encoded(tuple(rows), tuple(places), len(shape) - 1, 0, False))
    batch = collate(items, pad=1, left=left, widest=widest, loss="lm")
    choices, mask = batch.choices, batch.attention_mask
    assert choices is not None
    assert mask is not None
    width = batch.input_ids.shape[1]
    assert width == max(len(row) for item in items for row in item.rows) or width % 8 == 0 or width == widest
    assert width <= widest
    assert (batch.input_ids[mask == 0] == 1).all()
    assert (batch.labels == IGNORED).all()
    ordered = mask if left else mask.flip(1)
    assert torch.equal(ordered.sort(dim=1).values, ordered)
    assert examples_of(batch) == [row for item in items for row in item.rows]
    assert torch.equal(batch.input_ids[choices.places[:, 0], choices.places[:, 1]] + 10**6, choices.tokens)
    sizes = [(len(tokens), example) for example, item in enumerate(items) for tokens in item.candidates]
    assert choices.owners.tolist() == [c for c, (count, _) in enumerate(sizes) for _ in range(count)]
    assert choices.groups.tolist() == [example for _, example in sizes]
    ends = np.cumsum([len(shape) for shape in shapes])
    assert choices.answers.tolist() == (ends - 1).tolist()
    assert choices.loss == "lm"


def test_widths_are_multiples_of_eight_or_the_positions() -> None:
    item = Encoded(((9,) * 13,), (((0, 12, 1),),), 0, 14, False)
    for widest, width in ((100, 16), (16, 16), (15, 15), (13, 13)):
        assert collate([item], pad=1, left=True, widest=widest, loss="choice").input_ids.shape == (1, width)


def test_evaluation_covers_a_split_once_in_order_and_bounded(tmp_path: Path, tokenizer: Any) -> None:
    run = spec("sst2", batch_size=4, train_size=20, dev_size=13)
    data = load(run, tokenizer, sst2(tmp_path, 60, 21))
    batches = data.batches("dev")
    assert [batch.input_ids.shape[0] for batch in batches] == [8, 5]
    assert [row for batch in batches for row in examples_of(batch)] == [item.rows[0] for item in data.splits["dev"]]
    grouped = load(run.replace(length_grouping=True), tokenizer, tmp_path).batches("dev")
    assert sorted(row for batch in grouped for row in examples_of(batch)) == sorted(
        item.rows[0] for item in data.splits["dev"]
    )
    assert all(batch.choices is not None and batch.choices.loss == "choice" for batch in batches)


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=3), min_size=1, max_size=40),
    size=st.integers(1, 12), train=st.integers(1, 60),
)  # fmt: skip
def test_an_evaluation_batch_is_as_large_as_a_step_or_has_a_floor_of_rows_within_its_tokens(
    lengths: list[list[int]], size: int, train: int
) -> None:
    items = [
        Encoded(tuple((i,) * n for n in own), (((0, 0, 7),),), 0, max(own), False) for i, own in enumerate(lengths)
    ]
    trained_on = [Encoded(((1,) * train,), (((0, 0, 7),),), 0, train, False)]
    data = TaskData(
        spec=spec("sst2", batch_size=size), splits={"train": trained_on, "dev": items}, facts={}, pad=1, masked=False,
        positions=64,
    )  # fmt: skip
    parts = [sorted(set(batch.input_ids[:, -1].tolist())) for batch in data.batches("dev")]
    assert [i for part in parts for i in part] == list(range(len(items)))  # each example whole, in order

    def fits(part: list[int]) -> bool:
        rows = [n for i in part for n in lengths[i]]
        return len(rows) <= 2 * size or (len(rows) <= 16 and len(rows) * max(rows) <= 2 * size * train)

    assert all(fits(part) or len(part) == 1 for part in parts)
    assert not any(fits([*part, after[0]]) for part, after in itertools.pairwise(parts))  # and no smaller than that


@pytest.mark.parametrize("name", ["copa", "winogrande"])
@torch.inference_mode()
def test_the_loss_of_a_candidates_tokens_trains_on_the_right_candidates_rows(
    real_data: Path, name: str, tokenizer: Any, model: Any
) -> None:
    data = load(spec(name, batch_size=5, train_size=7, dev_size=2, test_size=4), tokenizer, real_data)
    source = read(TASKS.get(name), form_of(TASKS.get(name), aligned=True, masked=False), real_data)[0]
    numbers = np.random.RandomState(0).permutation(len(source.examples))[:7]
    drawn = [source.examples[i] for i in numbers[np.random.default_rng((0, 0)).permutation(7)[:5]]]
    batch = data.train_batch(0)
    assert batch.choices is not None
    assert batch.input_ids.shape[0] == 5
    assert batch.choices.answers.tolist() == [0, 1, 2, 3, 4]
    expected = [naive(model, tokenizer, example)[example.answer] for example in drawn]
    torch.testing.assert_close(scores(model, batch), torch.tensor(expected, dtype=torch.float64), atol=1e-9, rtol=0)


def test_facts_say_where_the_numbers_come_from(tmp_path: Path, tokenizer: Any) -> None:
    folder = sst2(tmp_path, 60, 21)
    data = load(spec("sst2", train_size=30, dev_size=20), tokenizer, folder)
    facts = json.loads(json.dumps(data.facts))
    assert facts == data.facts
    assert facts["sources"] == {"train": f"{folder.name}/train.tsv", "test": f"{folder.name}/dev.tsv"}
    assert facts["available"] == {"train": 60, "test": 21}
    assert facts["counts"] == {"train": 30, "dev": 20, "test": 21}
    assert facts["labels"]["test"] == {"terrible": 7, "great": 14}
    assert facts["candidates"] == ["terrible", "great"]
    assert facts["truncated"] == {"train": 0, "dev": 0, "test": 0}
    assert facts["notes"] == ["test has 21 examples, not 1000: there are no more"]
    longest = max(
        len(tokenizer(f"{line.split(chr(9))[0]} It was great")["input_ids"])
        for name in ("train", "dev") for line in (folder / f"{name}.tsv").read_text().splitlines()[1:]
    )  # fmt: skip
    assert facts["longest"] <= longest
    assert facts["longest"] == max(item.length for items in data.splits.values() for item in items)
    assert data.majority("test") == 14 / 21


# --- long texts, other tokenizers, masked models --------------------------------------------------------------------


def test_a_text_too_long_is_named_with_its_remedy(tmp_path: Path, tokenizer: Any) -> None:
    folder = sst2(tmp_path, 12, 5)
    source = read(TASKS.get("sst2"), form_of(TASKS.get("sst2"), aligned=True, masked=False), folder)[1]
    first = source.examples[int(np.random.RandomState(0).permutation(5)[0])]
    count = len(tokenizer(first.prompt + " great")["input_ids"])
    run = spec("sst2", train_size=5, dev_size=2)
    for changes, positions, limit in (({"seq_len": 10}, 512, 10), ({}, 12, 12)):
        encoder = run.replace(**changes)
        with pytest.raises(ValueError, match="use truncate=true to cut its prompt from the left") as error:
            load(encoder, tokenizer, folder, positions)
        told = f"a text must have at most {limit} tokens (seq_len={encoder.seq_len}, the model's positions {positions})"
        assert told in str(error.value)
        number = int(np.random.RandomState(0).permutation(12)[0]) + 1
        assert str(error.value).startswith(f"train text, example {number} of {folder}/train.tsv: ")
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
    fits = load(run.replace(seq_len=data.facts["longest"]), tokenizer, folder)
    assert fits.facts["truncated"] == {"train": 0, "dev": 0, "test": 0}


@torch.inference_mode()
def test_truncated_candidates_of_several_tokens_score_as_their_cut_texts(tmp_path: Path, model: Any) -> None:
    """MeZO: the text's first token and its last seq_len - 1."""
    one = trained(words=())
    folder = sst2(tmp_path, 12, 5)
    batch = load(spec("sst2", train_size=5, dev_size=2, seq_len=14, truncate=True), one, folder).batches("test")[0]
    source = read(TASKS.get("sst2"), form_of(TASKS.get("sst2"), aligned=True, masked=False), folder)[1]
    expected = []
    for number in np.random.RandomState(0).permutation(5):
        example = source.examples[number]
        for candidate in example.candidates:
            ids = one(example.prompt + candidate)["input_ids"]
            count = len(ids) - len(one(example.prompt)["input_ids"])
            ids = [ids[0], *ids[-13:]]
            logs = model(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)
            expected.append(torch.stack([logs[k - 1, ids[k]] for k in range(14 - count, 14)]).mean())
    torch.testing.assert_close(scores(model, batch), torch.stack(expected), atol=1e-9, rtol=0)


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
    one = encoder(PreTrainedTokenizerFast(tokenizer_object=words))
    with pytest.raises(
        ValueError, match=r"^x: a candidate must add a token to its prompt, but .* none of .*; give each"
    ):
        one.encode([Example("good", (" \n",), 0)], ["x"])


def test_special_tokens_are_the_tokenizers_and_none_ends_a_row() -> None:
    example = Example("the film", (" great", " terrible"), 1)
    for template, front in (("</s> $A", (2,)), ("<s> $A </s>", (0,)), ("$A", ()), ("$A </s>", ())):
        one = trained(template)
        body = tuple(one("the film", add_special_tokens=False)["input_ids"])
        found = encoder(one).encode([example], ["x"])[0]
        assert found.rows == ((*front, *body),)
        words = [one(word, add_special_tokens=False)["input_ids"][0] for word in example.candidates]
        assert found.candidates == tuple(((0, len(front + body) - 1, word),) for word in words)


@pytest.mark.parametrize("name", ["sst2", "rte"])
def test_masked_texts_are_padded_on_the_right_and_scored_at_the_mask(tmp_path: Path, name: str) -> None:
    one = trained("<s> $A </s>")
    folder = sst2(tmp_path, 12, 5)
    row = {"premise": "It rained.", "hypothesis": "The street is wet.", "label": "not_entailment"}
    for file, count in (("train", 12), ("val", 5)):
        (folder / f"{file}.jsonl").write_text((json.dumps(row) + "\n") * count)
    data = load(spec(name, train_size=5, dev_size=2), one, folder, masked=True)
    batch = data.batches("test")[0]
    assert batch.choices is not None
    words = {"sst2": (" terrible", " great"), "rte": (" Yes", " No")}[name]
    texts = examples_of(batch)
    if name == "rte":
        assert one.decode(texts[0]) == "<s>It rained?<mask>, the street is wet.</s>"
        answers = [1] * 5
    else:
        lines = (folder / "dev.tsv").read_text().splitlines()[1:]
        order = np.random.RandomState(0).permutation(5)
        expected = [f"<s>{lines[i].split(chr(9))[0].strip()} It was<mask>.</s>" for i in order]
        assert [one.decode(text) for text in texts] == expected
        answers = [int(lines[i].split("\t")[1]) for i in order]
    assert batch.choices.answers.tolist() == [2 * i + answer for i, answer in enumerate(answers)]
    assert (batch.input_ids[batch.choices.places[:, 0], batch.choices.places[:, 1]] == one.mask_token_id).all()
    ids = [one(word, add_special_tokens=False)["input_ids"][0] for word in words]
    assert batch.choices.tokens.tolist() == ids * 5
    assert (batch.input_ids[:, 0] == 0).all()
    mask = batch.attention_mask
    assert mask is not None
    assert torch.equal(mask.sort(dim=1, descending=True).values, mask)


def test_masked_texts_are_cut_after_their_first_token_and_keep_their_mask() -> None:
    one = trained("<s> $A </s>")
    example = Example("a b c d It was <mask>.", (" great",), 0)
    whole = one("a b c d It was <mask>.")["input_ids"]
    found = encoder(one, limit=len(whole) - 3, truncate=True, masked=True).encode([example], ["x"])[0]
    assert found.rows == ((whole[0], *whole[4:]),)
    assert found.rows[0][found.candidates[0][0][1]] == one.mask_token_id
    with pytest.raises(ValueError, match="x: a text must hold one mask token, but got 0; use a larger seq_len"):
        encoder(one, limit=3, truncate=True, masked=True).encode([example], ["x"])


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


def test_a_tokenizer_without_padding_pads_with_zero(tmp_path: Path) -> None:
    one = trained()
    one.pad_token = None
    batch = load(spec("sst2", train_size=5, dev_size=2), one, sst2(tmp_path, 12, 5)).train_batch(0)
    assert batch.attention_mask is not None
    assert (batch.input_ids[batch.attention_mask == 0] == 0).all()


# --- every task whole, on the real data -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["sst2", "cb", "wsc", "copa", "wic"])
def test_whole_tasks_load_with_their_default_sizes(real_data: Path, name: str, tokenizer: Any) -> None:
    data = load(spec(name, batch_size=16), tokenizer, real_data)
    sizes = {"sst2": (1000, 500, 872), "cb": (150, 100, 56), "wsc": (54, 500, 104), "copa": (300, 100, 100),
             "wic": (1000, 500, 638)}[name]  # fmt: skip
    assert tuple(data.facts["counts"].values()) == sizes
    assert {part: sum(counts.values()) for part, counts in data.facts["labels"].items()} == data.facts["counts"]
    assert data.majority("test") == {"sst2": 444 / 872, "cb": 0.5, "wsc": 66 / 104, "copa": 0.55, "wic": 0.5}[name]
    batch = data.train_batch(3)
    assert batch.choices is not None
    assert len(batch.choices.answers) == 16
    assert batch.input_ids.shape[1] % 8 == 0
