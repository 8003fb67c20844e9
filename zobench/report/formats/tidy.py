"""Cells as tidy CSV: one row per value, in base units and full precision."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator

from zobench.report.cells import Cell
from zobench.report.compose import Grid
from zobench.report.quantity import QUANTITIES
from zobench.report.sheet import plain
from zobench.report.table import Table
from zobench.result import Outcome

COLUMNS = (
    *("table", "source", "machine", "hardware", "row", "column", "metric", "unit", "value", "status", "reason"),
    *("device", "dtype", "tier", "spec_hash", "notes"),
)


def write(table: Table, grids: Iterable[tuple[str | None, Grid]]) -> str:
    """Measured values of every machine, then the papers' values once; a cell that was never run has no row."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    papers: dict[tuple[str, str, str], dict[str, str]] = {}
    for machine, grid in grids:
        for cell in _cells(grid):
            if machine is not None and cell.result is not None:
                writer.writerow({**_place(table, cell), **_measured(cell, machine)})
            if cell.paper is not None:
                place = _place(table, cell)
                papers.setdefault((place["row"], place["column"], place["metric"]), {**place, **_paper(cell)})
    writer.writerows(papers.values())
    return stream.getvalue()


def _cells(grid: Grid) -> Iterator[Cell]:
    return (cell for row in grid for group in row for cell in group)


def _place(table: Table, cell: Cell) -> dict[str, str]:
    return {
        "table": table.name,
        "row": plain(str(cell.row.value)),
        "column": plain(cell.column.header),
        "metric": cell.metric.name,
        "unit": QUANTITIES[cell.metric.name].base_unit,
    }


def _measured(cell: Cell, machine: str) -> dict[str, str]:
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
        "spec_hash": result.spec.hash,
        "notes": plain(" ".join((*cell.caveats, *cell.notes))),
    }


def _paper(cell: Cell) -> dict[str, str]:
    assert cell.paper is not None
    return {
        "source": f"{cell.paper['paper']} {cell.paper['artifact']}",
        "hardware": f"{cell.paper['gpus']}x {cell.paper['gpu']}",
        "value": "" if cell.paper_value is None else repr(cell.paper_value),
        "status": cell.paper["status"],
        "dtype": cell.paper["dtype"],
    }
