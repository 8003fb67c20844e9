"""The loop: steps, evaluations on dev, and snapshots from which it goes on bit for bit."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

from zobench import snapshot
from zobench.assemble import Tuner
from zobench.data.tasks import TaskData
from zobench.engine import Entry
from zobench.finetune.evaluate import evaluate
from zobench.finetune.journal import JournalFile
from zobench.finetune.progress import EarlyResults, Moment, Progress
from zobench.finetune.record import Record
from zobench.finetune.stop import Interrupted, Stop
from zobench.measure.timer import StepTimer
from zobench.methods import learning_rate
from zobench.spec import BACKWARD, RunSpec

JOURNAL, EARLY = "journal.bin", "progress.jsonl"


def open_journal(spec: RunSpec, folder: Path, record: Record) -> JournalFile:
    """The run's journal, which keeps other processes out of the folder. ``complete`` in its header: whether the run's
    weights are its base's and these updates; what backpropagation changes is in no journal."""
    header = {"run": spec.hash, "spec": spec.to_dict(), "complete": spec.method not in BACKWARD}
    return JournalFile(folder / JOURNAL, header, record.entries)


def resumed(spec: RunSpec, folder: Path) -> tuple[Record, Path | None]:
    """The record of the run's newest snapshot in ``folder`` and the snapshot, or a new record and None."""
    steps = snapshot.steps(folder)
    if not steps:
        return Record(), None
    path = folder / f"snapshot-{steps[-1]}"
    kept = snapshot.state(path)
    if kept.get("run") != spec.hash:
        raise ValueError(f"`{path}` must be of the run {spec.hash}, but is of {kept.get('run')}; remove it")
    return Record(**kept["record"]), path


class Training:
    """One run from where its record is to its end, in ``folder``, with what :func:`zobench.assemble.tuner` built."""

    def __init__(
        self, spec: RunSpec, folder: Path, built: Tuner, data: TaskData, record: Record, journal: JournalFile,
        progress: Progress, stop: Stop,
    ) -> None:  # fmt: skip
        self._spec, self._folder, self._built, self._data = spec, folder, built, data
        self._record, self._journal, self._progress, self._stop = record, journal, progress, stop
        self._timer = StepTimer(spec.device)
        self._early = EarlyResults(folder / EARLY, record.evaluated)
        self._entries: list[Entry] = [] if spec.method in BACKWARD else built.engine.journal
        self._written = 0
        if record.step:
            built.method.restore(record.method)

    def go(self) -> None:
        """Trains to the end. Raises :class:`Interrupted` if that was asked for, after a snapshot."""
        spec, record = self._spec, self._record
        self._progress.begin(record.step, spec.steps)
        if record.best is not None:
            self._progress.evaluated(record.at(int(record.best[0])))
        while True:
            if self._is_due():
                self._evaluate()
            if record.step == spec.steps:
                return
            self._halt_if_asked()
            self._step()

    def _is_due(self) -> bool:
        step, every = self._record.step, self._spec.eval_every
        wanted = step in (0, self._spec.steps) or (every > 0 and step % every == 0)
        return wanted and step not in self._record.evaluated

    def _step(self) -> None:
        record, method = self._record, self._built.method
        batch = self._data.train_batch(record.step)
        method.lr = learning_rate(self._spec, record.step, self._spec.steps)
        with self._timer:
            result = method.step(self._built.engine, batch)
        record.samples["loss"].append(result.loss)
        record.samples["projected_grad"].append(result.projected_grad)
        record.step += 1
        new = self._entries[self._written :]
        self._journal.append(new)
        self._written += len(new)
        record.entries += len(new)
        self._progress.step(
            Moment(step=record.step, loss=result.loss, g=result.projected_grad, lr=method.lr, skipped=method.skipped)
        )

    def _evaluate(self) -> None:
        record = self._record
        self._built.engine.flush()  # so that a resumed run, which starts from what is written, rounds alike
        seen = evaluate(self._built.engine, self._data, "dev", record.step, self._halt_if_asked)
        record.curve.append([seen.step, seen.loss, seen.accuracy])
        record.count = seen.count
        since = record.samples["loss"][int(record.curve[-2][0]) if len(record.curve) > 1 else 0 :]
        losses = [loss for loss in since if loss is not None and math.isfinite(loss)]
        told = record.at(record.step)
        self._early.add({
            "step": told.step, "dev_loss": told.loss, "dev_accuracy": told.accuracy, "dev_count": told.count,
            "train_loss": math.fsum(losses) / len(losses) if losses else None, "best": told.best,
            "skipped": self._built.method.skipped,
        })  # fmt: skip
        self._snapshot()
        self._progress.evaluated(told)

    def _halt_if_asked(self) -> None:
        if not self._stop.wanted:
            return
        # where updates round together, or rest in a narrower format, only an evaluation is a place to go on from
        if self._spec.writeback_every == 1 and self._spec.wire == "none":
            self._snapshot()
        raise Interrupted(max(snapshot.steps(self._folder), default=0), self._folder)

    def _snapshot(self) -> None:
        record, engine = self._record, self._built.engine
        record.samples["step_seconds"] += self._timer.seconds()
        self._timer = StepTimer(self._spec.device)
        engine.flush()
        self._journal.sync()
        record.method = self._built.method.state()
        trained = ((name, tensor) for name, tensor in engine.named_tensors() if name in self._built.trained)
        tensors = itertools.chain(trained, engine.state_tensors())
        snapshot.write(self._folder, record.step, tensors, {"run": self._spec.hash, "record": record.to_dict()})
        best = {int(record.best[0])} if record.best else set()
        snapshot.prune(self._folder, {record.step} | best)
