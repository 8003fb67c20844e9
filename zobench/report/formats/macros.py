"""One LaTeX macro per number: ``\\zobench{zo2-table1-opt-13b-zo2-fp32-throughput-paper}``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from zobench.report.cells import Grid, flat
from zobench.report.compose import INFERRED
from zobench.report.formats.latex import escape
from zobench.report.sheet import rounded
from zobench.report.table import Table

_HEAD = r"""% Every number of the tables. In the preamble: \input{numbers.tex}; in the text: \zobench{<key>}.
\providecommand{\zobench}[1]{\ifcsname zobench@#1\endcsname\csname zobench@#1\endcsname\else\textbf{??#1??}\fi}
\providecommand{\zobenchset}[2]{\expandafter\def\csname zobench@#1\endcsname{#2}}
"""


def write(filled: Iterable[tuple[Table, Iterable[tuple[str | None, Grid]]]]) -> str:
    """Definitions of all measured and reported values, each as its table prints it."""
    numbers: dict[str, str] = {}
    for table, grids in filled:
        for machine, grid in grids:
            for key, text in _numbers(table, machine, grid):
                if numbers.setdefault(key, text) != text:
                    raise ValueError(f"two numbers of {table.name} have the key {key!r}; rename a row or a column")
    inferred = [f"% *: {INFERRED}"] if any(text.endswith("*") for text in numbers.values()) else []
    lines = [*inferred, *(rf"\zobenchset{{{key}}}{{{escape(text)}}}" for key, text in numbers.items())]
    return _HEAD + "".join(f"{line}\n" for line in lines)


def _numbers(table: Table, machine: str | None, grid: Grid) -> Iterator[tuple[str, str]]:
    for cell in flat(grid):
        cell_key = f"{table.name}-{cell.row.header}-{cell.column.header}-{cell.metric.name}"
        for source, value in ((machine, cell.value), ("paper", cell.paper_value), (f"{machine}-ratio", cell.ratio)):
            if value is not None:
                ratio = source is not None and source.endswith("-ratio")
                text = f"{value:.3g}" if ratio else rounded(value / cell.metric.scale, cell.metric.format)
                text += "*" if source == "paper" and cell.is_inferred else ""
                key = re.sub(r"[^a-z0-9.]+", "-", f"{cell_key}-{source}".lower()).strip("-")
                yield key, text
