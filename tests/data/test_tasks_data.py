"""TaskData: scores, batches and splits of tasks, against an unbatched reference with a random OPT."""

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.task_data import examples_of, load, naive, scores, sets, spec, sst2, trained
from zobench.data.batch import IGNORED
from zobench.data.tasks.encode import Encoded, collate
from zobench.data.tasks.task_data import TaskData
from zobench.runspec.registries import TASKS

WITH_LABELS = [task.name for task in TASKS.builtin() if task.names]


@torch.inference_mode()
@pytest.mark.parametrize("name", WITH_LABELS)
def test_scores_of_a_batch_equal_those_of_each_candidate_alone(real_data, name, tokenizer, model) -> None:
    run = spec(name, batch_size=4, train_size=7, dev_size=2, test_size=4)
    data = load(run, tokenizer, real_data)
    source = sets(name, real_data)[1]
    order = np.random.RandomState(0).permutation(len(source.examples))[:4]
    expected = [naive(model, tokenizer, source.examples[i]) for i in order]
    batches = [data.batch(group) for group in data.groups("test")]
    assert len(batches) == 1
    batch = batches[0]
    values = scores(model, batch)
    torch.testing.assert_close(values, torch.tensor(expected, dtype=torch.float64).flatten(), atol=1e-9, rtol=0)
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
        trained_tokenizer = trained(words=words)
        data = load(spec("sst2", train_size=5, dev_size=2, batch_size=8), trained_tokenizer, folder)
        batch = data.batch(data.groups("test")[0])
        assert batch.input_ids.shape[0] == rows
        source = sets("sst2", folder)[1]
        order = np.random.RandomState(0).permutation(5)
        expected = [naive(model, trained_tokenizer, source.examples[i]) for i in order]
        torch.testing.assert_close(
            scores(model, batch), torch.tensor(expected, dtype=torch.float64).flatten(), atol=1e-9, rtol=0
        )


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
    assert len({tuple(rows_of_epoch) for rows_of_epoch in rows}) == 4
    assert len({tuple(sorted(rows_of_epoch)) for rows_of_epoch in rows}) == 1
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


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=3), min_size=1, max_size=40),
    size=st.integers(1, 12), train=st.integers(1, 60), room=st.sampled_from([0, 50, 2048]),
)  # fmt: skip
def test_an_evaluation_batch_is_as_large_as_a_step_or_fills_its_tokens_or_the_room(lengths, size, train, room) -> None:
    items = [
        Encoded(tuple((i,) * n for n in length), (((0, 0, 7),),), 0, max(length), False)
        for i, length in enumerate(lengths)
    ]
    trained_on = [Encoded(((1,) * train,), (((0, 0, 7),),), 0, train, False)]
    data = TaskData(
        spec=spec("sst2", batch_size=size), splits={"train": trained_on, "dev": items}, facts={}, pad=1, masked=False,
        positions=64,
    )  # fmt: skip
    batches = [data.batch(group) for group in data.groups("dev", room)]
    parts = [sorted(set(batch.input_ids[:, -1].tolist())) for batch in batches]
    assert [i for part in parts for i in part] == list(range(len(items)))  # each example whole, in order

    def fits(part: list[int]) -> bool:
        rows = [n for i in part for n in lengths[i]]
        return len(rows) <= 2 * size or len(rows) * max(rows) <= max(2 * size * train, room)

    assert all(fits(part) or len(part) == 1 for part in parts)
    assert not any(fits([*part, after[0]]) for part, after in itertools.pairwise(parts))  # and no smaller than that


@torch.inference_mode()
def test_the_loss_of_a_candidates_tokens_trains_on_the_right_candidates_rows(real_data, tokenizer, model) -> None:
    name = "copa"
    data = load(spec(name, batch_size=5, train_size=7, dev_size=2, test_size=4), tokenizer, real_data)
    source = sets(name, real_data)[0]
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
    assert facts["longest"] == max(item.length for items in data.splits.values() for item in items)
    assert data.majority("test") == 14 / 21
