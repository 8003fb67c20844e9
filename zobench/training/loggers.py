"""Callbacks that write a run's curve: CSV and JSON lines always; TensorBoard, Weights & Biases and MLflow if named."""

from __future__ import annotations

import csv
import importlib.util
import json
import math
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

from zobench.machine.files import replace
from zobench.result import Result
from zobench.runspec import suggestion
from zobench.training.callbacks import Callback, Evaluation, RunStart, StepReport

CSV_FILE, JSONL_FILE = "curve.csv", "curve.jsonl"
MLFLOW_FILE = "mlflow_run_id"
"""The file in the run's folder that holds the id of its MLflow run."""


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
        finite = {name: value if math.isfinite(value) else None for name, value in row.items()}
        self._file.write(json.dumps({"step": step, **finite}) + "\n")

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
    """A run of Weights & Biases, named by the spec's label; one that goes on goes on there."""

    _run: Any = None

    def begin(self, start: RunStart) -> None:
        import wandb

        self._run = wandb.init(
            project="zobench", id=start.spec.hash, name=start.spec.label, config=start.spec.to_dict(), resume="allow",
            dir=str(start.folder),
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
    """What ``--log name`` adds: a callback, and the words that install the package of that name, which it needs."""

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
    """What makes the callbacks of ``--log`` for one run. Raises ``ValueError`` for an unknown one, or one whose package
    is missing."""
    for name in names:
        if name not in LOGGERS:
            raise ValueError(
                f"`--log` must be one of {', '.join(LOGGERS)}, but got {name!r}; {suggestion(name, LOGGERS)}"
            )
        if importlib.util.find_spec(name) is None:
            raise ValueError(f"`--log {name}` needs the package {name}, which is missing; {LOGGERS[name].install}")
    return lambda: [LOGGERS[name].make() for name in dict.fromkeys(names)]
