"""Charts of what single runs recorded: timelines of a step, and curves of loss and accuracy on dev."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from zobench import models
from zobench.cost.hardware import load as hardware_of
from zobench.report.cells import meets
from zobench.report.chart import Chart, Event, Mark, Panel, Series
from zobench.report.choice import dev_loss
from zobench.report.plot import Plot, nothing
from zobench.report.table import Case
from zobench.result import Outcome, Result
from zobench.runspec import FIELDS, INCIDENTAL, RunSpec
from zobench.runspec.registries import METRICS
from zobench.store import place_of
from zobench.store.query import grouped

Charts = list[tuple[str | None, Chart]]
"""The figure for each machine; for none where nothing was recorded."""
Curve = Mapping[float, tuple[float | None, float | None]]
"""Step, or forwards up to it -> (loss, accuracy as a share) on dev."""
_ALIKE = ("model", "task", "shots", "train_size", "dev_size")
"""Fields in which the runs of one chart of curves agree; in all others they may differ, and the titles say in which."""
DATA = Path(__file__).with_name("timelines.json")
"""Timelines of steps that nobody ran, which are drawn where nothing was recorded; ``python -m tools.timelines`` writes
them, with the real engine and savers on a virtual clock."""
GPU, DISK = "a100-80gb-sxm", 3e9
"""The GPU of the pictures, and bytes/s of the disk that checkpoints go to."""
EVERY = 4
"""Steps from one checkpoint to the next."""
BASE: Mapping[str, Any] = {"model": "OPT-1.3B", "dtype": "fp32", "engine": "offload"}
FORMS: tuple[Mapping[str, Any], ...] = (
    {}, {"overlap": False}, {"fused_update": False},
    *({"checkpoint": kind, "checkpoint_every": EVERY} for kind in ("async", "journal", "sync")),
)  # fmt: skip
"""The fields in which each differs from :data:`BASE`."""


def spec_of(form: Mapping[str, Any]) -> RunSpec:
    """One of :data:`FORMS` as a cell."""
    return models.checked(RunSpec.from_dict({**BASE, **form}), "cuda:0")


@functools.cache
def stored() -> tuple[Result, ...]:
    """The timelines of the file, by :data:`FORMS`: operations of one step, or of the two beside a checkpoint."""
    timelines = zip(FORMS, json.loads(DATA.read_text(encoding="utf-8")), strict=True)
    return tuple(Result(spec=spec_of(form), outcome=Outcome.OK, timeline=rows) for form, rows in timelines)


def timelines(plot: Plot, results: Sequence[Result]) -> Charts:
    """The figure of each machine that recorded a timeline of any panel; without one, the predicted timeline."""
    fields = {field for panel in plot.panels for field in panel.where}
    about = {field for field in fields if len({str(panel.where.get(field)) for panel in plot.panels}) > 1}
    alike = [field for field in FIELDS if field not in about | set(INCIDENTAL)]
    kept = sorted(filter(_is_whole, results), key=lambda result: result.spec.hash)
    return _by_machine(plot, kept, alike, _timeline) or [(None, _predicted_timeline(plot))]


def curves(plot: Plot, results: Sequence[Result]) -> Charts:
    """The figure of each machine with stored curves: of each title, and of each method that none names, the run with
    the least loss on dev. Without one, a figure with a message."""
    kept = sorted(
        (result for result in results if result.outcome is Outcome.OK and len(curve(result)) > 1),
        key=lambda result: (dev_loss(result), result.spec.hash),
    )
    message = f"Nothing recorded yet: `zobench sweep {plot.runner}` records here what it can."
    conditions = [panel.where for panel in plot.panels]
    common = {name: values for name, values in conditions[0].items() if all(c.get(name) == values for c in conditions)}
    named = {method for condition in conditions for method in condition.get("method", ())}
    methods = dict.fromkeys(run.spec.method for run in kept if run.spec.method not in named)
    others = [Case(title=method, where={**common, "method": (method,)}) for method in methods]
    plot = replace(plot, panels=(*plot.panels, *others))
    return _by_machine(plot, kept, _ALIKE, _curves) or [(None, nothing(plot, message))]


def _by_machine(
    plot: Plot, results: Sequence[Result], alike: Sequence[str],
    made: Callable[[Plot, Mapping[str, Result]], Chart],
) -> Charts:  # fmt: skip
    chosen = [(name, _fullest(plot.panels, runs, alike)) for name, runs in grouped(results, place_of).items()]
    return [(name, made(plot, runs)) for name, runs in chosen if runs]


def _fullest(panels: Sequence[Case], results: Sequence[Result], alike: Sequence[str]) -> dict[str, Result]:
    """Returns for each title the first result that satisfies its conditions, all of them equal in the fields ``alike``;
    for as many titles as possible, then with what the figure means rather than what it takes for it."""
    groups: dict[tuple[str, ...], dict[str, Result]] = {}
    for result in results:
        key = tuple(str(getattr(result.spec, field)) for field in alike)
        for panel in panels:
            if meets(result.spec, panel.where):
                groups.setdefault(key, {}).setdefault(panel.title, result)

    def stand_ins(chosen: Mapping[str, Result]) -> int:
        """The number of fields in which results do not have the value that their panel names first."""
        pairs = [(chosen[panel.title].spec, panel.where) for panel in panels if panel.title in chosen]
        return sum(getattr(spec, name) != values[0] for spec, where in pairs for name, values in where.items())

    best = min(groups, key=lambda key: (-len(groups[key]), stand_ins(groups[key]), key), default=None)
    return {} if best is None else groups[best]


def measured_on(results: Iterable[Result]) -> str:
    """Where the ``results`` were measured, each machine once; "" where none of them says."""
    described = {place_of(run): run.environment.description for run in results if run.environment.machine}
    places = [name + (f" ({text})" if text else "") for name, text in described.items()]
    return f"Measured on {'; '.join(places)}" if places else ""


def shared(runs: Iterable[Result]) -> str:
    """The words that the labels of all ``runs`` have in common."""
    labels = [run.spec.label.split() for run in runs]
    return " ".join(word for word in labels[0] if all(word in label for label in labels))


# ---- timelines


def _is_whole(result: Result) -> bool:
    """Whether the recorded lanes of a run show what it was run for: its checkpoint too, if it took any."""
    shown = any(result.spec.checkpoint == "none" or row[0] == "save" for row in result.timeline)
    return result.outcome is Outcome.OK and shown


def _timeline(plot: Plot, chosen: Mapping[str, Result]) -> Chart:
    saves = any(result.spec.checkpoint != "none" for result in chosen.values())
    steps = "two measured steps" if saves else "measured step"
    return Chart(
        name=plot.name, kind="timeline", title=plot.title,
        source=measured_on([next(iter(chosen.values()))]),
        panels=_lanes(plot, chosen, "This case was not measured on this machine."),
        remarks=(f"{shared(chosen.values())}: the last {steps} of each run.", *filter(None, [plot.caption])),
    )  # fmt: skip


def _lanes(plot: Plot, runs: Mapping[str, Result], missing: str, source: str = "measured") -> tuple[Panel, ...]:
    """The panels of ``plot``, each with the operations of the run of its title, or that it is ``missing``."""
    panels = []
    for title in (panel.title for panel in plot.panels):
        rows = runs[title].timeline if title in runs else []
        # the virtual clock of a prediction begins with its step
        begin = min((float(row[3]) for row in rows), default=0.0) if source == "measured" else 0.0
        events = tuple(
            Event(lane=str(lane), kind=str(kind), block=int(block), start=float(start) - begin, end=float(end) - begin)
            for lane, kind, block, start, end in rows
        )
        heading = f"{title} (predicted)" if rows and source == "predicted" else title
        panels.append(Panel(title=heading, events=events, source=source, message="" if rows else missing))
    return tuple(panels)


def _predicted_timeline(plot: Plot) -> Chart:
    """The figure of a timeline that nobody recorded: what is predicted of its panels, if anything is."""
    message = f"Nothing recorded yet: `zobench reproduce {plot.name}` records here what it can."
    cases = {panel.title: run for panel in plot.panels for run in stored() if meets(run.spec, panel.where)}
    if not cases:
        return nothing(plot, message)
    disk = f"; a checkpoint goes to a disk of {DISK / 1e9:.0f} GB/s"
    saves = disk * any(run.spec.checkpoint != "none" for run in cases.values())
    return Chart(
        name=plot.name, kind="timeline", title=plot.title,
        panels=_lanes(plot, cases, "No timeline is predicted of this case.", "predicted"),
        source=f"Predicted for one {hardware_of(GPU).name}, not measured: zobench's own engine on a virtual "
        f"clock, {shared(cases.values())}{saves}",
        remarks=(message, *filter(None, [plot.caption])),
    )  # fmt: skip


# ---- curves


def curve(result: Result) -> Curve:
    """The evaluations of a run, of which step 0 is its start; what was not finite is None. Of a task with another
    score than an accuracy, that stands in its place."""
    return {step: (loss, first) for step, loss, first, *_ in result.evaluation.get("curve", [])}


def _curves(plot: Plot, chosen: Mapping[str, Result]) -> Chart:
    from zobench.report.figures.style import SWATCHES

    first = next(iter(chosen.values()))
    remark = f"{first.spec.model} on {first.spec.task_name}: of each kind of run the one with the least loss on dev."
    titles = [panel.title for panel in plot.panels if panel.title in chosen]
    if left := titles[len(SWATCHES) :]:
        remark += f" Not drawn: {', '.join(left)}."
    lines = {title: curve(chosen[title]) for title in titles[: len(SWATCHES)]}
    return chart_of_curves(plot, lines, first.scores[0], (remark,), measured_on([first]))


def chart_of_curves(plot: Plot, lines: Mapping[str, Curve], name: str, remarks: Sequence[str], source: str) -> Chart:
    """A panel of the score called ``name`` and one of the loss; ``lines``: the curves by their labels."""
    score = METRICS.get(name)
    unit, size = next(iter(score.units.items()))
    label = f"{score.name.replace('_', ' ').capitalize()} on dev" + (f" ({unit})" if unit else "")
    return Chart(
        name=plot.name, kind="lines", title=plot.title, source=source,
        panels=(_lines(plot, label, lines, 1, 1 / size), _lines(plot, "Loss on dev", lines, 0, 1.0)),
        remarks=(*remarks, *filter(None, [plot.caption])),
    )  # fmt: skip


def _lines(plot: Plot, label: str, lines: Mapping[str, Curve], column: int, scale: float) -> Panel:
    """Each of the ``lines``: of its evaluations the loss (0) or the score (1), times ``scale``."""
    steps = sorted({step for line in lines.values() for step in line})

    def mark(line: Curve, step: float) -> Mark:
        value = line[step][column] if step in line else None
        return Mark(value=None if value is None else value * scale)

    series = tuple(
        Series(label=title, marks=tuple(mark(line, step) for step in steps), paper=(None,) * len(steps))
        for title, line in lines.items()
    )
    return Panel(
        x_label=plot.axes.x or "Step", y_label=label, positions=tuple(map(str, steps)), xs=tuple(map(float, steps)),
        series=series,
    )  # fmt: skip
