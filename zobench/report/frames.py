"""The numbers of an artifact as one data frame, a line per value: what CSV, Parquet, charts and Python are given."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from zobench.cost.published import Forecast
from zobench.report.cells import Grid, TableCell, flat
from zobench.report.chart import Chart
from zobench.report.compose import hardware
from zobench.report.sheet import Sheet, plain
from zobench.report.table import Table
from zobench.result import Outcome
from zobench.store import metrics

if TYPE_CHECKING:
    import pandas as pd

NUMBERS = ("value", "low", "high", "paper_ratio", "floor_share")
COLUMNS = (
    *("table", "source", "machine", "hardware", "reported_in", "row", "column", "metric", "unit", "value", "low"),
    *("high", "status", "reason", "device", "dtype", "tier", "spec_hash", "paper_ratio"),
    *("floor_share", "deviations", "notes"),
)
"""``source``: measured, predicted or paper. ``value``, and ``low`` to ``high``, its interval, are in ``unit``; they are
missing where a run ended otherwise, as ``status`` says. ``machine``: where it was measured. ``paper_ratio``: what
was measured over what the paper reports. ``floor_share``: the share of the machine's floor that the run reached."""
_KEYS = ["row", "column", "metric"]


def made(lines: Iterable[Mapping[str, Any]], columns: Sequence[str] = COLUMNS) -> pd.DataFrame:
    """``lines`` below ``columns``; a text that a line lacks is empty."""
    import pandas as pd

    blank = {name: None if name in NUMBERS else "" for name in columns}
    frame = pd.DataFrame([{**blank, **line} for line in lines], columns=list(columns))
    return frame.astype({name: float for name in columns if name in NUMBERS})


def of_cells(table: Table, grids: Iterable[tuple[str | None, Grid]]) -> pd.DataFrame:
    """Returns the values measured on every machine, then the predicted ones and the papers', once each."""
    cells = [(machine, cell) for machine, grid in grids for cell in flat(grid)]
    frame = made({**_labels(table, cell), **line} for machine, cell in cells for line in _lines(cell, machine))
    layers = frame["source"].map({"measured": 0, "predicted": 1, "paper": 2}).where(frame["machine"] == "", 0)
    kept = frame.loc[layers.sort_values(kind="stable").index].drop_duplicates([*_KEYS, "source", "machine"])
    return kept.reset_index(drop=True)


def compared(frame: pd.DataFrame) -> pd.DataFrame:
    """The lines of what was measured that have a ratio to the paper's value, and that value's line as ``*_paper``."""
    measured, paper = frame[frame["paper_ratio"].notna()], frame[frame["source"] == "paper"]
    return measured.merge(paper, on=["table", *_KEYS, "unit"], suffixes=("", "_paper"))


def _labels(table: Table, cell: TableCell) -> dict[str, str]:
    return {
        "table": table.name, "row": plain(cell.row.header), "column": plain(cell.column.header),
        "metric": cell.metric.name, "unit": cell.metric.quantity.base_unit,
    }  # fmt: skip


def _lines(cell: TableCell, machine: str | None) -> Iterator[dict[str, Any]]:
    if machine is not None and cell.result is not None:
        yield _measured(cell, machine)
    if cell.forecast is not None:
        yield _predicted(cell.forecast)
    if cell.paper is not None:
        yield {
            "source": "paper", "hardware": hardware(cell.paper), "value": cell.paper_value,
            "reported_in": f"{cell.paper['paper']} {cell.paper['artifact']}", "status": cell.paper["status"],
            "dtype": cell.paper["dtype"],
        }  # fmt: skip


def _measured(cell: TableCell, machine: str) -> dict[str, Any]:
    """``source`` is "predicted" where the column shows what is computed of the run."""
    assert cell.result is not None
    result, spec = cell.result, cell.result.spec
    low, high = cell.interval if cell.interval and cell.value is not None else (None, None)
    available = result.outcome is not Outcome.OK or cell.value is not None
    return {
        "source": cell.quantity.source, "machine": machine, "value": cell.value, "low": low, "high": high,
        "hardware": plain(result.environment.description), "reason": plain(result.reason),
        "status": str(result.outcome) if available else "n/a", "device": plain(spec.device), "dtype": spec.dtype,
        "tier": spec.tier, "spec_hash": " ".join(result.spec.hash for result in cell.results),
        "paper_ratio": cell.ratio, "floor_share": metrics(result).get("floor_share"),
        "deviations": plain(" ".join(cell.deviations)), "notes": plain(" ".join((*cell.caveats, *cell.notes))),
    }  # fmt: skip


def _predicted(forecast: Forecast) -> dict[str, Any]:
    low, high = forecast.interval or (None, None)
    program = "zobench's engine" if forecast.of_engine else "the paper's program"
    return {
        "source": "predicted", "hardware": forecast.gpu.name, "value": forecast.value, "low": low, "high": high,
        "status": "oom" if forecast.value is None else "ok",
        "notes": " ".join((f"Predicted for {program}.", *forecast.notes)),
    }  # fmt: skip


def of_sheets(sheets: Sequence[Sheet]) -> pd.DataFrame:
    """Returns the text in each place of ``sheets``, for tables that hold no measurements."""
    lines = (
        {"source": sheet.source, "row": label.text, "column": column.text, "text": entry.text}
        for sheet in sheets for group in sheet.groups
        for label, entries in zip(sheet.rows, group.body, strict=True)
        for column, entry in zip(group.columns, entries, strict=True)
    )  # fmt: skip
    return made(lines, ("source", "row", "column", "text"))


def of_charts(charts: Sequence[Chart]) -> pd.DataFrame | None:
    """The points of curves, in the units of their axes, or the operations of timelines; None without either."""
    points = [
        {"figure": plain(chart.name), "quantity": panel.y_label, "series": plain(series.label), "x": x,
         "value": mark.value}
        for chart in charts for panel in chart.panels for series in panel.series
        for x, mark in zip(panel.xs, series.marks, strict=True) if mark.value is not None
    ]  # fmt: skip
    if points:
        return made(points, tuple(points[0]))
    events = [
        {"figure": plain(chart.name), "panel": plain(panel.title), "lane": plain(event.lane), "kind": plain(event.kind),
         "block": event.block, "start_s": event.start, "end_s": event.end}
        for chart in charts for panel in chart.panels for event in panel.events
    ]  # fmt: skip
    return made(events, tuple(events[0])) if events else None
