"""Splits of tasks: MeZO's permutation and sizes, small sets, examples per class."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.task_data import sets
from zobench.data.tasks.task_data import split
from zobench.runspec import RunSpec
from zobench.runspec.registries import TASKS


def spec(task: str, **changes: Any) -> RunSpec:
    return RunSpec(model="opt-tiny", task=task, **changes)


@pytest.mark.parametrize(
    ("name", "train", "dev", "test"),
    [
        ("sst2", 1000, 500, 872), ("rte", 1000, 500, 277), ("cb", 150, 100, 56), ("boolq", 500, 500, 1000),
        ("wsc", 54, 500, 104), ("wic", 1000, 500, 638), ("copa", 300, 100, 100), ("winogrande", 1000, 500, 1000),
        ("multirc", 1000, 500, 1000),
    ],
)  # fmt: skip
def test_splits_are_mezos(real_data: Path, name: str, train: int, dev: int, test: int) -> None:
    source, tested = sets(name, real_data)
    answers = [example.answer for example in source.examples]
    parts = split(spec(name), TASKS.get(name), answers, len(tested.examples))
    assert (len(parts.train), len(parts.dev), len(parts.test)) == (train, dev, test)
    np.random.seed(0)
    order = np.random.permutation(len(answers)).tolist()
    assert parts.train + parts.dev == order[: train + dev]
    np.random.seed(0)
    assert parts.test == np.random.permutation(len(tested.examples)).tolist()[:test]
    assert bool(parts.notes) == ((train, dev, test) != (1000, 500, 1000))


def test_a_small_set_that_accumulate_or_ranks_do_not_divide_is_refused_at_once() -> None:
    small = {"train_size": 10, "dev_size": 12, "batch_size": 12}
    assert len(split(spec("cb", accumulate=2, **small), TASKS.get("cb"), [0, 1] * 20, 5).train) == 10
    with pytest.raises(ValueError, match="got accumulate=3 for the 10 examples of train, fewer than batch_size=12"):
        split(spec("cb", accumulate=3, **small), TASKS.get("cb"), [0, 1] * 20, 5)
    ranks = {"engine": "offload", "tier": "pageable", "gpus": 3, "parallel": "ddp"}
    with pytest.raises(ValueError, match="got parallel=ddp for the 10 examples of train, fewer than batch_size=12"):
        split(spec("cb", **small, **ranks), TASKS.get("cb"), [0, 1] * 20, 5)


def test_a_small_set_keeps_the_sizes_that_fit() -> None:
    answers = [0, 1] * 125
    sizes = {
        (100, 120): (100, 120), (150, 101): (150, 100), (1000, 500): (150, 100), (1000, 40): (210, 40),
    }  # fmt: skip
    for (train, dev), expected in sizes.items():
        parts = split(spec("cb", train_size=train, dev_size=dev, test_size=5), TASKS.get("cb"), answers, 5)
        assert (len(parts.train), len(parts.dev)) == expected
    noted = split(spec("cb", test_size=9), TASKS.get("cb"), answers, 5).notes
    assert noted == [
        "train has 150 examples and dev 100, not 1000 and 500: the training set has 250",
        "test has 5 examples, not 9: there are no more",
    ]


def test_a_dev_that_leaves_nothing_to_train_on() -> None:
    with pytest.raises(ValueError, match=r"`dev_size < 500` must hold, but got dev_size=500: the training set has 500"):
        split(spec("sst2"), TASKS.get("sst2"), [0, 1] * 250, 9)
    message = r"^a training set must have two rows, one of them for dev, but sst2's has 1; "
    with pytest.raises(ValueError, match=message):
        split(spec("sst2"), TASKS.get("sst2"), [0], 9)


@pytest.mark.parametrize("seed", [13, 42])
def test_k_shots_are_the_first_of_each_class_of_a_shuffle(seed: int) -> None:
    answers = [int(i % 3 == 0) for i in range(400)]
    parts = split(spec("sst2", shots=16, seed=seed), TASKS.get("sst2"), answers, 9)
    rows = list(range(400))
    np.random.seed(seed)
    np.random.shuffle(rows)  # MeZO shuffles the file's lines themselves
    for label in (0, 1):
        ranked = [row for row in rows if answers[row] == label]
        assert [row for row in parts.train if answers[row] == label] == ranked[:16]
        assert [row for row in parts.dev if answers[row] == label] == ranked[16:32]
    assert len(parts.train) == len(parts.dev) == 32
    assert sorted(parts.test) == list(range(9))


def test_shots_beyond_the_rarest_class() -> None:
    answers = [0] * 50 + [1] * 40 + [2] * 17
    split(spec("cb", shots=8), TASKS.get("cb"), answers, 9)
    with pytest.raises(ValueError, match="`dev_size` has no meaning beside shots=8, but got 40; leave one of them out"):
        split(spec("cb", shots=8, dev_size=40), TASKS.get("cb"), answers, 9)
    with pytest.raises(ValueError, match=r"`shots=9` needs 18 examples .* but got 17 of Maybe; use shots=8 or less"):
        split(spec("cb", shots=9), TASKS.get("cb"), answers, 9)
