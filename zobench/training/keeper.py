"""The record of a run so far, and what it writes to the disk: its journal and its snapshots."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zobench.durable import savers, snapshot
from zobench.durable.journal import EvaluationItem, Item, JournalFile
from zobench.methods.base import Taken
from zobench.runspec import METHODS, RunSpec
from zobench.training.assemble import Tuner
from zobench.training.callbacks import Evaluation, StepReport

if TYPE_CHECKING:
    from zobench.parallel.world import World


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

    @property
    def evaluated(self) -> set[int]:
        return {int(row[0]) for row in self.curve}

    @property
    def best(self) -> list[float] | None:
        return best(self.curve)

    def at(self, step: int) -> Evaluation:
        """The evaluation after ``step`` steps."""
        row = next(row for row in self.curve if row[0] == step)
        best = row == self.best and math.isfinite(row[1])
        return Evaluation(
            split="dev", step=step, loss=row[1], accuracy=row[2], count=self.count, best=best,
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


class Keeper:
    """Writes for one run into ``folder``; the ranks that do not lead have no ``journal`` and write only snapshots.

    Zeroth-order methods can resume from the journal alone; snapshots only make that faster. They are taken before
    each evaluation, or as ``spec.checkpoint`` says, and one that fails is a warning. Methods that backpropagate resume
    from the newest snapshot, and one that fails ends the run. ``good``: steps of the snapshots known to be complete.
    """

    def __init__(
        self, spec: RunSpec, folder: Path, journal: JournalFile | None, record: Record,
        header: Mapping[str, Any], say: Callable[[str], None], world: World | None,
    ) -> None:  # fmt: skip
        self._spec, self._folder, self._journal, self._record = spec, folder, journal, record
        self._backpropagates = METHODS.get(spec.method).backpropagates
        self._run = {key: header[key] for key in ("run", "base")}
        self._say, self._world = say, world
        self._saver: savers.Saver | None = None
        self._built: Tuner | None = None
        self.good: list[int] = []

    @contextlib.contextmanager
    def keeping(self, built: Tuner, good: list[int]) -> Iterator[None]:
        """Inside the block snapshots of ``built`` can be taken; ``good``: steps of the complete ones in the folder."""
        self._built, self.good = built, good
        if self._backpropagates:
            yield
            return
        target = savers.Target(
            folder=self._folder, state=lambda step: {**self._run, "step": step}, warn=self._warn,
            seal=self.sync, kept=self._kept, world=self._world,
        )  # fmt: skip
        kind = self._spec.checkpoint if self._spec.checkpoint != "none" else "sync"
        with savers.saving(kind, built.engine, target) as self._saver:
            yield

    def wrote(self, item: Item) -> None:
        """Adds a step or an evaluation to the record and to the journal."""
        self._record.add(item)
        if self._journal is not None:
            self._journal.append(item)

    def after_step(self) -> None:
        """Takes a snapshot if one is due; to be called after a step that is in the journal."""
        step, every = self._record.step, self._spec.checkpoint_every
        if every and step % every == 0:
            self._save()
        if self._saver is not None:
            self._saver.after_step(step)

    def before_evaluation(self) -> None:
        """Takes a snapshot of the weights to be evaluated, unless ``spec.checkpoint`` sets other times."""
        if self._spec.checkpoint == "none" or self._backpropagates:
            self._save()

    def before_stop(self) -> None:
        """Writes what a later process needs to resume from this step."""
        if self._backpropagates:
            self._save()
        self.sync()

    def sync(self) -> None:
        """Returns when the journal is on the disk."""
        if self._journal is not None:
            self._journal.sync()

    def _save(self) -> None:
        step = self._record.step
        if step in self.good or not step:
            return
        self.sync()
        if self._saver is not None:
            self._saver.begin(step)
            return
        built = self._built
        assert built is not None
        trained = ((name, tensor) for name, tensor in built.engine.named_tensors() if name in built.trained)
        every = itertools.chain(trained, built.engine.state_tensors())
        snapshot.write_tensors(self._folder, step, every, {**self._run, "step": step, "method": built.method.state()})
        self._prune(step)

    def _kept(self) -> None:
        assert self._saver is not None
        self._prune(self._saver.saved[-1].step)

    def _prune(self, newest: int) -> None:
        """Two stay: the newest, and that of the best weights or, where that is the newest, the one before."""
        if self._journal is None:
            return
        older = [step for step in self.good if step < newest]
        best = int(self._record.best[0]) if self._record.best else -1
        second = best if best in older else (older[-1] if older else newest)
        self.good = sorted({second, newest})
        snapshot.prune(self._folder, self.good)

    def _warn(self, text: str) -> None:
        if self._world is None or self._world.leads:
            self._say(f"warning: {text}; the journal holds the run")
