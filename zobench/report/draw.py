"""Makes charts of filled tables and of recorded timelines: what is drawn where, without drawing it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from zobench.predict import timelines as foretold
from zobench.predict.hardware import load as hardware_of
from zobench.predict.timelines import Timeline
from zobench.report import frames
from zobench.report.ahead import joined, places, whose
from zobench.report.cells import TableCell, flat, meets, not_run
from zobench.report.chart import Chart, Event, Mark, Panel, Series
from zobench.report.compose import Grid, hardware, measured_on, ratio, relative
from zobench.report.plot import Plot, TimelinePanel
from zobench.report.sheet import WARNING, plain, ranges
from zobench.report.table import Metric
from zobench.result import Outcome, Result
from zobench.runspec import FIELDS, INCIDENTAL
from zobench.runspec.registries import METRICS
from zobench.store import place_of

if TYPE_CHECKING:
    import pandas as pd

_UNMEASURED = "Nothing measured yet: `zobench reproduce {}` measures here what this machine can."
Key = tuple[str, str, str]
"""Row, column and metric of a cell."""


def chart(plot: Plot, grid: Grid, machine: str | None) -> Chart:
    """The figure of one machine's filled cells."""
    assert plot.table is not None
    cells = flat(grid)
    if not cells:  # all of its rows are shown only where they were measured
        return _nothing(plot, _UNMEASURED.format(plot.name))
    remarks = [plot.caption] if plot.caption else []
    if not any(cell.paper_value is not None for cell in cells) and plot.paper:
        remarks.append("The paper prints no numbers for this figure.")
    remarks += _caveats(cells)
    marks, reported = _drawn(frames.of_cells(plot.table, [(machine, grid)]), plot.table.metrics)
    if plot.kind == "heatmap":
        panels = _maps(plot, grid, machine)
    else:
        panels = [_panel(plot, grid, j, marks, reported) for j in range(len(grid[0]))]
    here = [measured_on(cells, machine)] if machine else []
    told = "; ".join([*here, *_predicted_for(cells), *_paper_source(plot, cells)])
    if not told:
        panels = [Panel(message=_UNMEASURED.format(plot.name))]
    return Chart(
        name=plot.name, kind=plot.kind, title=plot.title, source=told[:1].upper() + told[1:], panels=tuple(panels),
        remarks=tuple(remarks),
    )  # fmt: skip


def _predicted_for(cells: Sequence[TableCell]) -> list[str]:
    """For which GPU and program the marks are predicted, and how far off they may be."""
    ahead = [cell for cell in cells if cell.forecast and not_run(cell)]
    if not ahead:
        return []
    told = [f"predicted for {places(ahead)}, {whose(ahead)}"]
    within = joined(f"{100 * cell.forecast.share:.1f}" for cell in ahead if cell.forecast)
    return [*told, f"nine of ten of the papers' values were within {within} % of such"]


def _key(cell: TableCell) -> Key:
    return plain(cell.row.header), plain(cell.column.header), cell.metric.name


def _caveats(cells: Sequence[TableCell]) -> list[str]:
    """What a reader of the measured values must know; warnings that differ only in numbers as one."""
    told = dict.fromkeys(caveat for cell in cells if cell.value is not None for caveat in cell.caveats)
    one = ranges(caveat for caveat in told if caveat.startswith(WARNING))
    caveats = list(dict.fromkeys(one.get(caveat, caveat) for caveat in told))
    timed = [cell for cell in cells if cell.value is not None and cell.quantity is METRICS.get(cell.metric.name)]
    if any(cell.interval is None for cell in timed if cell.result and METRICS.get(cell.metric.name).timed):
        caveats.append("Without a 95 % interval: fewer than 6 steps were measured.")
    return caveats


def _paper_source(plot: Plot, cells: Sequence[TableCell]) -> list[str]:
    reported = [cell.paper for cell in cells if cell.paper is not None and cell.paper_value is not None]
    names = joined(f"{paper['paper']} {paper['artifact']}" for paper in reported)
    told = f"paper: {names}, on {joined(map(hardware, reported)) or 'hardware that it does not name'}"
    return [told] if reported else []


def _nothing(plot: Plot, message: str) -> Chart:
    remarks = (plot.caption,) if plot.caption else ()
    panels = (Panel(message=message),)
    return Chart(name=plot.name, kind=plot.kind, title=plot.title, source="", panels=panels, remarks=remarks)


