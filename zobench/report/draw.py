"""Makes charts of filled tables, and of a protocol's methods as points: what is drawn where, without drawing it."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Sequence

from zobench.report.cells import Grid, TableCell, flat, not_run
from zobench.report.chart import Chart, Mark, Panel, Series
from zobench.report.compose import measured_on, paper_source, relative
from zobench.report.contest import BUSY, EDGE, ContestTable, MethodRanking, is_disturbed
from zobench.report.forecast_text import joined, places, ratio, whose
from zobench.report.plot import Plot, nothing
from zobench.report.sheet import WARNING, ranges
from zobench.report.table import Metric
from zobench.result import Outcome

_UNMEASURED = "Nothing measured yet: `zobench reproduce {}` measures here what this machine can."


def chart(plot: Plot, grid: Grid, machine: str | None) -> Chart:
    """The figure of one machine's filled cells."""
    assert plot.table is not None
    cells = flat(grid)
    if not cells:  # all of its rows are shown only where they were measured
        return nothing(plot, _UNMEASURED.format(plot.name))
    is_unprinted = bool(plot.paper) and not any(cell.paper_value is not None for cell in cells)
    remarks = [plot.caption, "The paper prints no numbers for this figure." * is_unprinted, *_caveats(cells)]
    if plot.kind == "heatmap":
        panels = _maps(plot, grid, machine)
    else:
        panels = [_panel(plot, grid, j, machine) for j in range(len(grid[0]))]
    where = [measured_on(cells, machine)] if machine else []
    source = "; ".join([*where, *_predicted_for(cells), *paper_source(cells)])
    if not source:
        panels = [Panel(message=_UNMEASURED.format(plot.name))]
    return Chart(
        name=plot.name, kind=plot.kind, title=plot.title, source=source[:1].upper() + source[1:], panels=tuple(panels),
        remarks=tuple(filter(None, remarks)),
    )  # fmt: skip


def _predicted_for(cells: Sequence[TableCell]) -> list[str]:
    """Returns the GPU and program for which the marks are predicted, and how far off they may be."""
    cells_ahead = [cell for cell in cells if cell.forecast and not_run(cell)]
    if not cells_ahead:
        return []
    words = [f"predicted for {places(cells_ahead)}, {whose(cells_ahead)}"]
    within = joined(f"{100 * cell.forecast.share:.1f}" for cell in cells_ahead if cell.forecast)
    return [*words, f"nine of ten of the papers' values were within {within} % of such"]


def _caveats(cells: Sequence[TableCell]) -> list[str]:
    """Returns the cautions for readers of the measured values; warnings that differ only in numbers as one."""
    every = dict.fromkeys(caveat for cell in cells if cell.value is not None for caveat in cell.caveats)
    merged = ranges(caveat for caveat in every if caveat.startswith(WARNING))
    caveats = list(dict.fromkeys(merged.get(caveat, caveat) for caveat in every))
    timed = [cell for cell in cells if cell.value is not None and cell.quantity is cell.metric.quantity]
    if any(cell.interval is None for cell in timed if cell.result and cell.metric.quantity.timed):
        caveats.append("Without a 95 % interval: fewer than 6 steps were measured.")
    return caveats


def _panel(plot: Plot, grid: Grid, j: int, machine: str | None) -> Panel:
    """Bars or lines of metric ``j``: a column per series, a row per position; bars only where anything is drawn."""
    metric = grid[0][j][0].metric
    rows = [row[j] for row in grid]
    if plot.kind == "bars":
        rows = [cells for cells in rows if any(_is_drawn(cell, machine) for cell in cells)] or rows
    headers = tuple(cells[0].row.header for cells in rows)
    series = []
    for k, cell in enumerate(rows[0]):
        if any(_is_drawn(cells[k], machine) for cells in rows):
            marks = tuple(_mark(cells[k], machine) for cells in rows)
            paper = tuple(_in_unit(cells[k].paper_value, metric) for cells in rows)
            series.append(Series(label=cell.column.header, marks=marks, paper=paper))
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
        limit=(limit.value / metric.scale, limit.label) if limit else None,
    )


def _is_drawn(cell: TableCell, machine: str | None) -> bool:
    """Whether the cell has a mark, which may say how its run failed, or a value of the paper."""
    mark = _mark(cell, machine)
    return mark.value is not None or bool(mark.failure) or cell.paper_value is not None


def _in_unit(value: float | None, metric: Metric) -> float | None:
    return None if value is None else value / metric.scale


