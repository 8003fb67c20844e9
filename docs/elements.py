"""Makes the rows of docs/coverage.md from docs/coverage.toml: every element of the five papers, where zobench has it,
what the published runs measured of it and what is predicted. ``generated.py`` writes them for each build of the pages.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zobench.recipes.reference import Reference
    from zobench.report.summary import Filled
    from zobench.result import Result
    from zobench.runspec import RunSpec

DATA = Path(__file__).with_name("coverage.toml")
KINDS = {"table": "tables", "figure": "plots"}
"""First word of a number -> the folder of its recipe."""
SAME = ("task", "method", "scheme", "aligned", "sparsity", "queries", "zo_layers")
"""Fields in which a run must be what a reported accuracy is of, to be its counterpart on another model."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """An element of a paper, with the keys that docs/coverage.toml explains."""

    paper: str
    at: str
    what: str = ""
    code: tuple[str, ...] = ()
    page: str = ""
    shows: tuple[str, ...] = ()
    runs: Mapping[str, str] = field(default_factory=dict)
    why: str = ""
    lacks: str = ""
    text: bool = False
    drawing: bool = False

    @property
    def recipe(self) -> str:
        """Of a table or figure with numbers: its recipe's name, as ``zo2/table1``; else ""."""
        kind, _, number = self.at.partition(" ")
        return f"{self.paper}/{kind}{number}" if kind in KINDS and not self.drawing else ""

    @property
    def shown(self) -> tuple[str, ...]:
        """The tables and figures that measure it, itself included."""
        return (self.recipe,) if self.recipe else self.shows


def rows() -> list[Row]:
    """All rows, in the papers' order. Raises ``TypeError`` for an unknown key."""
    return [Row(paper=paper, **_values(row)) for paper, body in _data().items() for row in body["rows"]]


def _values(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in row.items()}


def contents() -> dict[str, list[str]]:
    """Paper -> the numbers of its sections, algorithms, equations, tables and figures."""
    return {paper: body["contents"] for paper, body in _data().items()}


def _data() -> dict[str, dict[str, list[Any]]]:
    return tomllib.loads(DATA.read_text(encoding="utf-8"))


WHERE = ("the paper's own model", "another pretrained model", "the tiny OPT that zobench pretrains alone", "no model")
"""On what the counterpart of a reported accuracy was measured, the best first."""


def counterparts(reference: Reference, specs: Iterable[RunSpec]) -> dict[str, Counter[str]]:
    """Table -> how many of its reported accuracies have their counterpart where (:data:`WHERE`): a run among ``specs``
    of the same task, method, scheme and setting from pretrained weights."""
    from zobench import models

    tuned = [spec for spec in specs if spec.weights == "pretrained" and spec.task != "none"]
    by_table: dict[str, Counter[str]] = {}
    for row in (row for row in reference.rows if row["metric"] == "accuracy"):
        alike = [spec for spec in tuned if is_alike(spec, row)]
        is_own = any(spec.model == row["model"] for spec in alike)
        is_public = any(spec.config_hash or models.of(spec).hub_id for spec in alike)
        place = WHERE[0 if is_own else 1 if is_public else 2 if alike else 3]
        by_table.setdefault(f"{row['paper']}/{row['artifact']}", Counter())[place] += 1
    return by_table


def is_alike(spec: RunSpec, row: Mapping[str, str]) -> bool:
    """Whether a run of ``spec`` is of the task, method, scheme and setting of a reported value, its ``row``."""
    from zobench.report.terms import deviations

    return not set(SAME) & set(deviations(spec, row))


def _accuracies(reference: Reference, results: Sequence[Result], every: Sequence[Row]) -> list[str]:
    """How many of the papers' accuracies have a counterpart where, in a line and by table; why the rest has none."""
    from zobench.recipes.reference import PAPERS

    by_table = counterparts(reference, [result.spec for result in results if result.evaluation])
    rows = {row.recipe: row for row in every if row.recipe in by_table}
    total = sum(by_table.values(), Counter())
    sums = ", ".join(f"{total[place]} on {place}" for place in WHERE)
    lines = [
        (f"{PAPERS[rows[name].paper]}, {rows[name].at}", *(str(counts[place]) for place in WHERE),
         rows[name].lacks if counts[WHERE[2]] + counts[WHERE[3]] else "")
        for name, counts in by_table.items()
    ]  # fmt: skip
    return [
        f"**Accuracies.** Of the {total.total()} that the papers report, the same task, method, scheme and setting was "
        f"measured: {sums}. A counterpart stands beside a paper's value in a row or column of its own model; it is of "
        "fewer steps, so that no claim about the paper's value rests on it.",
        _table(("Table", *WHERE, "Why there is none on a pretrained model"), lines),
    ]


