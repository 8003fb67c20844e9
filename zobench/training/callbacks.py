"""Callbacks of a run: the bar on a terminal or a class of the user's, called at its start, steps, evaluations and end.

None of them can lose a run: one that fails is said once, and the run goes on without it. A curve is always
written to CSV and JSON lines, and to TensorBoard, Weights & Biases and MLflow if named.
"""

from __future__ import annotations

import contextlib
import csv
import importlib.util
import json
import logging
import secrets
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from zobench.machine.files import replace
from zobench.result import Result, finite
from zobench.runspec import RunSpec, check_choice

_LOG = logging.getLogger("zobench")


@dataclass(frozen=True, kw_only=True, slots=True)
class StepReport:
    """A step that was taken: steps so far, its loss, projected gradient g, learning rate; updates skipped so far."""

    step: int
    loss: float
    g: float
    lr: float
    skipped: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """The loss and the accuracy on ``split`` ("dev" or "test") after ``step`` steps, and of how many examples.

    ``best``: whether it is the best on dev after any step so far, and so what would be kept if the run ended now, which
    a loss that is not finite never is;
    ``gained``: whether its loss is below that of the start, which is no result of training and never kept. ``names``:
    what the task's goal is scored by. ``accuracy`` is the first of these scores, of an answer its F1, of plain text the
    perplexity; ``second`` is the other one, where there are two. ``count`` are the tokens of a plain text.
    ``examples``: of choices that were just evaluated whether each is right, and its loss.
    """

    split: str
    step: int
    loss: float
    accuracy: float
    count: int
    best: bool = False
    gained: bool = True
    names: tuple[str, ...] = ("accuracy",)
    second: float = 0.0
    examples: tuple[tuple[bool, float], ...] = field(default=(), compare=False, repr=False)

    @property
    def scores(self) -> dict[str, float]:
        return dict(zip(self.names, (self.accuracy, self.second), strict=False))

    @property
    def point(self) -> dict[str, Any]:
        """The evaluation as a result stores it."""
        return {"step": self.step, "loss": self.loss, **self.scores, "count": self.count}


@dataclass(frozen=True, kw_only=True, slots=True)
class RunStart:
    """The start of a run, for callbacks: its ``spec`` and its own ``folder``, and of a run that goes on the
    ``steps`` and ``evaluations`` that are done, in order."""

    spec: RunSpec
    folder: Path
    steps: Sequence[StepReport]
    evaluations: Sequence[Evaluation]


class Callback:
    """A callback is called by a run. Its methods do nothing; a subclass overrides those that it needs.

    The evaluation on the test set comes after the last step, and :meth:`on_end` after it, with the result. A run that
    is stopped does not end: it starts again where it goes on.
    """

    def on_line(self, text: str) -> None:
        """Called with a line on an automatic choice, or a warning; before :meth:`on_start` too."""

    def on_start(self, start: RunStart) -> None:
        """Called before the first step of this process."""

    def on_step(self, step: StepReport) -> None:
        """Called after each step."""

    def on_evaluation(self, evaluation: Evaluation) -> None:
        """Called after each evaluation, on dev or on test."""

    def on_end(self, result: Result) -> None:
        """Called after the last evaluation."""

    def close(self) -> None:
        """Called in any case, at the end of this process's part of the run."""


class Callbacks:
    """Calls all of ``callbacks``, and leaves out one that has failed after that has been logged as ``zobench``, which
    Python prints on standard error if nothing else is set: the one that has failed may be the bar."""

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self._callbacks = list(callbacks)
        self.started = False

    def say(self, text: str) -> None:
        self._each(lambda callback: callback.on_line(text))

    def start(self, start: RunStart) -> None:
        self.started = True
        self._each(lambda callback: callback.on_start(start))

    def step(self, step: StepReport) -> None:
        self._each(lambda callback: callback.on_step(step))

    def evaluated(self, evaluation: Evaluation) -> None:
        self._each(lambda callback: callback.on_evaluation(evaluation))

    def end(self, result: Result) -> None:
        self._each(lambda callback: callback.on_end(result))

    @contextlib.contextmanager
    def closing(self) -> Iterator[None]:
        try:
            yield
        finally:
            self._each(lambda callback: callback.close(), ends=True)

    def _each(self, call: Callable[[Callback], None], ends: bool = False) -> None:
        for callback in list(self._callbacks):
            try:
                call(callback)
            except Exception as error:  # whatever a stranger's code does: the run is worth more
                self._callbacks.remove(callback)
                if not ends:
                    with contextlib.suppress(Exception):  # what it failed with is told below
                        callback.close()
                cause = " ".join(f"{type(error).__name__}: {error}".split())
                name = type(callback).__name__
                _LOG.warning("warning: the callback %s failed (%s); the run goes on without it", name, cause)