def _mark(cell: TableCell, machine: str | None) -> Mark:
    """Returns the mark of a cell, in the unit of its axis: the measured value, or without a run the predicted one."""
    if machine is not None and cell.result is not None and not not_run(cell):
        is_single = cell.value is not None and len(cell.results) == 1  # of several it is their least and their most
        low, high = cell.interval if cell.interval and is_single else (None, None)
        low, value, high = (_in_unit(number, cell.metric) for number in (low, cell.value, high))
        failure = _ENDINGS.get(cell.result.outcome, "did not finish")
        return Mark(value=value, low=low, high=high, source=cell.quantity.source, failure=failure)
    if cell.forecast is None:
        return Mark()
    failure = "predicted out of memory" if cell.forecast.value is None else ""
    return Mark(value=_in_unit(cell.forecast.value, cell.metric), source="predicted", failure=failure)


_ENDINGS = {Outcome.OK: "", Outcome.OOM: "out of memory"}
"""How a run ended -> why its place has no value; others did not finish."""


def _maps(plot: Plot, grid: Grid, machine: str | None) -> list[Panel]:
    """One map of what was measured and one of the paper's values, for every metric that has any."""
    made = [
        _map(plot, [row[j] for row in grid], kind, of)
        for j in range(len(grid[0]))
        for kind, of in ((f"measured on {machine}", lambda cell, base: relative(cell, base)[0]), ("paper", _reported))
    ]
    return [panel for panel in made if panel.series]


def _reported(cell: TableCell, base: TableCell | None) -> float | None:
    """The paper's value, or with ``base`` its ratio to that cell's; not of rows that the paper does not have."""
    value = None if cell.row.extra else cell.paper_value
    return value if base is None else ratio(value, base.paper_value)


def _map(
    plot: Plot, rows: Sequence[Sequence[TableCell]], kind: str,
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
    title = kind if len(plot.table.metrics) == 1 else f"{metric.header.partition(' (')[0]}, {kind}"
    return Panel(
        title=title, x_label=plot.axes.x, y_label=label, positions=tuple(headers), series=tuple(series),
        limit=None if base is None else (1.0, f"1: as {headers[base]}"),
    )  # fmt: skip


def pareto(plot: Plot, ranked: Sequence[MethodRanking]) -> list[tuple[str | None, Chart]]:
    """The figure for each machine, with a panel for each model of which a method is finished; or the message."""
    assert plot.contest is not None
    finished = [ranking for ranking in ranked if ranking.finished]
    by_machine = itertools.groupby(finished, key=lambda ranking: ranking.machine)
    message = f"Nothing measured yet: `zobench sweep {plot.runner}` measures here what it can."
    charts: list[tuple[str | None, Chart]] = [
        (machine, _of_machine(plot, plot.contest, list(shown))) for machine, shown in by_machine
    ]
    return charts or [(None, nothing(plot, message))]


def _of_machine(plot: Plot, table: ContestTable, ranked: Sequence[MethodRanking]) -> Chart:
    first = ranked[0]
    edges = any(standing.is_edge for ranking in ranked for standing in ranking.finished)
    remark = (
        f"Every run has {table.protocol.amount:g} {table.protocol.unit}. Means over seeds; intervals: of the test set, "
        "which all seeds share. Below and right of the line a method is beaten in both by another."
    )
    remarks = (remark, EDGE * edges, BUSY * any(map(is_disturbed, ranked)), plot.caption)
    return Chart(
        name=plot.name, kind="pareto", title=plot.title,
        source=f"Measured on {first.machine}" + (f" ({first.description})" if first.description else ""),
        panels=tuple(map(_points, ranked)), remarks=tuple(filter(None, remarks)),
    )  # fmt: skip


def _points(ranking: MethodRanking) -> Panel:
    shown = [standing for standing in ranking.finished if standing.step_times]
    marks = []
    for standing in shown:
        assert standing.scores is not None
        mean, low, high = standing.scores
        marks.append(Mark(value=100 * mean, low=100 * low, high=100 * high))
    return Panel(
        title=f"{ranking.spec.model}, {ranking.spec.task_name}", x_label="Step (s)", y_label="Test (%)",
        positions=tuple(standing.header + " (edge)" * standing.is_edge for standing in shown),
        xs=tuple(statistics.fmean(standing.step_times) for standing in shown),
        series=(Series(label="", marks=tuple(marks), paper=(None,) * len(marks)),), log_x=True,
        sizes=tuple(statistics.fmean(standing.memories) / 2**20 if standing.memories else None for standing in shown),
        size_unit="MB of memory",
    )  # fmt: skip
