"""Claims: what the papers say of their tables, held against their own values and against what was measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from zobench.report.cells import Cell
from zobench.report.compose import Grid, ratio
from zobench.report.table import Claim, Table

HOLDS, FAILS, OPEN = "holds", "does not hold", "not measured"


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """One claim held against one set of values: the ratio in each row (or column) that has both, and what it comes to.

    ``expected``: how many rows (or columns) the claim is about.
    """

    claim: Claim
    table: Table
    ratios: tuple[tuple[str, float], ...]
    expected: int

    @property
    def verdict(self) -> str:
        """``OPEN`` without any ratio, ``FAILS`` if one is out of bounds."""
        if not self.ratios:
            return OPEN
        return HOLDS if all(within(self.claim, value) for _, value in self.ratios) else FAILS

    @property
    def told(self) -> str:
        """``0.97 to 1.01 in 5 of 7; 0.82 in OPT-1.3B``: the range, and what is out of bounds."""
        if not self.ratios:
            return ""
        values = [value for _, value in self.ratios]
        low, high = f"{min(values):.3g}", f"{max(values):.3g}"
        count = f" in {len(values)} of {self.expected}" if self.expected > 1 else ""
        out = [f"{value:.3g} in {header}" for header, value in self.ratios if not within(self.claim, value)]
        beyond = f"; out of bounds: {', '.join(out)}" if out and len(values) > 1 else ""
        return (low if low == high else f"{low} to {high}") + count + beyond


def within(claim: Claim, value: float) -> bool:
    """Whether a ratio is within the claim's bounds."""
    low, high = claim.at_least, claim.at_most
    return (low is None or value >= low) and (high is None or value <= high)


def reported(table: Table, grid: Grid) -> list[Verdict]:
    """The table's claims, held against the paper's own values."""
    return [
        _held(table, claim, grid, lambda cell: None if cell.row.extra else cell.paper_value) for claim in table.claims
    ]


def measured(table: Table, grid: Grid) -> list[Verdict]:
    """The table's claims, held against what was measured."""
    return [_held(table, claim, grid, lambda cell: cell.value) for claim in table.claims]


def _held(table: Table, claim: Claim, grid: Grid, value: Callable[[Cell], float | None]) -> Verdict:
    lines = _lines(table, claim, grid)
    found = []
    for header, cells in lines:
        pair = [value(cells[name]) if name in cells else None for name in claim.ratio]
        if (quotient := ratio(pair[0], pair[1])) is not None:
            found.append((header, quotient))
    own = [row for row in table.rows if not row.extra] if _by_column(table, claim) else list(table.columns)
    return Verdict(claim=claim, table=table, ratios=tuple(found), expected=max(len(claim.only) or len(own), len(found)))


def _by_column(table: Table, claim: Claim) -> bool:
    return claim.ratio[0] in [column.header for column in table.columns]


def _lines(table: Table, claim: Claim, grid: Grid) -> list[tuple[str, dict[str, Cell]]]:
    """The cells of the claim's metric: per row by column, or per column by row; only those that the claim means."""
    j = [metric.name for metric in table.metrics].index(claim.metric)
    by_row: list[Sequence[Cell]] = [row[j] for row in grid]
    if _by_column(table, claim):
        lines = [(cells[0].row.header, {cell.column.header: cell for cell in cells}) for cells in by_row]
    else:
        columns = zip(*by_row, strict=True)
        lines = [(cells[0].column.header, {cell.row.header: cell for cell in cells}) for cells in columns]
    return [(header, cells) for header, cells in lines if not claim.only or header in claim.only]


def bounds(claim: Claim) -> str:
    """``ZO2 / MeZO at most 1``."""
    told = [
        f"{word} {bound:g}"
        for word, bound in (("at least", claim.at_least), ("at most", claim.at_most))
        if bound is not None
    ]
    return f"{claim.ratio[0]} / {claim.ratio[1]} {' and '.join(told)}"
