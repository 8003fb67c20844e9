"""Curves of fine-tuning runs in folders of runs or of results: a line for each run, named by what differs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from zobench.cost import budget
from zobench.durable import journal
from zobench.machine.texts import json_of
from zobench.report import frames
from zobench.report.chart import Chart
from zobench.report.contents import Artifact
from zobench.report.contest import sized
from zobench.report.plot import Axes, Plot
from zobench.report.recorded import Curve, chart_of_curves, curve, measured_on, shared
from zobench.result import Outcome, Result, finite
from zobench.runspec import DECLARED, RunSpec, labels
from zobench.store import Store, place_of, reading
from zobench.store.files import RESULT
from zobench.training.callbacks import JSONL_FILE
from zobench.training.origin import JOURNAL


def load(folders: Iterable[Path]) -> tuple[list[Result], list[str]]:
    """The fine-tuning runs in ``folders``, each of which is a run's, holds several of these, or is a results folder;
    and a line for each result that could not be read. Of a run that goes on, what it has evaluated so far."""
    runs: list[Result] = []
    problems: list[str] = []
    for folder in folders:
        paths = (folder, *sorted(folder.iterdir()))
        inside = [path for path in paths if (path / JSONL_FILE).is_file() or (path / RESULT).is_file()]
        store = Store(folder)
        for path in inside:
            try:
                runs.append(_run(path))
            except ValueError as error:
                problems.append(str(error))
        runs += [] if inside else store.load()
        problems += store.problems
    drawn = [run for run in runs if run.is_ok and run.evaluation.get("curve")]  # one that is here twice once
    return list({(run.spec.hash, _where(run), str(run.evaluation["curve"])): run for run in drawn}.values()), problems


def _run(folder: Path) -> Result:
    """The result of the run in ``folder``; of a run that has not ended a partial one, with its curve alone."""
    try:
        if (folder / RESULT).is_file():
            return reading.read(folder / RESULT)
        text = (folder / JSONL_FILE).read_text()
        rows = [json_of(line) for line in text[: text.rfind("\n") + 1].splitlines()]  # the last may be half written
        spec = RunSpec.from_stored(journal.read(folder / JOURNAL)[0]["spec"])
        if not all(isinstance(row, dict) and type(row["step"]) is int for row in rows):
            raise ValueError(f"a row of {JSONL_FILE} has no step")
        seen = [row for row in rows if "dev_loss" in row]
        scores = [key for key in (seen or [{}])[0] if key.startswith("dev_") and key != "dev_loss"]
        if seen and not scores:
            raise ValueError(f"{JSONL_FILE} has no score")
        points = [[row["step"], *map(_number, (row["dev_loss"], *(row[key] for key in scores)))] for row in seen]
    except (KeyError, TypeError, ValueError, OverflowError, OSError) as error:
        raise ValueError(f"{folder} must hold a fine-tuning run, but is damaged ({error}); leave it out") from error
    evaluation = {"curve": points, "scores": [name.removeprefix("dev_") for name in scores]}
    return Result(spec=spec, outcome=Outcome.OK, evaluation=evaluation, partial=True)


def _where(run: Result) -> str:
    """Where a run was measured; "" of one that has not ended."""
    return place_of(run) if run.environment.machine else ""


def _number(value: float | None) -> float | None:
    return None if value is None else finite(0.0 + value)  # of what is no number, or too large for one, an error


def figure(runs: Sequence[Result], *, forwards: bool) -> Artifact:
    """Loss and score on dev of each of ``runs`` by step, or by the forwards of a batch that its steps cost.

    Raises ``ValueError``, one line, for no runs, too many, or runs that are scored differently.
    """
    from zobench.report.figures.style import SWATCHES

    scores = {run.scores[0] for run in runs}
    if not 0 < len(runs) <= len(SWATCHES):
        raise ValueError(
            f"a figure of curves must have 1 to {len(SWATCHES)} fine-tuning runs, but got {len(runs)}; choose runs "
            "with --where KEY=VALUE, or name other folders"
        )
    if len(scores) > 1:
        raise ValueError(
            f"runs of one figure must have one score, but got {' and '.join(sorted(scores))}; choose a task with "
            "--where task=NAME"
        )
    plot = Plot(
        name="curves", kind="curves", title="Fine-tuning: loss and score on dev", panels=(),
        caption="A backward pass counts as two forwards, as one where the weights are frozen." if forwards else "",
        axes=Axes(x="Forwards of a batch" if forwards else "Step"),
    )  # fmt: skip
    lines = {label: _along(run, forwards) for label, run in zip(_labels(runs), runs, strict=True)}
    chart = chart_of_curves(plot, lines, scores.pop(), (f"{shared(runs)}.",), measured_on(runs))
    numeric: Chart = replace(chart, panels=tuple(replace(panel, positions=()) for panel in reversed(chart.panels)))
    return Artifact(
        name=plot.name, kind="figure", title=plot.title, paper="", runner="", sheets=(),
        frame=frames.of_charts([numeric]), charts=(numeric,),
    )  # fmt: skip


def _along(run: Result, forwards: bool) -> Curve:
    cost = budget.forwards(sized(run.spec)) if forwards else 1
    return {step * cost: point for step, point in curve(run).items()}


def _labels(runs: Sequence[Result]) -> list[str]:
    """Returns a label for each run that tells it from the others, its method first; where it is alone, its method."""
    specs, places = [run.spec for run in runs], [_where(run) for run in runs]
    varied = [name for name in DECLARED if len({str(getattr(spec, name)) for spec in specs}) > 1]
    parts: list[str] = []
    for texts in (labels(specs), [spec.label_with(varied) for spec in specs]):  # the second says usual values too
        words = [[spec.method, *text.split()] for spec, text in zip(specs, texts, strict=True)]
        if len(set(filter(None, places))) > 1:
            words = [[*row, where] for row, where in zip(words, places, strict=True)]
        common = set.intersection(*map(set, words))
        parts = [" ".join(dict.fromkeys(word for word in row if word not in common)) for row in words]
        if all(parts) and len(set(parts)) == len(parts):
            break
    names = [part or spec.method for part, spec in zip(parts, specs, strict=True)]
    distinct = [f"{name} {spec.hash}" if names.count(name) > 1 else name
                for name, spec in zip(names, specs, strict=True)]  # fmt: skip
    numbers = [f" {distinct[: i + 1].count(name)}" * (distinct.count(name) > 1) for i, name in enumerate(distinct)]
    ends = [number + " (so far)" * run.partial for number, run in zip(numbers, runs, strict=True)]
    return [name + end for name, end in zip(distinct, ends, strict=True)]
