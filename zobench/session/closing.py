"""How a sweep closes: how the cells that wait go on, and which runs are in none of its tables."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from zobench.report import artifacts
from zobench.result import Result


def closing(wait: int, folder: str, again: str, *, is_empty: bool) -> list[str]:
    """Lines on where all of the results in ``folder`` can be seen and, if cells ``wait``, how they go on. ``is_empty``:
    no cell has measured a step, so that the same budget would hold none again."""
    option = "" if folder == "results" else f" --results {shlex.quote(folder)}"
    lines = [f"all tables, figures and claims beside the papers': zobench report{option} --out report"]
    if wait:
        cells = "1 cell waits" if wait == 1 else f"{wait} cells wait"
        longer = ", and no step was measured; to go on, with a longer --budget" if is_empty else "; to go on"
        lines.append(f"{cells} for more time{longer}: {again}")
    return lines


def outside_tables(tables: Sequence[str], results: Sequence[Result]) -> list[Result]:
    """The results that none of ``tables`` shows: all where there is no table, or where a change took them out."""
    items = [artifacts.load(name) for name in tables]
    return [result for result in results if not any(artifacts.shows(item, result.spec) for item in items)]