@dataclass(frozen=True, kw_only=True, slots=True)
class Shown:
    """What a table or figure shows: its ``title``, hashes of the published ``cells`` that have a place in it, values
    that the paper reports, how many of these are measured, and values that are predicted only. ``is_facts``: it has no
    measurements."""

    title: str
    cells: frozenset[str]
    reported: int = 0
    measured: int = 0
    predicted: int = 0
    is_facts: bool = False


def shown(results: Sequence[Result], filled: Sequence[Filled], reference: Reference) -> dict[str, Shown]:
    """Name -> what it shows, of the papers' tables and figures. ``filled``: the cells of these tables."""
    from zobench.report.artifacts import load_all, shows
    from zobench.report.facts import FactTable
    from zobench.report.plot import Plot
    from zobench.report.render import grids
    from zobench.report.summary import frame

    ran = {result.spec.hash: result.spec for result in results if result.outcome == "ok"}
    made = {}
    tables = {one.table.name: one for one in filled}
    for item in filter(lambda item: item.paper, load_all()[0]):
        cells, more = frozenset(name for name, spec in ran.items() if shows(item, spec)), {}
        if item.name in tables:
            values = frame([tables[item.name]])
            layers = values.loc[values["own"], "layer"].value_counts()
            measured, predicted = (int(layers.get(layer, 0)) for layer in ("Measured", "Predicted only"))
            more = {"reported": int(layers.sum()), "measured": measured, "predicted": predicted}
        elif isinstance(item, Plot) and item.table is not None and filled:
            found = [
                cell for row in grids(item.table, results, None, reference)[0][1] for group in row for cell in group
            ]
            more = {"predicted": sum(cell.forecast is not None and cell.value is None for cell in found)}
        title = item.title.rpartition(" (")[0]
        made[item.name] = Shown(title=title, cells=cells, is_facts=isinstance(item, FactTable), **more)
    return made


def text(results: Sequence[Result], filled: Sequence[Filled], reference: Reference) -> str:
    """What the page shows: the accuracies, the drawings, and a table for each paper."""
    from zobench.recipes.reference import PAPERS

    items, every = shown(results, filled, reference), rows()
    parts = [
        *_accuracies(reference, results, every),
        f"## The {sum(row.drawing for row in every)} drawings without numbers",
        _table(("Figure", "What it draws", "Explained in"), (
            (f"{PAPERS[row.paper]}, {row.at}", row.what, _page(row.page)) for row in every if row.drawing
        )),
    ]  # fmt: skip
    for paper, name in PAPERS.items():
        of_paper = [row for row in every if row.paper == paper and not row.drawing]
        parts += [f"## {name}", _table(
            ("", "What", "Where", "Measured", "Predicted", "What differs, or why it is absent"),
            (_cells(row, [items[one] for one in row.shown], results) for row in of_paper),
        )]  # fmt: skip
    return "\n\n".join(parts) + "\n"


def _cells(row: Row, items: Sequence[Shown], results: Sequence[Result]) -> tuple[str, ...]:
    """The texts of one row; ``items``: the tables and figures that measure it."""
    own = [one.spec for one in results if row.runs and one.outcome == "ok"]
    cells = {spec.hash for spec in own if all(getattr(spec, name) == value for name, value in row.runs.items())}
    where = [f"`{place}`" for place in row.code] + ([f"`zobench reproduce {row.recipe}`"] if row.recipe else [])
    where += [_page(row.page)] if row.page else []
    count = len(cells.union(*(item.cells for item in items)))
    measured = f"{count} cell{'s' if count != 1 else ''}" if items or row.runs else ""
    measured = "facts: zobench's beside the paper's" if row.recipe and items[0].is_facts else measured
    if row.recipe and items[0].reported:
        measured += f"; {items[0].measured} of {items[0].reported} values"
    ahead = sum(item.predicted for item in items)
    title = items[0].title if row.recipe else ""
    told = "text" if row.text else row.why
    return row.at, row.what or title, "<br>".join(where), measured, f"{ahead} values" if ahead else "", told


def _page(page: str) -> str:
    return f"[{page.partition('#')[0].removesuffix('.md')}]({page})"


def _table(header: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    body = [header, ["---"] * len(header), *lines]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in body)
