"""TaskData: the encoded examples of one run, its training batches as a function of seed and step, what is evaluated.

Which examples train, select and test is MeZO's rule of one permutation, or its k examples per class.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from zobench.data.batch import Batch
from zobench.data.tasks.encode import Encoded, Encoder, Encoding
from zobench.data.tasks.file import task_of
from zobench.data.tasks.prompts import form_of
from zobench.data.tasks.read import LabelledSet, read
from zobench.data.tasks.task import Task
from zobench.runspec import DECLARED, RunSpec
from zobench.runspec.constraints import shards
from zobench.runspec.registry import resolve

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


POINTS = 2
"""The points of a step: an evaluation batch may hold as many tokens as both together, so that it takes no more
memory."""
GROUPED = 50
"""Batches whose examples are sorted by length together, where ``length_grouping`` asks for it."""


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class TaskData:
    """``splits``: encoded examples of train, dev and test. ``facts``: what a result says about them, JSON types only:
    counts, label balance, sources, seeds, candidates, texts cut, longest text in tokens, and notes on sizes. ``task``
    None: what ``spec`` names."""

    spec: RunSpec
    splits: dict[str, list[Encoded]]
    facts: dict[str, Any]
    pad: int
    masked: bool
    positions: int
    task: Task | None = None
    tokenizer: PreTrainedTokenizerBase | None = None

    @classmethod
    def load(
        cls, spec: RunSpec, tokenizer: PreTrainedTokenizerBase, *, positions: int, masked: bool, data_dir: Path | None
    ) -> TaskData:
        """Reads, splits and encodes ``spec.task`` for a model with ``positions``, causal or ``masked``.

        ``data_dir``: see :func:`zobench.data.tasks.read.read`; None loads from the hub. Raises ``ValueError`` for data
        that is missing, malformed or longer than the model takes, and ``ImportError`` without ``datasets``.
        """
        if masked and tokenizer.mask_token_id is None:
            raise ValueError(
                "a masked language model needs a tokenizer with a mask token, but got none; use a causal model"
            )
        task = task_of(spec)
        sources = read(task, form_of(task, aligned=spec.aligned, masked=masked), data_dir)
        encoder, encoding = _encoder(spec, task, tokenizer, masked, positions), resolve(task.goal.encoding)()
        named = dict(zip(task.parts, sources, strict=True))
        units = {part: encoding.units(encoder, source.examples) for part, source in named.items()}
        for part, source in named.items():
            if not units[part]:
                raise ValueError(f"{source.name}: a set must have an example that has a loss, but has none; add text")
        numbers = split(
            spec, task, [unit.answer for unit in units["train"]], len(units["validation"]),
            len(units["dev"]) if "dev" in units else None,
        )  # fmt: skip
        splits = {
            name: _encode(encoder, encoding, name, named[part], units[part], chosen)
            for name, part, chosen in (
                ("train", "train", numbers.train), ("dev", "dev" if "dev" in units else "train", numbers.dev),
                ("test", "validation", numbers.test),
            )
        }  # fmt: skip
        facts = _facts(spec, task, named, units, numbers, splits)
        pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0  # the mask hides it
        return cls(
            spec=spec, splits=splits, facts=facts, pad=pad, masked=masked, positions=positions, task=task,
            tokenizer=tokenizer,
        )  # fmt: skip

    @property
    def fingerprint(self) -> str:
        """Hexadecimal digits of the SHA-256 of all examples as tokens: what a run that goes on must have again."""
        digest = hashlib.sha256()
        for name, items in self.splits.items():
            for item in items:
                digest.update(repr((name, item.rows, item.candidates, item.answer, item.right, item.golds)).encode())
        return digest.hexdigest()[:16]

    @property
    def asked(self) -> Task:
        """The task."""
        return self.task or task_of(self.spec)

    def train_batch(self, step: int) -> Batch:
        """The batch of ``step``, a function of the spec's seed and the step only.

        An epoch is a permutation by (seed, epoch), cut into batches; the short one at its end is left out, unless the
        whole set is smaller than a batch. With ``length_grouping`` examples of like length share a batch. A task with
        the loss "lm" is trained on its right candidates alone, one row each, as in MeZO.
        """
        items = self.splits["train"]
        size = min(self.spec.batch_size, len(items))
        epoch, turn = divmod(step, len(items) // size)
        generator = np.random.default_rng((self.spec.seed, epoch))
        order = generator.permutation(len(items))[: len(items) // size * size]
        if self.spec.length_grouping:
            lengths = np.array([items[i].length for i in order])
            runs = np.arange(len(order)) // (size * GROUPED)
            order = order[np.lexsort((lengths, runs))]
            turn = int(generator.permutation(len(order) // size)[turn])
        return self.batch([self._trained(items[i]) for i in order[turn * size : (turn + 1) * size]])

    def groups(self, name: str, room: int = 0) -> list[list[Encoded]]:
        """All examples of the split ``name``, a few at a time, in a fixed order: by length with ``length_grouping`` or
        where rows are packed.

        A group holds, padding included, at most the tokens of a step's two points of the longest training texts, or
        ``room`` tokens if these are more. Unless rows are packed, as many rows as both points have always fit.
        """
        items, packed = self.splits[name], self.spec.packed
        if self.spec.length_grouping or packed:
            items = sorted(items, key=lambda item: item.length)
        trained = [self._trained(item).rows for item in self.splits["train"]]
        rows = POINTS * (self.spec.batch_size // self.spec.accumulate) * max(map(len, trained))
        tokens = rows * max(len(row) for example in trained for row in example)
        return _groups(items, 0 if packed else rows, max(tokens, room))

    def batch(self, items: Sequence[Encoded]) -> Batch:
        """These examples, padded."""
        encoding: Encoding = resolve(self.asked.goal.encoding)()
        return encoding.batch(
            items, pad=self.pad, left=not self.masked, widest=self.positions, loss=self.asked.loss
        )  # fmt: skip

    def majority(self, name: str) -> float | None:
        """The share of the most frequent answer in the split ``name``: the accuracy of always giving it. None where
        the examples have no answers in common, or there are none, as of a test set that is not looked at."""
        answers = Counter(item.answer for item in self.splits[name])
        return max(answers.values()) / answers.total() if self.asked.names and answers else None

    def _trained(self, item: Encoded) -> Encoded:
        return item.only_right() if self.asked.loss == "lm" and item.candidates else item


def _groups(items: Sequence[Encoded], rows: int, tokens: int) -> list[list[Encoded]]:
    """``items`` in order, in groups of at most ``rows`` rows, or more with at most ``tokens`` tokens together, before
    they are padded to a multiple; an item with more is a group by itself."""
    groups: list[list[Encoded]] = []
    count = longest = 0
    for item in items:
        count, longest = count + len(item.rows), max(longest, *map(len, item.rows))
        if not groups or (count > rows and count * longest > tokens):
            groups.append([])
            count, longest = len(item.rows), max(map(len, item.rows))
        groups[-1].append(item)
    return groups


def _encoder(spec: RunSpec, task: Task, tokenizer: PreTrainedTokenizerBase, masked: bool, positions: int) -> Encoder:
    """The encoder of a task's texts, which leave room for what is generated after them."""
    limit, room = min(spec.seq_len, positions), task.goal.new_tokens
    if limit <= room + 1:
        raise ValueError(
            f"`seq_len > {room + 1}` must hold for {task.name}, whose answers have up to {room} tokens, but got "
            f"{limit} (seq_len={spec.seq_len}, the model's positions {positions}); use a larger seq_len"
        )
    limit_text = f"seq_len={spec.seq_len}, the model's positions {positions}"
    return Encoder(
        tokenizer=tokenizer, masked=masked, limit=limit - room, truncate=spec.truncate,
        room=room, positions=positions,
        limit_text=f"{limit_text}, less {room} for the answer" if room else limit_text,
    )  # fmt: skip


