"""The record of a run so far, as its journal has it: samples of each step, and the curve on dev."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from zobench.durable.journal import EvaluationItem, Item
from zobench.methods.base import Taken
from zobench.training.progress import Evaluation, StepReport


@dataclass
class Record:
    """``step``: steps taken; ``curve``: [step, loss, accuracy] of each evaluation on dev, ``count`` examples each.
    ``names``: of the task's scores, which are in the place of the accuracy.

    ``skipped``: steps whose update was not applied; ``samples``: as in :class:`zobench.result.Result`.
    """

    step: int = 0
    curve: list[list[float]] = field(default_factory=list)
    count: int = 0
    names: tuple[str, ...] = ("accuracy",)
    skipped: int = 0
    samples: dict[str, list[float | None]] = field(
        default_factory=lambda: {"step_seconds": [], "loss": [], "projected_grad": []}
    )

    def add(self, item: Item) -> None:
        if isinstance(item, Taken):
            self.step, self.skipped = item.step + 1, self.skipped + (not item.applied)
            new = {"step_seconds": item.seconds, "loss": item.loss, "projected_grad": item.projected_grad}
            for name, value in new.items():
                self.samples[name].append(value)
        else:
            self.curve.append([item.step, item.loss, *(item.accuracy, item.second)[: len(self.names)]])
            self.count = item.count

    def replay(self, items: Iterable[Item]) -> Iterator[dict[str, Any]]:
        """Adds all ``items``; yields the line of ``progress.jsonl`` after each evaluation."""
        for item in items:
            self.add(item)
            if isinstance(item, EvaluationItem):
                yield self.line()

    def line(self) -> dict[str, Any]:
        """The line of ``progress.jsonl`` for the newest evaluation."""
        evaluation = self.at(int(self.curve[-1][0]))
        since = self.samples["loss"][int(self.curve[-2][0]) if len(self.curve) > 1 else 0 :]
        losses = [loss for loss in since if loss is not None and math.isfinite(loss)]
        return {
            "step": evaluation.step, "dev_loss": evaluation.loss,
            **{f"dev_{name}": score for name, score in evaluation.scores.items()},
            "dev_count": evaluation.count,
            "train_loss": math.fsum(losses) / len(losses) if losses else None, "best": evaluation.best,
            "skipped": self.skipped,
        }  # fmt: skip

    @property
    def evaluated(self) -> set[int]:
        return {int(row[0]) for row in self.curve}

    @property
    def best(self) -> list[float] | None:
        return best(self.curve)

    def at(self, step: int) -> Evaluation:
        """The evaluation after ``step`` steps."""
        row = next(row for row in self.curve if row[0] == step)
        return Evaluation(
            split="dev", step=step, loss=row[1], accuracy=row[2], count=self.count, best=row == self.best,
            gained=row[1] < self.curve[0][1], names=self.names, second=row[-1] if len(self.names) > 1 else 0.0,
        )  # fmt: skip


def history(items: Iterable[Item], names: tuple[str, ...]) -> tuple[list[StepReport], list[Evaluation]]:
    """The steps and the evaluations on dev of a journal, as they were reported."""
    record, steps, evaluations = Record(names=names), [], []
    for item in items:
        record.add(item)
        if isinstance(item, EvaluationItem):
            evaluations.append(record.at(item.step))
        else:
            numbers = {"loss": item.loss, "g": item.projected_grad, "lr": item.lr}
            steps.append(StepReport(step=record.step, **numbers, skipped=record.skipped))
    return steps, evaluations


def best(curve: list[list[float]]) -> list[float] | None:
    """The row [step, loss, accuracy] of the lowest loss after training began, as ZO-Bench selects.

    Of equal losses the higher accuracy counts, then the earlier step; a loss that is not finite is the highest. Step 0
    is the start and not a result: a run that only lost shows that.
    """
    rows = [row for row in curve if row[0] > 0]
    return min(rows, key=lambda row: (row[1] if math.isfinite(row[1]) else math.inf, -row[2], row[0]), default=None)
