"""Callbacks: the curve as CSV and JSON lines, TensorBoard, Weights & Biases, MLflow, and a user's own that fails."""

import csv
import importlib.util
import json
import logging
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.support.callbacks import Acting, MachineDownError, crash
from zobench.training import finetune as run
from zobench.training.callbacks import RunStart, WeightsAndBiases, loggers


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "curve.jsonl").read_text().splitlines()]


def test_a_callback_is_told_all_and_the_curve_is_written(spec: Any, data_dir: Path, tmp_path: Path) -> None:
    listener = Acting()
    result = run(spec(), folder=tmp_path, data_dir=data_dir, callbacks=[listener])
    assert (listener.calls[0], listener.calls[-1]) == (("start", 0, 0), "close")
    assert listener.calls[-2] == ("end", result.evaluation["test"])
    steps, seen = listener.steps, listener.evaluations
    assert [step.step for step in steps] == list(range(1, 11))
    assert [event.loss for event in steps] == result.samples["loss"]
    assert [[event.step, event.loss, event.accuracy] for event in seen[:4]] == result.evaluation["curve"]
    assert seen[4].point == result.evaluation["test"]
    lines = rows(tmp_path)
    assert [line["loss"] for line in lines if "loss" in line] == result.samples["loss"]
    assert [[x["step"], x["dev_loss"], x["dev_accuracy"]] for x in lines if "dev_loss" in x] == result.evaluation[
        "curve"
    ]
    assert lines[-1] == {
        "step": seen[4].step, "test_loss": result.evaluation["test"]["loss"],
        "test_accuracy": result.evaluation["test"]["accuracy"],
    }  # fmt: skip
    with (tmp_path / "curve.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    assert [{name: float(value) for name, value in row.items() if value} for row in table] == lines


def test_a_run_that_goes_on_has_the_curve_of_one_that_was_not_stopped(spec, data_dir, tmp_path) -> None:
    run(spec(), folder=tmp_path / "whole", data_dir=data_dir)
    with pytest.raises(MachineDownError):
        run(spec(), folder=tmp_path / "parts", data_dir=data_dir, callbacks=[Acting({6: crash})])
    (tmp_path / "parts" / "curve.jsonl").open("a").write('{"step": 7, "lo')  # a line that a crash has torn
    listener = Acting()
    run(spec(), folder=tmp_path / "parts", data_dir=data_dir, examine=False, callbacks=[listener])
    assert listener.calls[0] == ("start", 6, 2)
    run(spec(), folder=tmp_path / "parts", data_dir=data_dir)  # another process looks at test
    for name in ("curve.csv", "curve.jsonl"):
        assert (tmp_path / "parts" / name).read_text() == (tmp_path / "whole" / name).read_text()


@pytest.mark.parametrize("method", ["on_line", "on_step", "close"])
def test_a_callback_that_fails_is_said_once_and_loses_nothing(method, spec, data_dir, tmp_path, caplog) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("no space\nleft")

    failing, listener = type("Failing", (Acting,), {method: fail})(), Acting()
    result = run(spec(steps=3), folder=tmp_path, data_dir=data_dir, callbacks=[failing, listener])
    text = "warning: the callback Failing failed (RuntimeError: no space left); the run goes on without it"
    assert caplog.record_tuples == [("zobench", logging.WARNING, text)]
    assert result.outcome == "ok"
    assert listener.calls[-1] == "close"
    assert method == "close" or failing.calls.count("close") == 1
    assert len(listener.steps) == 3


def test_tensorboard_has_the_curve_once_also_after_going_on(spec: Any, data_dir: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    make = loggers(["tensorboard", "tensorboard"])
    with pytest.raises(MachineDownError):
        run(spec(), folder=tmp_path, data_dir=data_dir, callbacks=[Acting({6: crash}), *make()])
    result = run(spec(), folder=tmp_path, data_dir=data_dir, callbacks=make())
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert set(events.Tags()["scalars"]) == {
        "train/loss", "train/projected_grad", "train/lr", "train/skipped", "dev/loss", "dev/accuracy", "test/loss",
        "test/accuracy",
    }  # fmt: skip
    losses = [(event.step, event.value) for event in events.Scalars("train/loss")]
    wanted = [loss for loss in result.samples["loss"] if loss is not None]
    assert losses == [(step, pytest.approx(loss)) for step, loss in enumerate(wanted, start=1)]
    assert [event.step for event in events.Scalars("dev/loss")] == [0, 4, 8, 10]


def module(name: str, monkeypatch: pytest.MonkeyPatch, **members: Any) -> list[Any]:
    """A package ``name`` that records the calls of its functions, which are ``members``."""
    calls: list[Any] = []
    fake = ModuleType(name)
    fake.__spec__ = importlib.util.spec_from_loader(name, None)
    for member, answer in members.items():

        def call(*args: Any, _member: str = member, _answer: Any = answer, **kwargs: Any) -> Any:
            calls.append((_member, args, kwargs))
            return _answer

        setattr(fake, member, call)
    monkeypatch.setitem(sys.modules, name, fake)
    return calls


def test_weights_and_biases_gets_the_curve(spec, data_dir, tmp_path, monkeypatch) -> None:
    logged, summary, ended = [], {}, []
    started = SimpleNamespace(
        log=lambda row, step: logged.append((step, row)), summary=summary, finish=lambda: ended.append(True)
    )
    calls = module("wandb", monkeypatch, init=started)
    result = run(spec(steps=3), folder=tmp_path, data_dir=data_dir, callbacks=loggers(["wandb"])())
    ((name, _, options),) = calls
    assert (name, options["resume"]) == ("init", "allow")
    assert options["config"] == result.spec.to_dict()
    assert [row["loss"] for _, row in logged if "loss" in row] == result.samples["loss"]
    assert [step for step, row in logged if "dev_loss" in row] == [0, 3]
    assert summary == {"test_accuracy": result.evaluation["test"]["accuracy"]}
    assert ended == [True]
    other = tmp_path / "other"
    other.mkdir()
    for folder in (tmp_path, other):
        WeightsAndBiases().begin(RunStart(spec=result.spec, folder=folder, steps=(), evaluations=()))
    ids = [options["id"] for *_, options in calls]
    assert (ids[0] == ids[1], ids[0] == ids[2]) == (True, False)


def test_a_run_that_was_stopped_is_killed_for_mlflow_and_goes_on_as_the_same_run(
    spec: Any, data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("start_run", "log_params", "log_metrics", "end_run")
    started = SimpleNamespace(info=SimpleNamespace(run_id="r1"))
    there = SimpleNamespace(
        get_metric_history=lambda run_id, name: [
            SimpleNamespace(step=options["step"])
            for call, args, options in calls  # type: ignore[has-type]
            if call == "log_metrics" and run_id == "r1" and name in args[0]
        ]
    )
    members = {**dict.fromkeys(names), "start_run": started, "MlflowClient": there}
    calls = module("mlflow", monkeypatch, **members)
    with pytest.raises(MachineDownError):
        run(spec(), folder=tmp_path, data_dir=data_dir, callbacks=[Acting({6: crash}), *loggers(["mlflow"])()])
    result = run(spec(), folder=tmp_path, data_dir=data_dir, callbacks=loggers(["mlflow"])())
    runs = [(name, args, options) for name, args, options in calls if name.endswith("_run")]
    assert runs == [
        ("start_run", (), {"run_name": result.spec.label, "tags": {"zobench.hash": result.spec.hash}}),
        ("end_run", ("KILLED",), {}),
        ("start_run", (), {"run_id": "r1"}),
        ("end_run", ("FINISHED",), {}),
    ]
    assert sum(name == "log_params" for name, *_ in calls) == 1
    rows = [(options["step"], args[0]) for name, args, options in calls if name == "log_metrics"]
    assert [(step, row["loss"]) for step, row in rows if "loss" in row] == list(enumerate(result.samples["loss"], 1))
    assert [step for step, row in rows if "dev_loss" in row] == [0, 4, 8, 10]