def _encode(
    encoder: Encoder, encoding: Encoding, name: str, source: LabelledSet, units: Sequence[Any], numbers: list[int]
) -> list[Encoded]:
    places = source.places
    if len(places) != len(units):  # they are packed
        places = [f"example {number} of {source.where}" for number in range(1, len(units) + 1)]
    return encoding.encode(
        encoder, [units[number] for number in numbers], [f"{name} text, {places[number]}" for number in numbers]
    )


def _facts(
    spec: RunSpec, task: Task, sources: Mapping[str, LabelledSet], units: Mapping[str, Sequence[Any]], numbers: Split,
    splits: dict[str, list[Encoded]],
) -> dict[str, Any]:  # fmt: skip
    def balance(answers: list[int]) -> dict[str, int]:
        counts = Counter(answers)
        return {name: counts[answer] for answer, name in enumerate(task.names)}

    called = {part: "test" if part == "validation" else part for part in sources}
    return {
        "task": task.name,
        "candidates": list(task.names),
        "sources": {called[part]: source.name for part, source in sources.items()},
        "available": {called[part]: len(examples) for part, examples in units.items()},
        "counts": {name: len(items) for name, items in splits.items()},
        "labels": {name: balance([item.answer for item in items]) for name, items in splits.items()},
        "truncated": {name: sum(item.cut for item in items) for name, items in splits.items()},
        "longest": max(item.length for items in splits.values() for item in items),
        "seeds": {"split": spec.seed if spec.shots else SPLIT_SEED, "batches": spec.seed},
        "notes": numbers.notes,
        **task.facts,
    }


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
    for name in ("train_size", "dev_size"):
        if spec.shots and spec.value(name) != DECLARED[name].default:
            raise ValueError(
                f"`{name}` has no meaning beside shots={spec.shots}, but got {spec.value(name)}; leave one of them out"
            )
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
        for name, parts in (("accumulate", spec.accumulate), ("parallel", shards(spec.parallel, spec.gpus))):
            if len(train) % parts:
                raise ValueError(
                    f"`{name}` must divide a batch, but got {name}={spec.value(name)} for the {len(train)} examples of "
                    f"train, fewer than batch_size={spec.batch_size}; use a batch_size that train holds, or {name}="
                    f"{DECLARED[name].default}"
                )
    return Split(train, dev, test, notes)


def _permutation(seed: int, count: int) -> list[int]:
    """NumPy's legacy permutation, which MeZO draws."""
    return list(map(int, np.random.RandomState(seed).permutation(count)))


def _head(spec: RunSpec, task: Task, count: int, notes: list[str]) -> tuple[list[int], list[int]]:
    dev = task.dev_rows(spec.train_size, spec.dev_size, count)
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
