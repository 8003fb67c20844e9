"""Cells as tidy CSV: one row per value, in base units and full precision."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence

from zobench.machine.texts import CsvWriter
from zobench.predict.forecast import Forecast
from zobench.report.cells import TableCell
from zobench.report.chart import Chart
from zobench.report.compose import Grid, hardware
from zobench.report.sheet import Sheet, plain
from zobench.report.table import Table
from zobench.result import Outcome
from zobench.runspec.registries import METRICS

COLUMNS = (
    *("table", "source", "machine", "hardware", "row", "column", "metric", "unit", "value", "status", "reason"),
    *("device", "dtype", "tier", "spec_hash", "notes"),
)


def write(table: Table, grids: Iterable[tuple[str | None, Grid]]) -> str:
    """Measured values of every machine, then what is predicted and the papers' values, once each."""
    stream = io.StringIO()
    writer = CsvWriter(stream, COLUMNS)
    papers: dict[tuple[str, str, str], dict[str, str]] = {}
    ahead: dict[tuple[str, str, str], dict[str, str]] = {}
    for machine, grid in grids:
        for cell in _cells(grid):
            if machine is not None and cell.result is not None:
                writer.writerow({**_place(table, cell), **_measured(cell, machine)})
            place = _place(table, cell)
            if cell.forecast is not None:
                ahead.setdefault(
                    (place["row"], place["column"], place["metric"]), {**place, **_predicted(cell.forecast)}
                )
            if cell.paper is not None:
                papers.setdefault((place["row"], place["column"], place["metric"]), {**place, **_paper(cell)})
    for row in (*ahead.values(), *papers.values()):
        writer.writerow(row)
    return stream.getvalue()


def _cells(grid: Grid) -> Iterator[TableCell]:
    return (cell for row in grid for group in row for cell in group)


def _place(table: Table, cell: TableCell) -> dict[str, str]:
    return {
        "table": table.name,
        "row": plain(cell.row.header),
        "column": plain(cell.column.header),
        "metric": cell.metric.name,
        "unit": METRICS.get(cell.metric.name).base_unit,
    }


def _measured(cell: TableCell, machine: str) -> dict[str, str]:
    assert cell.result is not None
    result = cell.result
    available = result.outcome is not Outcome.OK or cell.value is not None
    return {
        "source": "measured",
        "machine": machine,
        "hardware": plain(str(result.environment.get("description", ""))),
        "value": "" if cell.value is None else repr(cell.value),
        "status": str(result.outcome) if available else "n/a",
        "reason": plain(result.reason),
        "device": plain(result.spec.device),
        "dtype": result.spec.dtype,
        "tier": result.spec.tier,
        "spec_hash": " ".join(one.spec.hash for one in cell.results),
        "notes": plain(" ".join((*cell.caveats, *cell.notes))),
    }


def _predicted(known: Forecast) -> dict[str, str]:
    low, high = known.interval or (None, None)
    within = "" if low is None else f"Range {low:.4g} to {high:.4g}."
    program = "zobench's engine" if known.own else "the paper's program"
    return {
        "source": "predicted",
        "hardware": known.gpu.name,
        "value": "" if known.value is None else repr(known.value),
        "status": "oom" if known.value is None else "ok",
        "notes": " ".join(filter(None, (f"Predicted for {program}.", within, *known.notes))),
    }


def _paper(cell: TableCell) -> dict[str, str]:
    assert cell.paper is not None
    return {
        "source": f"{cell.paper['paper']} {cell.paper['artifact']}",
        "hardware": hardware(cell.paper),
        "value": "" if cell.paper_value is None else repr(cell.paper_value),
        "status": cell.paper["status"],
        "dtype": cell.paper["dtype"],
    }


def texts(sheets: Sequence[Sheet]) -> str:
    """What stands in each place of ``sheets``, for tables that hold no measurements."""
    stream = io.StringIO()
    writer = CsvWriter(stream)
    writer.writerow(["source", "row", "column", "text"])
    for sheet in sheets:
        for group in sheet.groups:
            for label, entries in zip(sheet.rows, group.body, strict=True):
                for column, entry in zip(group.columns, entries, strict=True):
                    writer.writerow([sheet.source, label.text, column.text, entry.text])
    return stream.getvalue()


def events(charts: Sequence[Chart]) -> str:
    """The operations of timelines, in seconds from the step's first operation; the points of curves; "" without any."""
    if any(panel.series for chart in charts for panel in chart.panels):
        return _points(charts)
    stream = io.StringIO()
    writer = CsvWriter(stream)
    writer.writerow(["figure", "panel", "lane", "kind", "block", "start_s", "end_s"])
    for chart in charts:
        for panel in chart.panels:
            for event in panel.events:
                place = [plain(text) for text in (chart.name, panel.title, event.lane, event.kind)]
                writer.writerow([*place, event.block, repr(event.start), repr(event.end)])
    return stream.getvalue() if any(panel.events for chart in charts for panel in chart.panels) else ""


def _points(charts: Sequence[Chart]) -> str:
    """A line per value of each series, in the unit that its axis names."""
    stream = io.StringIO()
    writer = CsvWriter(stream)
    writer.writerow(["figure", "quantity", "series", "x", "value"])
    for chart in charts:
        for panel in chart.panels:
            for series in panel.series:
                for x, mark in zip(panel.xs, series.marks, strict=True):
                    if mark.value is not None:
                        writer.writerow([plain(chart.name), panel.y_label, plain(series.label), x, repr(mark.value)])
    return stream.getvalue()
