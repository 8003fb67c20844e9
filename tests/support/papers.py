"""The recipes of the papers' tables and figures, loaded."""

from collections.abc import Iterator

from zobench.recipes.reference import Reference
from zobench.report.artifacts import Recipe, load
from zobench.report.cells import TableCell, fill
from zobench.report.table import Table

TABLES = {
    "zo-offloading-neurips24": "1 2",
    "zo-offloading-iclr25": "1 2 3",
    "zo2": "1 2 3 4 5 6 7 8",
    "distzo2": "1 2 3 4 5 6 7",
    "zo-bench": "1 2 3 4 5 6 7 8 A1 A2",
}
FIGURES = {
    "zo-offloading-neurips24": "1 4",
    "zo-offloading-iclr25": "1 4",
    "zo2": "3 5 6",
    "distzo2": "6",
    "zo-bench": "1 2 3",
}
TABLE_NAMES = [f"{paper}/table{number}" for paper, numbers in TABLES.items() for number in numbers.split()]
FIGURE_NAMES = [f"{paper}/figure{number}" for paper, numbers in FIGURES.items() for number in numbers.split()]
NAMES = TABLE_NAMES + FIGURE_NAMES
LOADED: dict[str, Recipe] = {name: load(name) for name in NAMES}
MEASURED = {name: item for name, item in LOADED.items() if isinstance(item, Table)}
REFERENCE = Reference.load()


def cells(table: Table) -> Iterator[TableCell]:
    """All cells of the paper's own rows; nothing is measured."""
    for row in fill(table, [], REFERENCE):
        for group in row:
            yield from group
