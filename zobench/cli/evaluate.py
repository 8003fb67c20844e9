"""The command evaluate: what a model, or a run's best weights, come to on a task."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from zobench.cli.checks import check_json
from zobench.cli.common import (
    BatchSize,
    Changes,
    DataDir,
    Device,
    Dtype,
    Json,
    Model,
    Name,
    Quiet,
    SeqLen,
    Task,
    WeightsPath,
    app,
    changed,
    named,
)
from zobench.cli.usage import TUNE
from zobench.session.inputs import check_folder, check_words

if TYPE_CHECKING:
    from zobench.finetune.assess import Assessed, EndedRun
    from zobench.runspec import RunSpec


@app.command(rich_help_panel=TUNE)
def evaluate(
    run: Annotated[Path | None, typer.Argument(metavar="RUN", help="A fine-tuning run's folder, or --model.")] = None,
    model: Model = None, name: Name = None, task: Task = None,
    split: Annotated[str, typer.Option(help="test or dev.")] = "test",
    data_dir: DataDir = None, weights_path: WeightsPath = None, seq_len: SeqLen = None, dtype: Dtype = None,
    batch_size: BatchSize = None, changes: Changes = None, device: Device = "auto", output: Json = None,
    quiet: Quiet = False,
) -> None:  # fmt: skip
    """Evaluate a model, or the best weights of a run, on a task. Nothing is trained or stored."""
    given = {"model": model, "name": name, "task": task, "seq_len": seq_len, "dtype": dtype, "batch_size": batch_size}
    values = changed(named(changes, **given, weights_path=weights_path))
    check_folder("--data-dir", data_dir)
    check_json(output)
    check_words(values)
    from zobench.cli import console
    from zobench.finetune import usual_data_dir
    from zobench.finetune.assess import SPLITS, EndedRun, assess
    from zobench.measure.threads import settle
    from zobench.runspec import suggestion

    if split not in SPLITS:
        raise ValueError(f"`--split` must be test or dev, but got {split!r}; {suggestion(split, SPLITS)}")
    if (run is None) == ("model" not in values):
        raise ValueError("`evaluate` needs RUN or --model, but got both or neither; name one of them")
    kept = None if run is None else EndedRun.of(run)
    spec, why = _spec(values, kept, device)
    errors = console.error_console()
    for note in filter(None, (why, settle(), f"seq_len: {spec.seq_len}")):
        errors.print(note, style="dim", markup=False, soft_wrap=True)
    _check_fits(spec)
    with errors.status(f"evaluating {spec.model} on {spec.task_name}"):
        assessed = assess(
            spec, split, run=kept, data_dir=data_dir or usual_data_dir(),
            say=lambda text: errors.print(text, style="dim", markup=False, soft_wrap=True),
        )  # fmt: skip
    _show(assessed, output)


def _spec(values: dict[str, Any], kept: EndedRun | None, device: str) -> tuple[RunSpec, str]:
    """What is evaluated, and why on that device: the run's own spec with ``values``, or that of a pretrained model."""
    from zobench import models
    from zobench.machine.device import choose_device
    from zobench.recipes import matrix

    chosen, why = choose_device(str(values.pop("device", device)))
    if kept is not None:
        return models.identified(kept.spec.alone().replace(**values)).resolve(chosen), why
    if values.get("task", "none") == "none":
        raise ValueError("`--task` must be given, but is not; see `zobench list tasks`")
    return matrix.single({"weights": "pretrained", **values}, chosen), why


def _check_fits(spec: RunSpec) -> None:
    """Raises ``ValueError`` where the model is predicted not to fit this machine."""
    from zobench.cost import footprint
    from zobench.execute import plan
    from zobench.finetune.assemble import disk_dir

    if missing := plan.lacking(footprint.memory(spec), plan.limits(spec.device, disk_dir())):
        raise ValueError(f"the model must fit this machine, but {missing}; {plan.remedy(spec)}")


def _show(assessed: Assessed, output: str | None) -> None:
    """Prints a table of one row, and writes the same as JSON to the file ``output``; "-" prints just that."""
    from zobench.cli import console
    from zobench.cli.tuning_view import show_assessed
    from zobench.stats.intervals import wilson_interval

    seen, first = assessed.seen, assessed.seen.names[0]
    interval = wilson_interval(seen.accuracy, seen.count) if first == "accuracy" else None
    numbers = {key: value if math.isfinite(value) else None for key, value in seen.point.items()}
    body = {
        "model": assessed.spec.model, "task": assessed.spec.task, "split": seen.split, **numbers, "interval": interval,
        "majority": assessed.majority, "data": assessed.facts, "spec": assessed.spec.to_dict(),
    }  # fmt: skip
    text = json.dumps(body, indent=1, allow_nan=False)
    if output == "-":
        print(text)
        return
    if output is not None:
        Path(output).write_text(text + "\n")
    show_assessed(console.answer_console(), assessed, interval)
