"""TaskData: the encoded examples of one run, its training batches as a function of seed and step, what is evaluated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from zobench.data.batch import Batch
from zobench.data.tasks.encode import Encoded, Encoder, collate
from zobench.data.tasks.prompts import form_of
from zobench.data.tasks.read import Source, read
from zobench.data.tasks.split import Split, split
from zobench.runspec import RunSpec
from zobench.runspec.registries import TASKS

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

POINTS = 2
"""Of a step: an evaluation batch has as many rows as both together, so that it takes no more memory than training."""
FLOOR = 16
"""Rows of an evaluation batch where training has fewer, which an offloaded model, uploaded for each batch, needs."""
GROUPED = 50
"""Batches whose examples are sorted by length together, where ``length_grouping`` asks for it."""


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class TaskData:
    """``splits``: encoded examples of train, dev and test. ``facts``: what a result says about them, JSON types only:
    counts, label balance, sources, candidates, texts cut, longest text in tokens, and notes on sizes."""

    spec: RunSpec
    splits: dict[str, list[Encoded]]
    facts: dict[str, Any]
    pad: int
    masked: bool
    positions: int

    @classmethod
    def load(
        cls,
        spec: RunSpec,
        tokenizer: PreTrainedTokenizerBase,
        *,
        positions: int,
        masked: bool,
        data_dir: Path | None,
    ) -> TaskData:
        """Reads, splits and encodes ``spec.task`` for a model with ``positions``, causal or ``masked``.

        ``data_dir``: see :func:`zobench.data.tasks.read.read`; None loads from the hub. Raises ``ValueError`` for data
        that is missing, malformed or longer than the model takes, and ``ImportError`` without ``datasets``.
        """
        if masked and tokenizer.mask_token_id is None:
            raise ValueError(
                "a masked language model needs a tokenizer with a mask token, but got none; use a causal model"
            )
        task, form = TASKS.get(spec.task), form_of(spec.task, aligned=spec.aligned, masked=masked)
        train, validation = read(spec.task, form, data_dir)
        numbers = split(spec, task, [example.answer for example in train.examples], len(validation.examples))
        encoder = Encoder(
            tokenizer=tokenizer,
            masked=masked,
            limit=min(spec.seq_len, positions),
            limit_text=f"seq_len={spec.seq_len}, the model's positions {positions}",
            truncate=spec.truncate,
        )
        splits = {
            name: _encode(encoder, name, source, chosen)
            for name, source, chosen in (
                ("train", train, numbers.train), ("dev", train, numbers.dev), ("test", validation, numbers.test)
            )
        }  # fmt: skip
        facts = _facts(spec, train, validation, numbers, splits)
        pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0  # the mask hides it
        return cls(spec=spec, splits=splits, facts=facts, pad=pad, masked=masked, positions=positions)

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
        return self._collate([self._trained(items[i]) for i in order[turn * size : (turn + 1) * size]])

    def batches(self, name: str) -> list[Batch]:
        """All examples of the split ``name`` in a fixed order, a few at a time; by length with ``length_grouping``.

        A batch has the rows of a step's two points, or up to :data:`FLOOR` while these hold no more tokens than the two
        points of the longest training texts.
        """
        items = self.splits[name]
        if self.spec.length_grouping:
            items = sorted(items, key=lambda item: item.length)
        trained = [self._trained(item).rows for item in self.splits["train"]]
        rows = POINTS * self.spec.batch_size * max(map(len, trained))
        tokens = rows * max(len(row) for own in trained for row in own)
        return [self._collate(group) for group in _groups(items, rows, tokens)]

    def majority(self, name: str) -> float:
        """The share of the most frequent answer in the split ``name``: the accuracy of always giving it."""
        answers = Counter(item.answer for item in self.splits[name])
        return max(answers.values()) / answers.total()

    def _trained(self, item: Encoded) -> Encoded:
        return item.only_right() if TASKS.get(self.spec.task).loss == "lm" else item

    def _collate(self, items: list[Encoded]) -> Batch:
        loss = TASKS.get(self.spec.task).loss
        return collate(items, pad=self.pad, left=not self.masked, widest=self.positions, loss=loss)


def _groups(items: Sequence[Encoded], rows: int, tokens: int) -> list[list[Encoded]]:
    """``items`` in order, in groups of at most ``rows`` rows, or :data:`FLOOR` with at most ``tokens`` tokens together,
    before they are padded to a multiple; an item with more is a group by itself."""
    groups: list[list[Encoded]] = []
    count = longest = 0
    for item in items:
        count, longest = count + len(item.rows), max(longest, *map(len, item.rows))
        if not groups or (count > rows and (count > FLOOR or count * longest > tokens)):
            groups.append([])
            count, longest = len(item.rows), max(map(len, item.rows))
        groups[-1].append(item)
    return groups


def _encode(encoder: Encoder, name: str, source: Source, numbers: list[int]) -> list[Encoded]:
    places = [f"{name} text, example {number + 1} of {source.where}" for number in numbers]
    return encoder.encode([source.examples[number] for number in numbers], places)


def _facts(
    spec: RunSpec, train: Source, validation: Source, numbers: Split, splits: dict[str, list[Encoded]]
) -> dict[str, Any]:
    names = TASKS.get(spec.task).names

    def balance(answers: list[int]) -> dict[str, int]:
        counts = Counter(answers)
        return {name: counts[answer] for answer, name in enumerate(names)}

    return {
        "task": spec.task,
        "candidates": list(names),
        "sources": {"train": train.name, "test": validation.name},
        "available": {"train": len(train.examples), "test": len(validation.examples)},
        "counts": {name: len(items) for name, items in splits.items()},
        "labels": {name: balance([item.answer for item in items]) for name, items in splits.items()},
        "truncated": {name: sum(item.cut for item in items) for name, items in splits.items()},
        "longest": max(item.length for items in splits.values() for item in items),
        "notes": numbers.notes,
    }
