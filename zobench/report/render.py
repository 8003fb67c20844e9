"""Renders a table of results in any output format, one machine after the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from zobench.report.cells import fill
from zobench.report.compose import Grid, measured_sheet, paper_sheet
from zobench.report.formats import latex, markdown, terminal, tidy
from zobench.report.reference import Reference
from zobench.report.sheet import Sheet
from zobench.report.table import Table
from zobench.result import Result
from zobench.spec import suggestion
from zobench.store import machine_of

FORMATS = ("terminal", "markdown", "latex", "csv")


def render(
    table: Table,
    results: Sequence[Result],
    fmt: str,
    *,
    machine: str | None = None,
    reference: Reference | None = None,
    width: int = 100,
    color: bool = False,
) -> str:
    """``table`` filled with ``results``: per machine what was measured, then the paper's values beside it.

    ``machine`` picks one machine; ``reference`` defaults to the values that travel with zobench; ``width`` and
    ``color`` are for the terminal. The same input gives the same text, byte for byte. Raises ``ValueError`` for an
    unknown format or machine.
    """
    if fmt not in FORMATS:
        raise ValueError(f"unknown format {fmt!r}; {suggestion(fmt, FORMATS)}")
    grids = _grids(table, results, machine, reference or Reference.load())
    if fmt == "csv":
        return tidy.write(table, grids)
    sheets = list(_sheets(table, grids))
    if fmt == "markdown":
        return markdown.write(sheets)
    if fmt == "latex":
        return latex.write(sheets)
    return terminal.write(sheets, width, color)


def _grids(
    table: Table, results: Sequence[Result], machine: str | None, reference: Reference
) -> list[tuple[str | None, Grid]]:
    """Filled cells of each machine that has any result in this table; without one, the empty table once."""
    by_machine: dict[str, list[Result]] = {}
    for result in results:
        by_machine.setdefault(machine_of(result), []).append(result)
    if machine is not None:
        if not by_machine:
            raise ValueError(f"no results of machine {machine!r}, nor of any other; run a sweep first")
        if machine not in by_machine:
            raise ValueError(f"no results of machine {machine!r}; {suggestion(machine, sorted(by_machine))}")
        by_machine = {machine: by_machine[machine]}
    grids = [(name, fill(table, by_machine[name], reference)) for name in sorted(by_machine)]
    if machine is None:
        grids = [(name, grid) for name, grid in grids if any(c.result for row in grid for group in row for c in group)]
    return list(grids) or [(None, fill(table, [], reference))]


def _sheets(table: Table, grids: Sequence[tuple[str | None, Grid]]) -> Iterator[Sheet]:
    for machine, grid in grids:
        yield measured_sheet(table, grid, machine)
        if table.paper:
            yield paper_sheet(table, grid, machine)