def _panel(
    plot: Plot, grid: Grid, j: int, marks: Mapping[Key, Mark], reported: Mapping[Key, float | None]
) -> Panel:  # fmt: skip
    """Bars or lines of metric ``j``: a row per position, a column per series."""
    metric = grid[0][j][0].metric
    rows = [row[j] for row in grid]
    headers = tuple(cells[0].row.header for cells in rows)
    series = []
    for k, cell in enumerate(rows[0]):
        told = tuple(marks.get(_key(cells[k]), Mark()) for cells in rows)
        paper = tuple(reported.get(_key(cells[k])) for cells in rows)
        if any(mark.value is not None or mark.failure for mark in told) or any(value is not None for value in paper):
            series.append(Series(label=cell.column.header, marks=told, paper=paper))
    limit = plot.axes.limit if metric.name == "gpu_memory" else None
    return Panel(
        title=metric.header if len(grid[0]) > 1 else "",
        x_label=plot.axes.x,
        y_label=metric.header,
        positions=headers,
        xs=tuple(map(float, headers)) if plot.kind == "lines" else (),
        series=tuple(series),
        log_x=plot.axes.log_x,
        log_y=plot.axes.log_y,
        from_zero=True,
        limit=(limit[0] / metric.scale, limit[1]) if limit else None,
    )


def _in_unit(value: float | None, metric: Metric) -> float | None:
    return None if value is None else value / metric.scale


def _drawn(frame: pd.DataFrame, metrics: Sequence[Metric]) -> tuple[dict[Key, Mark], dict[Key, float | None]]:
    """What is drawn of each cell, in the unit of its axis, and what the paper reports: of ``frame`` the measured line,
    or the predicted one where nothing was run."""
    scales = {metric.name: metric.scale for metric in metrics}
    marks: dict[Key, Mark] = {}
    reported: dict[Key, float | None] = {}
    for line in frame.itertuples():
        key = line.row, line.column, line.metric
        value, low, high = (
            None if math.isnan(one) else one / scales[line.metric] for one in (line.value, line.low, line.high)
        )
        if line.source == "paper":
            reported[key] = value
        elif line.machine and line.status != "skipped":
            failure = _ENDINGS.get(line.status, "did not finish")
            marks[key] = Mark(value=value, low=low, high=high, source=line.source, failure=failure)
        elif not line.machine:  # whose interval is another than one of 95 %
            failure = "predicted out of memory" if value is None else ""
            marks.setdefault(key, Mark(value=value, source="predicted", failure=failure))
    return marks, reported


_ENDINGS = {"ok": "", "n/a": "", "oom": "out of memory"}
"""How a run ended -> why its place has no value; others did not finish."""


def _maps(plot: Plot, grid: Grid, machine: str | None) -> list[Panel]:
    """One map of what was measured and one of the paper's values, for every metric that has any."""
    made = [
        _map(plot, [row[j] for row in grid], told, of)
        for j in range(len(grid[0]))
        for told, of in ((f"measured on {machine}", lambda cell, base: relative(cell, base)[0]), ("paper", _reported))
    ]
    return [panel for panel in made if panel.series]


def _reported(cell: TableCell, base: TableCell | None) -> float | None:
    """The paper's value, or with ``base`` its ratio to that cell's; not of rows that the paper does not have."""
    value = None if cell.row.extra else cell.paper_value
    return value if base is None else ratio(value, base.paper_value)


def _map(
    plot: Plot, rows: Sequence[Sequence[TableCell]], told: str,
    of: Callable[[TableCell, TableCell | None], float | None],
) -> Panel:  # fmt: skip
    """``of``: the value of a cell, or its ratio to that of the second."""
    assert plot.table is not None
    headers, metric = [cell.column.header for cell in rows[0]], rows[0][0].metric
    base = headers.index(plot.table.baseline) if plot.table.baseline in headers else None
    series = []
    for cells in rows:
        values = [of(cell, None if base is None else cells[base]) for cell in cells]
        if any(value is not None for value in values):
            marks = tuple(Mark(value=value if base is not None else _in_unit(value, metric)) for value in values)
            series.append(Series(label=cells[0].row.header, marks=marks, paper=(None,) * len(marks)))
    label = metric.header if base is None else f"relative to {headers[base]}"
    title = told if len(plot.table.metrics) == 1 else f"{metric.header.partition(' (')[0]}, {told}"
    return Panel(
        title=title, x_label=plot.axes.x, y_label=label, positions=tuple(headers), series=tuple(series),
        limit=None if base is None else (1.0, f"1: as {headers[base]}"),
    )  # fmt: skip


def timelines(plot: Plot, results: Sequence[Result]) -> list[tuple[str | None, Chart]]:
    """The figure for each machine that recorded any of its panels; without one, what is predicted, once."""
    recorded = [result for result in results if result.outcome is Outcome.OK and _is_whole(result)]
    charts = []
    for machine in sorted({place_of(result) for result in recorded}):
        chosen = _same_runs(plot.lanes, [result for result in recorded if place_of(result) == machine])
        if chosen:
            charts.append((machine, _timeline(plot, chosen, machine)))
    if charts:
        return list(charts)
    return [(None, _timeline_ahead(plot))]


