"""Which examples train, select and test: MeZO's rule of one permutation, and its k examples per class."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from zobench.data.tasks.task import Task
from zobench.runspec import RunSpec

SPLIT_SEED = 0
"""Seed of the permutations of MeZO's large models, whatever the run's own seed."""


@dataclass(frozen=True, slots=True)
class Split:
    """Numbers of examples from 0: ``train`` and ``dev`` of the training set, or ``dev`` of the task's own dev set;
    ``test`` of the validation set.

    ``notes``: one sentence for every size that is not the one asked for.
    """

    train: list[int]
    dev: list[int]
    test: list[int]
    notes: list[str]


def split(spec: RunSpec, task: Task, answers: Sequence[int], validation: int, dev_count: int | None = None) -> Split:
    """The split of a training set with these ``answers`` and ``validation`` examples to test on; ``dev_count``: of the
    task's own dev set, where it has one.

    Without ``spec.shots``: of a permutation of the training set the first train_size + dev_size, dev their tail (MeZO,
    large models). Where the set is smaller dev keeps its size, 100 for CB and COPA, and train takes what is left: 150
    of CB, 300 of COPA, and, by the same rule with dev 500, 54 of WSC. With ``spec.shots``: :func:`_per_class`.
    """
    notes: list[str] = []
    if spec.shots:
        train, dev = _per_class(spec, task, answers)
    elif dev_count is None:
        train, dev = _head(spec, task, len(answers), notes)
    else:
        train = _permutation(SPLIT_SEED, len(answers))[: spec.train_size]
        dev = _permutation(SPLIT_SEED, dev_count)[: spec.dev_size]
        notes += [
            f"{name} has {size} of {count} examples ({name}_size)"
            for name, size, count in (("train", len(train), len(answers)), ("dev", len(dev), dev_count))
            if size < count
        ]
    test = _permutation(SPLIT_SEED, validation)[: spec.test_size]
    if len(test) < spec.test_size:
        notes.append(f"test has {len(test)} examples, not {spec.test_size}: there are no more")
    if len(train) < spec.batch_size:
        notes.append(f"a batch has {len(train)} examples, not {spec.batch_size}: train has no more")
        if len(train) % spec.accumulate:
            raise ValueError(
                f"`accumulate` must divide a batch, but got accumulate={spec.accumulate} for the {len(train)} examples "
                f"of train, fewer than batch_size={spec.batch_size}; use accumulate=1"
            )
    return Split(train, dev, test, notes)


def _permutation(seed: int, count: int) -> list[int]:
    """NumPy's legacy permutation, which MeZO draws."""
    return [int(i) for i in np.random.RandomState(seed).permutation(count)]


def _head(spec: RunSpec, task: Task, count: int, notes: list[str]) -> tuple[list[int], list[int]]:
    dev = spec.dev_size
    if spec.train_size + dev > count and task.small_dev is not None:
        dev = min(dev, task.small_dev)
    if spec.train_size + dev > count and task.dev_share:
        dev = min(dev, max(1, int(task.dev_share * count)))
    order = _permutation(SPLIT_SEED, count)[: spec.train_size + dev]
    train = len(order) - dev
    if count < 2:
        raise ValueError(
            f"a training set must have two rows, one of them for dev, but {task.name}'s has {count}; give more, or a "
            "set for dev"
        )
    if train < 1:
        raise ValueError(
            f"`dev_size < {count}` must hold, but got dev_size={dev}: the training set has {count} examples, and dev "
            "is their tail; use a smaller dev_size"
        )
    if (train, dev) != (spec.train_size, spec.dev_size):
        notes.append(
            f"train has {train} examples and dev {dev}, not {spec.train_size} and {spec.dev_size}: "
            f"the training set has {count}"
        )
    elif task.dev_share and len(order) < count:
        notes.append(f"train and dev have {len(order)} of {count} examples (train_size, dev_size)")
    return order[:train], order[train:]


def _per_class(spec: RunSpec, task: Task, answers: Sequence[int]) -> tuple[list[int], list[int]]:
    """(train, dev): each class's first ``shots`` of a permutation by ``spec.seed``, and its next ``shots`` (MeZO,
    RoBERTa: seeds 13, 21, 42, 87, 100)."""
    if not task.names or "dev" in task.parts:
        raise ValueError(
            f"`shots` needs a task with label words and no dev set of its own, but got {task.name}; use train_size"
        )
    counts = Counter(answers)
    rarest = min(range(len(task.names)), key=lambda answer: counts[answer])
    if counts[rarest] < 2 * spec.shots:
        raise ValueError(
            f"`shots={spec.shots}` needs {2 * spec.shots} examples of each class, half of them for dev, but got "
            f"{counts[rarest]} of {task.names[rarest]}; use shots={counts[rarest] // 2} or less"
        )
    seen: Counter[int] = Counter()
    train: list[int] = []
    dev: list[int] = []
    for number in _permutation(spec.seed, len(answers)):
        turn = seen[answers[number]]
        seen[answers[number]] += 1
        if turn < 2 * spec.shots:
            (train if turn < spec.shots else dev).append(number)
    return train, dev
