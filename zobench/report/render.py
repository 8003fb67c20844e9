"""Renders a table of results in any output format, one machine after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from zobench.cost.gpu import Prediction
from zobench.machine.texts import csv_of
from zobench.recipes.reference import Reference
from zobench.report import contest, contest_sheets, facts, forecasts, frames
from zobench.report.cells import Grid, fill, flat
from zobench.report.compose import measured, measured_sheet, paper_sheet, predicted_sheet
from zobench.report.contest import ContestTable
from zobench.report.facts import FactTable
from zobench.report.formats import latex, markdown, terminal
from zobench.report.sheet import Sheet
from zobench.report.table import Table
from zobench.result import Result
from zobench.runspec import suggestion
from zobench.store import machine_of, place_of
from zobench.store.query import grouped

Filling = tuple[Sequence[Sheet], Callable[[], Any]]
"""The sheets of a filled table, and what makes a data frame of the same: a terminal needs no pandas."""
WRITERS: Mapping[str, Callable[[Sequence[Sheet], int, bool], str]] = {
    "terminal": terminal.write,
    "markdown": lambda sheets, width, color: markdown.write(sheets),
    "latex": lambda sheets, width, color: latex.write(sheets),
}
FORMATS = (*WRITERS, "csv")
"""Texts; ``zobench table`` also writes Parquet, from the same frame."""


def render(
    item: Table | FactTable | ContestTable,
    results: Sequence[Result],
    fmt: str,
    *,
    machine: str | None = None,
    reference: Reference | None = None,
    width: int = 100,
    color: bool = False,
) -> str:
    """``item`` filled with ``results``: per machine what was measured, then the paper's values beside it.

    ``machine`` picks one machine; ``reference`` defaults to the values that travel with zobench; ``width`` and
    ``color`` are for the terminal. The same input gives the same text, byte for byte. Raises ``ValueError`` for an
    unknown format or machine.
    """
    if fmt not in FORMATS:
        raise ValueError(f"unknown format {fmt!r}; {suggestion(fmt, (*FORMATS, 'parquet'))}")
    reference = reference or Reference.load()
    if isinstance(item, Table):
        filled = grids(item, results, machine, reference)
        if fmt == "csv":
            return csv_of(frames.of_cells(item, filled))
        return WRITERS[fmt](list(sheets(item, filled, separately=False)), width, color)
    shown_sheets, frame = without_cells(item, results, machine)
    return csv_of(frame()) if fmt == "csv" else WRITERS[fmt](shown_sheets, width, color)


def render_predicted(
    table: Table, predictions: Sequence[Prediction], stored: Sequence[Result], form: str, *, width: int, color: bool
) -> str:
    """``table`` as ``predictions`` have it, then as it was measured in ``stored`` and as the papers have it."""
    if form not in WRITERS:
        raise ValueError(f"unknown format {form!r}; {suggestion(form, WRITERS)}")
    reference = Reference.load()
    grid = forecasts.of_predictions(table, predictions, reference)
    first = [predicted_sheet(table, grid)] if any(cell.forecast for cell in flat(grid)) else []
    others = sheets(table, grids(table, stored, None, reference, foretold=False))
    return WRITERS[form]([*first, *others], width, color)


def without_cells(item: FactTable | ContestTable, results: Sequence[Result], machine: str | None) -> Filling:
    """The sheets of ``item``, whose lines are not cells of runs, and what makes a data frame of the same."""
    if isinstance(item, FactTable):
        fact_sheets = facts.sheets(item)
        return fact_sheets, lambda: frames.of_sheets(fact_sheets)
    ranked = contest.rankings(item, of_machine(results, machine))
    return contest_sheets.sheets(item, ranked), lambda: contest_sheets.numbers(item, ranked)


def grids(
    table: Table, results: Sequence[Result], machine: str | None, reference: Reference, *, expected: bool = True,
    foretold: bool = True,
) -> list[tuple[str | None, Grid]]:  # fmt: skip
    """Filled cells of each machine that has any result in this table; without one, the empty table once.

    ``expected``: with what a cell that was not run should come to on its machine. ``foretold``: and with a forecast in
    each cell of a paper's table that can have one.
    """
    by_machine = grouped(of_machine(results, machine), place_of)
    of_runs = [(name, fill(table, runs, reference)) for name, runs in by_machine.items()]
    filled = [(name, grid) for name, grid in of_runs if measured(grid)]
    if expected:
        filled = [(name, forecasts.on_this_machine(table, grid, by_machine[name])) for name, grid in filled]
    shown: list[tuple[str | None, Grid]] = [*filled] or [(None, fill(table, [], reference))]
    return [(name, forecasts.added(table, grid) if foretold else grid) for name, grid in shown]


def of_machine(results: Sequence[Result], machine: str | None) -> list[Result]:
    """The results of ``machine``, named by itself or as one of its places (``box-cpu``); all results without one."""
    if machine is None:
        return list(results)
    if not results:
        raise ValueError(f"no results of machine {machine!r}, nor of any other; run a sweep first")
    matching = [result for result in results if machine in (place_of(result), machine_of(result))]
    if not matching:
        names = sorted({place_of(result) for result in results})
        raise ValueError(f"no results of machine {machine!r}; {suggestion(machine, names)}")
    return matching


def sheets(table: Table, filled: Sequence[tuple[str | None, Grid]], *, separately: bool = True) -> Iterator[Sheet]:
    """Per machine what was measured, and what the paper reports. Between them what is predicted, once; not
    ``separately``: where anything was measured, only in place of what was not."""
    for i, (machine, grid) in enumerate(filled):
        cells = flat(grid)
        reported = any(cell.paper is not None for cell in cells)
        fill_in = not separately and machine is not None
        if machine is not None or (grid and not reported):
            yield measured_sheet(table, grid, machine, fill=fill_in)
        if not i and not fill_in and (every := _rows_of_all(table, filled)) and any(c.forecast for c in flat(every)):
            yield predicted_sheet(table, every)
        if reported:
            yield paper_sheet(table, grid, machine, fill=fill_in)


def _rows_of_all(table: Table, filled: Sequence[tuple[str | None, Grid]]) -> Grid:
    """A line for each row that any machine's grid has, in the table's order: a prediction is the same for all."""
    lines = {row[0][0].row.header: row for _, grid in reversed(filled) for row in grid}
    return [lines[row.header] for row in table.rows if row.header in lines]