CSV_FILE, JSONL_FILE = "curve.csv", "curve.jsonl"
MLFLOW_FILE, WANDB_FILE = "mlflow_run_id", "wandb_run_id"
"""The files in the run's folder that hold the id of its run there."""


Row = tuple[int, dict[str, float]]
"""The step after which numbers are true, and the numbers by their names."""


def step_row(step: StepReport) -> dict[str, float]:
    """A step as it is logged. ``projected_grad`` is g, or the norm of a gradient that was backpropagated."""
    return {"loss": step.loss, "projected_grad": step.g, "lr": step.lr, "skipped": step.skipped}


def evaluation_row(seen: Evaluation) -> dict[str, float]:
    """An evaluation as it is logged: ``dev_loss``, ``dev_accuracy`` or what the task is scored by."""
    return {f"{seen.split}_{name}": value for name, value in {"loss": seen.loss, **seen.scores}.items()}


class Curve(Callback, ABC):
    """A callback that writes rows of numbers by their names, each with the step after which it is true."""

    def begin(self, start: RunStart) -> None:
        """Opens what is written to."""

    @abstractmethod
    def write(self, step: int, row: Mapping[str, float]) -> None:
        """Writes one row."""

    def missing(self, rows: Sequence[Row]) -> Sequence[Row]:
        """The ``rows`` of earlier processes that are written at the start: all, because a process that was killed may
        have lost its last lines."""
        return rows

    def on_start(self, start: RunStart) -> None:
        self.begin(start)
        for step, row in self.missing(_history(start)):
            self.write(step, row)

    def on_step(self, step: StepReport) -> None:
        self.write(step.step, step_row(step))

    def on_evaluation(self, evaluation: Evaluation) -> None:
        self.write(evaluation.step, evaluation_row(evaluation))


def _history(start: RunStart) -> list[Row]:
    """All rows that are known at the start, in the order in which they were made."""
    rows = [(step_report.step, 0, step_row(step_report)) for step_report in start.steps]
    rows += [(evaluation.step, 1, evaluation_row(evaluation)) for evaluation in start.evaluations]
    return [(step, row) for step, _, row in sorted(rows, key=lambda item: item[:2])]


class JsonLines(Curve):
    """``curve.jsonl`` in the run's folder: a line for every step, and one for every evaluation."""

    _file: TextIO | None = None

    def begin(self, start: RunStart) -> None:
        self._file = (start.folder / JSONL_FILE).open("w", encoding="utf-8", buffering=1)

    def write(self, step: int, row: Mapping[str, float]) -> None:
        """See :class:`Curve`. What is not finite is null."""
        assert self._file is not None
        self._file.write(json.dumps(finite({"step": step, **row})) + "\n")

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


class Csv(JsonLines):
    """``curve.csv`` in the run's folder: the same rows, with empty fields for what a row does not have."""

    def begin(self, start: RunStart) -> None:
        from zobench.data.tasks.file import task_of

        scores = ("loss", *task_of(start.spec).goal.scores)
        score_columns = [f"{split}_{name}" for split in ("dev", "test") for name in scores]
        columns = ("step", "loss", "projected_grad", "lr", "skipped", *score_columns)
        self._file = (start.folder / CSV_FILE).open("w", encoding="utf-8", buffering=1, newline="")
        self._table = csv.DictWriter(self._file, columns, restval="", extrasaction="ignore", lineterminator="\n")
        self._table.writeheader()

    def write(self, step: int, row: Mapping[str, float]) -> None:
        self._table.writerow({"step": step, **row})


