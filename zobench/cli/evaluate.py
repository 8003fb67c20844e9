"""The command evaluate: what a model, or a run's best weights, come to on a task."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from zobench.cli import common, console
from zobench.cli.common import app, changed, named
from zobench.cli.usage import TUNE
from zobench.runspec import suggestion
from zobench.session.inputs import check_folder, check_json, check_words
from zobench.stats.intervals import wilson_interval

if TYPE_CHECKING:
    from zobench.finetune.assess import Assessed


@app.command(rich_help_panel=TUNE)
def evaluate(
    run: Annotated[Path | None, typer.Argument(metavar="RUN", help="A fine-tuning run's folder, or --model.")] = None,
    model: common.Model = None, name: common.Name = None, task: common.Task = None,
    split: Annotated[str, typer.Option(help="test or dev.")] = "test",
    data_dir: common.DataDir = None, weights_path: common.WeightsPath = None, seq_len: common.SeqLen = None,
    dtype: common.Dtype = None,
    batch_size: common.BatchSize = None, changes: common.Changes = None, device: common.Device = "auto",
    output: common.Json = None,
    quiet: common.Quiet = False,
) -> None:  # fmt: skip
    """Evaluate a model, or the best weights of a run, on a task. Nothing is trained or stored."""
    given = {"model": model, "name": name, "task": task, "seq_len": seq_len, "dtype": dtype, "batch_size": batch_size}
    values = changed(named(changes, **given, weights_path=weights_path))
    check_folder("--data-dir", data_dir)
    check_json(output)
    check_words(values)
    from zobench.finetune import usual_data_dir
    from zobench.finetune.assess import SPLITS, EndedRun, assess
    from zobench.measure.threads import settle
    from zobench.session.tuning import evaluated_spec

    if split not in SPLITS:
        raise ValueError(f"`--split` must be test or dev, but got {split!r}; {suggestion(split, SPLITS)}")
    if (run is None) == ("model" not in values):
        raise ValueError("`evaluate` needs RUN or --model, but got both or neither; name one of them")
    kept = None if run is None else EndedRun.of(run)
    spec, why = evaluated_spec(values, kept, device)
    console.say(why, settle(), f"seq_len: {spec.seq_len}")
    with console.error_console().status(f"evaluating {spec.model} on {spec.task_name}"):
        assessed = assess(spec, split, run=kept, data_dir=data_dir or usual_data_dir(), say=console.say)
    _show(assessed, output)


def _show(assessed: Assessed, output: str | None) -> None:
    """Prints a table of one row, and writes the same as JSON to the file ``output``; "-" prints just that."""
    from zobench.cli.tuning_view import show_assessed

    seen, first = assessed.seen, assessed.seen.names[0]
    interval = wilson_interval(seen.accuracy, seen.count) if first == "accuracy" else None
    numbers = {key: value if math.isfinite(value) else None for key, value in seen.point.items()}
    body = {
        "model": assessed.spec.model, "task": assessed.spec.task, "split": seen.split, **numbers, "interval": interval,
        "majority": assessed.majority, "data": assessed.facts, "spec": assessed.spec.to_dict(),
    }  # fmt: skip
    if not console.write_json(output, body):
        show_assessed(console.answer_console(), assessed, interval)