def _is_whole(result: Result) -> bool:
    """Whether the recorded lanes of a run show what it was run for: its checkpoint too, if it took any."""
    return any(result.spec.checkpoint == "none" or row[0] == "save" for row in result.timeline)


def _timeline_ahead(plot: Plot) -> Chart:
    """The figure of a timeline that nobody recorded: what is predicted of its panels, if anything is."""
    told = f"Nothing recorded yet: `zobench reproduce {plot.name}` records here what it can."
    found = {lane.title: one for lane in plot.lanes for one in foretold.stored() if meets(one.spec, lane.where)}
    if not found:
        return _nothing(plot, told)
    panels = [_panel_ahead(lane.title, found.get(lane.title)) for lane in plot.lanes]
    name = hardware_of(foretold.GPU).name
    disk = f"; a checkpoint goes to a disk of {foretold.DISK / 1e9:.0f} GB/s"
    saves = disk if any(one.spec.checkpoint != "none" for one in found.values()) else ""
    return Chart(
        name=plot.name, kind="timeline", title=plot.title, panels=tuple(panels),
        source=f"Predicted for one {name}, not measured: zobench's own engine on a virtual clock, "
        f"{_shared(found.values())}{saves}",
        remarks=(told, *([plot.caption] if plot.caption else [])),
    )  # fmt: skip


def _shared(runs: Iterable[Result | Timeline]) -> str:
    """The words that the labels of all have."""
    labels = [one.spec.label.split() for one in runs]
    return " ".join(word for word in labels[0] if all(word in label for label in labels))


def _panel_ahead(title: str, found: Timeline | None) -> Panel:
    if found is None:
        return Panel(title=title, message="No timeline is predicted of this case.")
    events = (Event(lane=a, kind=b, block=c, start=d, end=e) for a, b, c, d, e in found.events)
    return Panel(title=f"{title} (predicted)", events=tuple(events), source="predicted")


def _same_runs(lanes: Sequence[TimelinePanel], results: Sequence[Result]) -> dict[str, Result]:
    """For each panel a result, of runs that differ only in what the panels differ in; as many panels as possible, then
    with what the figure means rather than what it takes for it."""
    fields = {field for lane in lanes for field in lane.where}
    about = {field for field in fields if len({str(lane.where.get(field)) for lane in lanes}) > 1} | set(INCIDENTAL)
    groups: dict[tuple[Any, ...], dict[str, Result]] = {}
    for result in sorted(results, key=lambda result: result.spec.hash):
        key = tuple(getattr(result.spec, field) for field in FIELDS if field not in about)
        for lane in lanes:
            if meets(result.spec, lane.where):
                groups.setdefault(key, {}).setdefault(lane.title, result)
    ordered = sorted(groups.items(), key=lambda item: (
        -len(item[1]), sum(map(_stand_ins, lanes, map(item[1].get, (lane.title for lane in lanes)))), *map(str, item[0])
    ))  # fmt: skip
    return ordered[0][1] if ordered else {}


def _stand_ins(lane: TimelinePanel, result: Result | None) -> int:
    """In how many fields ``result`` has not the first value that the panel names."""
    return 0 if result is None else sum(getattr(result.spec, name) != values[0] for name, values in lane.where.items())


def _timeline(plot: Plot, chosen: Mapping[str, Result], machine: str) -> Chart:
    panels = [_recorded(lane.title, chosen.get(lane.title)) for lane in plot.lanes]
    first = next(iter(chosen.values()))
    description = first.environment.get("description", "")
    saves = any(result.spec.checkpoint != "none" for result in chosen.values())
    steps = "two measured steps" if saves else "measured step"
    remarks = [f"{_shared(chosen.values())}: the last {steps} of each run."]
    return Chart(
        name=plot.name,
        kind="timeline",
        title=plot.title,
        source=f"Measured on {machine}" + (f" ({description})" if description else ""),
        panels=tuple(panels),
        remarks=(*remarks, *([plot.caption] if plot.caption else [])),
    )


def _recorded(title: str, result: Result | None) -> Panel:
    if result is None:
        return Panel(title=title, message="This case was not measured on this machine.")
    begin = min(float(row[3]) for row in result.timeline)
    events = tuple(
        Event(lane=str(lane), kind=str(kind), block=int(block), start=float(start) - begin, end=float(end) - begin)
        for lane, kind, block, start, end in result.timeline
    )
    return Panel(title=title, events=events)
