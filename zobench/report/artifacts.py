"""All artifacts: finds the recipes of tables and figures, and fills each with stored results."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from zobench import recipes
from zobench.machine.texts import toml_in
from zobench.recipes.reference import PAPERS, Reference
from zobench.report import contest, contest_sheets, fits, frames, leaderboard, opening, plot, table
from zobench.report import facts as fact_tables
from zobench.report.cells import belongs, meets
from zobench.report.chart import Chart
from zobench.report.contents import Artifact, ReportContents
from zobench.report.contest import ContestTable
from zobench.report.draw import chart, pareto
from zobench.report.facts import FactTable
from zobench.report.plot import Plot
from zobench.report.recorded import curves, timelines
from zobench.report.render import grids, of_machine, sheets, without_cells
from zobench.report.sheet import Sheet
from zobench.report.summary import Filled
from zobench.report.summary import sheets as summary_sheets
from zobench.report.table import Table
from zobench.result import Result
from zobench.runspec import RunSpec
from zobench.store import machine_of

if TYPE_CHECKING:
    import pandas as pd

Recipe = Table | FactTable | Plot | ContestTable
"""All have a name, a title, a paper and a runner, and tell whether they are figures."""
Progress = Callable[[str, int, int], None]
"""Called before each step of a report, of which there are two a table or figure: its name, steps done, steps in all."""


def load(name: str, kinds: Sequence[str] = ("tables", "plots")) -> Recipe:
    """The table or figure called ``name``, or in that file; of two, that of the first of ``kinds``."""
    return load_file(recipes.find_any(kinds, name)[1])


def load_file(path: Path) -> Recipe:
    """The recipe in the TOML file ``path``, of the kind that its key ``kind`` says; without one a table of results."""
    with toml_in(path) as data:
        if "kind" not in data:
            return table.parse(path.stem, data, "the table")
        if data["kind"] == "facts":
            return fact_tables.parse(data)
        return contest.parse(path.stem, data) if data["kind"] == "protocol" else plot.parse(path.stem, data)


def load_all() -> tuple[list[Recipe], list[str]]:
    """Every recipe of a table or a figure, in reading order, and one line for each that cannot be read."""
    items: list[Recipe] = []
    problems: list[str] = []
    for kind in ("tables", "plots"):
        for name in recipes.names(kind):
            try:
                item = load_file(recipes.find(kind, name))
                if any(other.name == item.name for other in items):
                    raise ValueError(f"another recipe is called {item.name}; change `artifact`")
                items.append(item)
            except (OSError, ValueError) as error:  # a user's own file must not hide all others
                problems.append(f"not rendered: {kind}/{name}: {error}")
    return sorted(items, key=_reading_order), problems


def _reading_order(item: Recipe) -> tuple[object, ...]:
    paper = list(PAPERS).index(item.paper) if item.paper in PAPERS else -1
    number = re.search(r"\d+$", item.name)
    appendix = bool(re.search(r"[A-Z]\d+$", item.name))
    return paper, item.paper, item.is_figure, appendix, int(number[0]) if number else 0, item.name


def shows(item: Recipe | None, spec: RunSpec) -> bool:
    """Whether a run of ``spec`` belongs in a cell, lane or curve of ``item``; a table of facts shows no runs."""
    if isinstance(item, Plot):
        return shows(item.contest or item.table, spec) or any(meets(spec, panel.where) for panel in item.panels)
    if isinstance(item, Table):
        return belongs(item, spec)
    return isinstance(item, ContestTable) and contest.is_of(item.protocol, spec)


def make(item: Recipe, results: Sequence[Result], reference: Reference) -> tuple[Artifact, Filled | None]:
    """One artifact; of a paper's table also its cells, for the comparison."""
    if isinstance(item, Plot):
        return _figure(item, results, reference), None
    if isinstance(item, Table):
        filled = grids(item, results, None, reference)
        artifact = _artifact(item, list(sheets(item, filled)), frames.of_cells(item, filled))
        return artifact, Filled(table=item, grids=tuple(filled)) if item.paper else None
    sheets_of, numbers = without_cells(item, results, None)
    return _artifact(item, sheets_of, numbers()), None


def frame(name: str, results: Sequence[Result], machine: str | None = None) -> pd.DataFrame:
    """The numbers of the table or figure called ``name``, filled with ``results`` (of ``machine``): a line per value,
    with unit, interval and source. ``ValueError`` for an unknown name, or one without numbers."""
    numbers = make(load(name), of_machine(results, machine), Reference.load())[0].frame
    if numbers is None:
        raise ValueError(f"{name} must have numbers, but nothing of it was recorded yet; zobench reproduce {name}")
    return numbers


def _figure(item: Plot, results: Sequence[Result], reference: Reference) -> Artifact:
    if item.contest is not None:
        ranked = contest.rankings(item.contest, results)
        return _artifact(item, [], contest_sheets.numbers(item.contest, ranked), _named(pareto(item, ranked)))
    if item.table is None:
        of_runs = curves if item.kind == "curves" else timelines
        charts = _named(of_runs(item, results))
        return _artifact(item, [], frames.of_charts(charts), charts)
    filled = grids(item.table, results, None, reference)
    charts = _named([(machine, chart(item, grid, machine)) for machine, grid in filled])
    return _artifact(item, list(sheets(item.table, filled)), frames.of_cells(item.table, filled), charts)


def _artifact(
    item: Recipe, shown: Sequence[Sheet], frame: pd.DataFrame | None, charts: Sequence[Chart] = ()
) -> Artifact:  # fmt: skip
    return Artifact(
        name=item.name, kind="figure" if item.is_figure else "table", title=item.title, paper=item.paper,
        runner=item.runner, sheets=tuple(shown), frame=frame, charts=tuple(charts),
    )  # fmt: skip


def _named(charts: Sequence[tuple[str | None, Chart]]) -> list[Chart]:
    """The charts under names that differ: where several machines have one, the machine's name is appended."""
    if len(charts) == 1:
        return [chart for _, chart in charts]
    return [replace(chart, name=f"{chart.name}-{machine}") for machine, chart in charts]


def gather(
    results: Sequence[Result], problems: Sequence[str], reference: Reference, progress: Progress
) -> tuple[ReportContents, list[Filled]]:
    """The whole report, and the cells of the papers' tables."""
    items, broken = load_all()
    made, failed = [], []
    for i, item in enumerate(items):
        progress(item.name, i, 2 * len(items))  # each is filled, and then drawn
        try:
            made.append(make(item, results, reference))
        except ValueError as error:
            failed.append(f"not rendered: {item.name}: {error}")
    filled = [cells for _, cells in made if cells is not None]
    ordered = sorted(results, key=lambda result: (machine_of(result), result.spec.label, result.spec.hash))
    whole = ReportContents(
        title="Zeroth-order fine-tuning: the papers and this hardware",
        summary=tuple(summary_sheets(filled, len(results))),
        artifacts=(*(artifact for artifact, _ in made), leaderboard.artifact(ordered), fits.artifact()),
        opening=opening.opening(filled, results, reference),
        results=tuple(ordered),
        problems=(*problems, *broken, *failed),
    )
    return whole, filled