class TensorBoard(Curve):
    """Event files of TensorBoard in the run's folder ``tensorboard``; a run that goes on writes them again."""

    _writer: Any = None

    def begin(self, start: RunStart) -> None:
        from torch.utils.tensorboard import SummaryWriter

        folder = start.folder / "tensorboard"
        shutil.rmtree(folder, ignore_errors=True)
        self._writer = SummaryWriter(str(folder))

    def write(self, step: int, row: Mapping[str, float]) -> None:
        """See :class:`Curve`. Evaluations stand in groups of their own: ``dev/accuracy``."""
        for name, value in row.items():
            group, _, rest = name.partition("_")
            self._writer.add_scalar(f"{group}/{rest}" if group in ("dev", "test") else f"train/{name}", value, step)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


class WeightsAndBiases(Curve):
    """A run of Weights & Biases, named by the spec's label; one that goes on in its folder goes on there, and the same
    spec in another folder is another run."""

    _run: Any = None

    def begin(self, start: RunStart) -> None:
        import wandb

        kept = start.folder / WANDB_FILE
        if not kept.is_file():
            replace(kept, f"{start.spec.hash}-{secrets.token_hex(3)}\n".encode())
        self._run = wandb.init(
            project="zobench", id=kept.read_text(encoding="utf-8").strip(), name=start.spec.label,
            config=start.spec.to_dict(), resume="allow", dir=str(start.folder),
        )  # fmt: skip

    def missing(self, rows: Sequence[Row]) -> Sequence[Row]:
        """No rows: the service has them."""
        return ()

    def write(self, step: int, row: Mapping[str, float]) -> None:
        self._run.log(dict(row), step=step)

    def on_end(self, result: Result) -> None:
        """The scores on test stand in the run's summary."""
        test = result.evaluation.get("test", {})
        self._run.summary.update({f"test_{name}": test[name] for name in result.scores if name in test})

    def close(self) -> None:
        if self._run is not None:
            self._run.finish()


class MLflow(Curve):
    """A run of MLflow, named by the spec's label, where its own environment variables say; one that goes on goes on
    there. It is finished when it has ended, and killed when it was left before."""

    _client: Any = None
    _ended = False

    def begin(self, start: RunStart) -> None:
        import mlflow

        self._client, kept = mlflow, start.folder / MLFLOW_FILE
        if kept.is_file():
            mlflow.start_run(run_id=kept.read_text(encoding="utf-8").strip())
        else:
            run = mlflow.start_run(run_name=start.spec.label, tags={"zobench.hash": start.spec.hash})
            replace(kept, f"{run.info.run_id}\n".encode())
            mlflow.log_params(start.spec.to_dict())
        self._id = kept.read_text(encoding="utf-8").strip()

    def missing(self, rows: Sequence[Row]) -> Sequence[Row]:
        """The rows, without the numbers that MLflow has."""
        if not rows:
            return ()
        history = self._client.MlflowClient().get_metric_history
        names = {name for _, row in rows for name in row}
        steps = {name: {metric.step for metric in history(self._id, name)} for name in names}
        left = ((step, {name: row[name] for name in row if step not in steps[name]}) for step, row in rows)
        return [(step, row) for step, row in left if row]

    def write(self, step: int, row: Mapping[str, float]) -> None:
        self._client.log_metrics(dict(row), step=step)

    def on_end(self, result: Result) -> None:
        self._ended = True

    def close(self) -> None:
        if self._client is not None:
            self._client.end_run("FINISHED" if self._ended else "KILLED")


@dataclass(frozen=True, slots=True)
class Logger:
    """A logger that ``--log name`` adds: its callback, and the command that installs the package which that needs."""

    name: str
    install: str
    make: Callable[[], Callback]


LOGGERS = {
    logger.name: logger
    for logger in (
        Logger("tensorboard", "pip install 'zobench[log]'", TensorBoard),
        Logger("wandb", "pip install wandb", WeightsAndBiases),
        Logger("mlflow", "pip install mlflow", MLflow),
    )
}


def loggers(names: Sequence[str]) -> Callable[[], list[Callback]]:
    """Returns a function that makes the callbacks of ``--log`` for one run. Raises ``ValueError`` for an unknown one,
    or one whose package is missing."""
    for name in names:
        check_choice("--log", name, LOGGERS)
        if importlib.util.find_spec(name) is None:
            raise ValueError(f"`--log {name}` needs the package {name}, which is missing; {LOGGERS[name].install}")
    return lambda: [LOGGERS[name].make() for name in dict.fromkeys(names)]
