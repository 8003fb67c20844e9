"""What a report opens with: one chart of offloading's costs beside MeZO's own way, and three sentences."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from zobench.recipes.reference import Reference
from zobench.report.book import Opening
from zobench.report.cells import TableCell, flat
from zobench.report.chart import Chart, Mark, Panel, Series
from zobench.report.compose import Grid, hardware, joined, measured_on, ratio, relative
from zobench.report.render import grids
from zobench.report.summary import Filled, in_words, layers, verdicts
from zobench.report.table import Table, load_table
from zobench.result import Result

NAME = "opening"
_RECIPE = Path(__file__).with_name("opening.toml")
Share = Callable[[Sequence[TableCell], int], float | None]
"""A column's multiple of the baseline."""


def opening(filled: Sequence[Filled], results: Sequence[Result], reference: Reference) -> Opening:
    """The chart and the sentences of a report on ``results``, of the machine that has most of the chart's values."""
    table = load_table(_RECIPE)
    machine, grid = max(grids(table, results, None, reference, foretold=False), key=lambda item: _count(item[1]))
    shares = (_here, _reported)
    grid = [
        row for row in grid
        if any(of(group, k) is not None for of in shares for group in row for k in range(1, len(group)))
    ]  # fmt: skip
    return Opening(chart=_chart(table, grid, machine), sentences=_sentences(table, grid, machine, filled))


def _count(grid: Grid) -> int:
    return sum(cell.value is not None for cell in flat(grid))


def _measured(group: Sequence[TableCell], k: int) -> Mark:
    """What was measured of column ``k`` as a multiple of the baseline's in the same row: from the rounds in which both
    ran, with its interval, where there are any."""
    value, interval = relative(group[k], group[0])
    low, high = interval or (None, None)
    return Mark(value=value, low=low, high=high)


def _here(group: Sequence[TableCell], k: int) -> float | None:
    """The value of :func:`_measured`."""
    return _measured(group, k).value


def _reported(group: Sequence[TableCell], k: int) -> float | None:
    """What the paper reports of column ``k`` as a multiple of the baseline's in the same row."""
    return ratio(group[k].paper_value, group[0].paper_value)


def _chart(table: Table, grid: Grid, machine: str | None) -> Chart:
    cells = flat(grid)
    where = joined(hardware(cell.paper) for cell in cells if cell.paper)
    told = [*([measured_on(cells, machine)] if machine else []), f"paper: {table.paper} {table.artifact}, on {where}"]
    source = "; ".join(told)
    return Chart(
        name=NAME, kind="bars", title=table.title, source=source[:1].upper() + source[1:], remarks=(table.caption,),
        panels=tuple(_panel(table, grid, j) for j in range(len(table.metrics))),
    )  # fmt: skip


def _panel(table: Table, grid: Grid, j: int) -> Panel:
    series = []
    for k, column in list(enumerate(table.columns))[1:]:
        marks = tuple(_measured(row[j], k) for row in grid)
        paper = tuple(_reported(row[j], k) for row in grid)
        if any(share is not None for share in (*paper, *(mark.value for mark in marks))):
            series.append(Series(label=column.header, marks=marks, paper=paper))
    return Panel(
        title=table.metrics[j].header, y_label=f"relative to {table.baseline}", series=tuple(series),
        positions=tuple(row[0][0].row.header for row in grid), limit=(1.0, f"1: as {table.baseline}"),
    )  # fmt: skip


def _sentences(table: Table, grid: Grid, machine: str | None, filled: Sequence[Filled]) -> tuple[str, ...]:
    """What was found here, what the papers say of it, and how much of their tables that is."""
    here = [text for k in range(1, len(table.columns)) if (text := _told(table, grid, k, _here))]
    cells = flat(grid)
    where = measured_on(cells, machine).removeprefix("measured ")
    first = (
        f"{where[:1].upper()}{where[1:]}, {'; '.join(here)}."
        if here else "Nothing that a paper compares was measured here yet: `zobench sweep main_table` begins with it."
    )  # fmt: skip
    reported = _told(table, grid, 1, _reported)
    counts = verdicts(filled, machine)
    second = f"In the paper, {reported}; of all papers' {sum(counts.values())} claims here: {in_words(counts)}."
    total, seen, ahead, neither = layers(filled)
    third = (
        f"Of the {total} values in the papers' tables {seen} were measured here, {ahead} are predicted only, and of "
        f"{neither} neither is known; each table below says which."
    )
    return first, second, third


def _told(table: Table, grid: Grid, k: int, share: Share) -> str:
    """``ZO2 needs 0.25 to 0.6 of MeZO's memory and has 0.93 to 0.99 of its throughput (OPT-125M to OPT-1.3B)``;
    ``share``: of what was measured, or reported."""
    memory, speed = ([share(row[j], k) for row in grid] for j in (0, 1))
    rows = [row[0][0].row.header for row, one in zip(grid, speed, strict=True) if one is not None]
    if not rows:
        return ""
    span = rows[0] if len(rows) == 1 else f"{rows[0]} to {rows[-1]}"
    name, base = table.columns[k].header, table.baseline
    needs = f"needs {_span(memory)} of {base}'s memory and " if any(one is not None for one in memory) else ""
    return f"{name} {needs}has {_span(speed)} of {'its' if needs else base + 's'} throughput ({span})"


def _span(shares: Iterable[float | None]) -> str:
    known = [f"{share:.2g}" for share in sorted(share for share in shares if share is not None)]
    return known[0] if known[0] == known[-1] else f"{known[0]} to {known[-1]}"
