"""The training loop: steps and evaluations on dev. Ctrl-C or SIGTERM stops a run between two of them, where its weights
are consistent."""

from __future__ import annotations

import itertools
import signal
import threading
import time
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch

from zobench.data.tasks.task_data import TaskData
from zobench.durable.journal import EvaluationItem
from zobench.engine import Entry
from zobench.measure.observe import StepTimer
from zobench.methods import StepResult, learning_rate
from zobench.methods.base import Taken
from zobench.runspec import RunSpec
from zobench.training.assemble import Tuner
from zobench.training.callbacks import Callbacks, StepReport
from zobench.training.evaluate import evaluate
from zobench.training.keeper import Keeper, Record

if TYPE_CHECKING:
    from zobench.parallel.world import World

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(KeyboardInterrupt):
    """A run was stopped after ``step`` steps; the same run in the same ``folder`` goes on from there."""

    def __init__(self, step: int, folder: Path) -> None:
        super().__init__(f"stopped after {step} steps; the same command goes on from there")
        self.step, self.folder = step, folder


class Stop:
    """Inside the block the first signal sets ``wanted``; a second one raises KeyboardInterrupt at once.

    Only the main thread can handle signals; in another thread nothing changes.
    """

    def __init__(self) -> None:
        self.wanted = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Stop:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._ask) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.wanted:
            raise KeyboardInterrupt
        self.wanted = True


class Training:
    """Trains a run from the last step in its record to its end, with a tuner of :mod:`zobench.training.assemble`."""

    def __init__(
        self, spec: RunSpec, folder: Path, built: Tuner, data: TaskData, record: Record, keeper: Keeper, stop: Stop,
        world: World | None, callbacks: Callbacks,
    ) -> None:  # fmt: skip
        self._spec, self._folder, self._built, self._data = spec, folder, built, data
        self._record, self._keeper, self._stop, self._world, self._callbacks = record, keeper, stop, world, callbacks
        self._timer = StepTimer(spec.device)
        self._engine = built.engine.local

    def go(self) -> None:
        """Trains to the end. Raises :class:`Interrupted` if that was asked for, with all that was done on the disk."""
        spec, record = self._spec, self._record
        while True:
            every, step = spec.eval_every, record.step
            is_wanted = step in (0, spec.steps) or (every > 0 and step % every == 0)
            if is_wanted and step not in record.evaluated:
                self._evaluate()
            if record.step == spec.steps:
                return
            self._halt_if_asked()
            self._step()

    def _step(self) -> None:
        record, method = self._record, self._built.method
        batch = self._data.train_batch(record.step)
        method.lr = learning_rate(self._spec, record.step, self._spec.steps)
        passes, begin = self._passes, time.perf_counter()
        with self._timer:
            result = method.step(self._built.engine, batch)
        self._keeper.wrote(self._taken(result, method.lr, time.perf_counter() - begin, self._passes - passes))
        measured = {"loss": result.loss, "g": result.projected_grad, "lr": method.lr}
        self._callbacks.step(StepReport(step=record.step, **measured, skipped=method.skipped))
        self._keeper.after_step()

    def _taken(self, result: StepResult, lr: float, seconds: float, passes: int) -> Taken:
        """The step as the journal records it. A gradient without a seed is a backpropagated gradient's norm."""
        seeds = (*result.seeds, *[0] * (len(result.gradients) - len(result.seeds)))
        parts = (*result.parts, *[None] * (len(seeds) - len(result.parts)))
        return Taken(
            step=self._record.step, loss=result.loss, lr=lr, seconds=seconds, applied=result.applied, passes=passes,
            directions=tuple(zip(seeds, parts, strict=True)), gradients=result.gradients, entries=self._entries(),
        )  # fmt: skip

    def _entries(self) -> tuple[Entry, ...]:
        if self._engine is None:
            return ()
        step = self._record.step
        new = itertools.takewhile(lambda entry: entry.step == step, reversed(self._engine.journal))
        return tuple(reversed(list(new)))

    @property
    def _passes(self) -> int:
        return 0 if self._engine is None else self._engine.passes

    def _evaluate(self) -> None:
        record = self._record
        self._time()
        self._keeper.before_evaluation()
        passes = self._passes
        seen = evaluate(self._built.engine, self._data, "dev", record.step, self._halt_if_asked)
        self._keeper.wrote(
            EvaluationItem(
                step=seen.step, loss=seen.loss, accuracy=seen.accuracy, count=seen.count, second=seen.second,
                passes=self._passes - passes,
            )
        )  # fmt: skip
        self._callbacks.evaluated(record.at(record.step))

    def _time(self) -> None:
        """Replaces the host's seconds of the last steps in the record by the device's."""
        seconds = self._timer.seconds()
        if seconds:
            self._record.samples["step_seconds"][-len(seconds) :] = seconds
        self._timer = StepTimer(self._spec.device)

    def _halt_if_asked(self) -> None:
        """Raises :class:`Interrupted` if a stop was asked for on any rank, so that all stop after the same step."""
        wanted = self._stop.wanted
        if self._world is not None:
            wanted = bool(self._world.sum(torch.tensor([wanted], dtype=torch.float64)).any())
        if wanted:
            self._keeper.before_stop()
            raise Interrupted(self._record.step, self._folder)
