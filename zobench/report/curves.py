"""Curves: loss and accuracy on dev against the step, of the stored fine-tuning runs, as a chart of lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from zobench.report.cells import meets
from zobench.report.chart import Chart, Mark, Panel, Series
from zobench.report.choice import dev_loss
from zobench.report.plot import Plot
from zobench.result import Outcome, Result
from zobench.runspec.registries import METRICS
from zobench.store import place_of

Curve = Mapping[int, tuple[float | None, float | None]]
"""Step -> (loss, accuracy as a share) on dev."""

_ALIKE = ("model", "task", "shots", "train_size", "dev_size")
"""Fields in which the runs of one chart agree; in all others they may differ, and the titles say in which."""


def curve(result: Result) -> Curve:
    """The evaluations of a run, of which step 0 is its start; what was not finite is None. Of a task with another
    score than an accuracy, that stands in its place."""
    return {step: (loss, first) for step, loss, first, *_ in result.evaluation.get("curve", [])}


def curves(plot: Plot, results: Sequence[Result]) -> list[tuple[str | None, Chart]]:
    """The figure for each machine that has any of its curves; without one, the message once."""
    kept = [result for result in results if result.outcome is Outcome.OK and len(curve(result)) > 1]
    machines = sorted({place_of(result) for result in kept})
    chosen = {name: _chosen(plot, [result for result in kept if place_of(result) == name]) for name in machines}
    if charts := [(name, _chart(plot, runs, name)) for name, runs in chosen.items() if runs]:
        return list(charts)
    message = f"Nothing recorded yet: `zobench sweep {plot.runner}` records here what it can."
    return [(None, Chart(name=plot.name, kind="lines", title=plot.title, source="", panels=(Panel(message=message),)))]


def _chosen(plot: Plot, results: Sequence[Result]) -> dict[str, Result]:
    """For each title its run with the least loss on dev, of runs of one model and task; as many titles as possible."""
    groups: dict[tuple[str, ...], dict[str, Result]] = {}
    for result in sorted(results, key=lambda result: (dev_loss(result), result.spec.hash)):
        key = tuple(str(getattr(result.spec, field)) for field in _ALIKE)
        for lane in plot.lanes:
            if meets(result.spec, lane.where):
                groups.setdefault(key, {}).setdefault(lane.title, result)
    ordered = sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))
    return ordered[0][1] if ordered else {}


def _chart(plot: Plot, chosen: Mapping[str, Result], machine: str) -> Chart:
    titles = [lane.title for lane in plot.lanes if lane.title in chosen]
    lines = [curve(chosen[title]) for title in titles]
    steps = sorted({step for line in lines for step in line})
    first = next(iter(chosen.values()))
    description = first.environment.get("description", "")
    spec, score = first.spec, METRICS.get(first.scores[0])
    unit, size = next(iter(score.units.items()))
    told = f"{score.name.replace('_', ' ').capitalize()} on dev" + (f" ({unit})" if unit else "")
    remarks = [
        f"{spec.model} on {spec.task_name}: of each kind of run the one with the least loss on dev.",
        plot.caption,
    ]
    return Chart(
        name=plot.name,
        kind="lines",
        title=plot.title,
        source=f"Measured on {machine}" + (f" ({description})" if description else ""),
        panels=(
            _panel(told, plot, steps, titles, [_values(line, steps, 1, 1 / size) for line in lines]),
            _panel("Loss on dev", plot, steps, titles, [_values(line, steps, 0, 1.0) for line in lines]),
        ),
        remarks=tuple(filter(None, remarks)),
    )


def _values(line: Curve, steps: Sequence[int], column: int, scale: float) -> tuple[Mark, ...]:
    numbers = [line[step][column] if step in line else None for step in steps]
    return tuple(Mark(value=None if value is None else value * scale) for value in numbers)


def _panel(
    name: str, plot: Plot, steps: Sequence[int], titles: Sequence[str], marks: Sequence[tuple[Mark, ...]]
) -> Panel:
    series = [
        Series(label=title, marks=own, paper=(None,) * len(own)) for title, own in zip(titles, marks, strict=True)
    ]
    return Panel(
        x_label=plot.axes.x or "Step", y_label=name, positions=tuple(map(str, steps)), xs=tuple(map(float, steps)),
        series=tuple(series),
    )  # fmt: skip
