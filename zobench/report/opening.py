"""The opening of a report: one chart of what offloading costs relative to MeZO's own way, and three sentences."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from zobench.recipes.reference import Reference
from zobench.report.cells import Grid, TableCell, flat
from zobench.report.chart import Chart, Mark, Panel, Series
from zobench.report.compose import measured_on, paired, paper_source, relative
from zobench.report.contents import Artifact, Opening
from zobench.report.forecast_text import ratio
from zobench.report.render import grids
from zobench.report.sheet import span
from zobench.report.summary import Filled, in_words, verdicts
from zobench.report.table import Table, load_table
from zobench.result import Result

NAME = "opening"
_RECIPE = Path(__file__).with_name("opening.toml")


def opening(filled: Sequence[Filled], results: Sequence[Result], reference: Reference) -> Opening:
    """The chart and the sentences of a report on ``results``, of the machine that has most of the chart's values."""
    table = load_table(_RECIPE)
    shown = grids(table, results, None, reference, foretold=False)
    machine, grid = max(shown, key=lambda item: sum(cell.value is not None for cell in flat(item[1])))
    counts = verdicts(filled, machine)
    papers = [row for row in grid if not row[0][0].row.extra]  # an extra row has the values of another paper's table
    paper = _phrase(table, papers, 1, _reported)
    third = f"In the paper {paper}; of all papers' {sum(counts.values())} claims here: {in_words(counts)}."
    return Opening(chart=_chart(table, grid, machine), sentences=(*_measured_sentences(table, grid, machine), third))


def artifact(shown: Opening) -> Artifact:
    """The opening's chart as a figure of the report."""
    return Artifact(name=NAME, kind="figure", title=shown.chart.title, paper="", runner="", sheets=(),
                    charts=(shown.chart,))  # fmt: skip


def _mark(cell: TableCell, base: TableCell) -> Mark:
    """``cell`` over the baseline in the same row, from the rounds in which both ran, with its 95 % interval. Empty for
    times of a single process, and where other programs disturbed most of the processes of one of the two."""
    value, interval = relative(cell, base)
    if cell.quantity.timed and (interval is None or _is_disturbed(cell) or _is_disturbed(base)):
        return Mark()
    low, high = interval or (None, None)
    return Mark(value=value, low=low, high=high)


def _is_disturbed(cell: TableCell) -> bool:
    """Whether other programs kept the machine busy during more than half of the cell's processes."""
    runs = cell.result.runs if cell.result else ()
    return 2 * sum(bool(run.disturbances) for run in runs) > len(runs)


def _reported(cell: TableCell, base: TableCell) -> Mark:
    """Returns the paper's value of ``cell`` over that of the baseline in the same row."""
    return Mark(value=ratio(cell.paper_value, base.paper_value))


def _chart(table: Table, grid: Grid, machine: str | None) -> Chart:
    """Returns the chart of what was measured, if anything was, with the paper's values beside it; else of the paper's
    alone."""
    panels = [_panel(table, grid, j) for j in range(len(table.metrics))]
    measured = [panel for panel in panels if any(mark.value is not None for mark in panel.marks)]
    drawn = {position for panel in measured or panels for position in panel.positions}
    cells = flat([row for row in grid if row[0][0].row.header in drawn])
    source = "; ".join([*([measured_on(cells, machine)] if measured else []), *paper_source(cells)])
    return Chart(
        name=NAME, kind="bars", title=table.title, source=source[:1].upper() + source[1:], remarks=(table.caption,),
        panels=tuple(measured or panels),
    )  # fmt: skip


def _panel(table: Table, grid: Grid, j: int) -> Panel:
    """Metric ``j``: the rows and columns that have something measured, or where none has, those that a paper has."""
    groups, columns = [row[j] for row in grid], range(1, len(table.columns))
    for of in (_mark, _reported):
        rows = [group for group in groups if any(of(group[k], group[0]).value is not None for k in columns)]
        if rows:
            break
    series = tuple(
        Series(label=table.columns[k].header, marks=tuple(_mark(group[k], group[0]) for group in rows),
               paper=tuple(_reported(group[k], group[0]).value for group in rows))
        for k in columns if any(of(group[k], group[0]).value is not None for group in rows)
    )  # fmt: skip
    return Panel(
        title=table.metrics[j].header, y_label=f"relative to {table.baseline}", series=series,
        positions=tuple(group[0].row.header for group in rows), limit=(1.0, f"1: as {table.baseline}"),
    )  # fmt: skip


def _measured_sentences(table: Table, grid: Grid, machine: str | None) -> tuple[str, ...]:
    """Returns sentences on what was measured, and on what evidence; or how to begin."""
    columns = range(1, len(table.columns))
    phrases = [_phrase(table, grid, k, _mark) for k in columns]
    if not any(phrases):
        return ("Nothing that a paper compares was measured here yet: `zobench sweep main_table` begins with it.",)
    where = measured_on(flat(grid), machine).removeprefix("measured ")
    first = f"{where[:1].upper()}{where[1:]}, {'; '.join(filter(None, phrases))}."
    pairs = [(row[1][k], row[1][0]) for row in grid for k in columns]
    measured = [pair for pair in pairs if all(cell.value is not None for cell in pair)]
    drawn = [pair for pair in measured if _mark(*pair).value is not None]
    left = [pair for pair in measured if _mark(*pair).value is None]
    second = "; ".join([*_evidence(drawn), *_left_out(left)])
    return first, *([f"{second[0].upper()}{second[1:]}."] if second else [])


def _evidence(pairs: Sequence[tuple[TableCell, TableCell]]) -> Iterator[str]:
    """From how many rounds the ratios of times are, and how much of the machine other programs used meanwhile."""
    runs = [run for pair in pairs for cell in pair if cell.result for run in cell.result.runs]
    if runs:
        rounds = span([str(shared.pairs) for cell, base in pairs if (shared := paired(cell, base))])
        yield f"throughputs are from {rounds} rounds in which both ran, in parentheses the 95 % interval"
    loads = [load for run in runs if (load := run.power.get("other_cpu_cores")) is not None]
    if loads:
        cores = runs[0].environment.cores_available
        yield f"meanwhile other programs used at most {max(loads):.2g}{f' of {cores}' if cores else ''} cores"


def _left_out(pairs: Sequence[tuple[TableCell, TableCell]]) -> Iterator[str]:
    """Which measured ratios of times are not shown, and what gives them."""
    busy = sum(_is_disturbed(cell) or _is_disturbed(base) for cell, base in pairs)
    causes = {"disturbed by other programs": busy, "of single processes or without a shared round": len(pairs) - busy}
    counts = " and ".join(f"{count} {cause}" for cause, count in causes.items() if count)
    if pairs:
        how = "`zobench sweep main_table --repeats 6` on an idle machine gives them"
        yield f"throughput ratios left out: {counts}; {how}"


def _phrase(table: Table, grid: Grid, k: int, of: Callable[[TableCell, TableCell], Mark]) -> str:
    """``ZO2 needs 0.25 to 0.6 of MeZO's memory and has 0.97 (0.95 to 0.99, OPT-1.3B) of its throughput``, the least and
    the most of several rows; ``of``: the mark of a cell over its baseline."""
    base, parts = table.baseline, []
    shares = [of(row[0][k], row[0][0]).value for row in grid]
    if numbers := span([f"{share:.2g}" for share in shares if share is not None]):
        parts.append(f"needs {numbers} of {base}'s memory")
    marks = [(of(row[1][k], row[1][0]), row[0][0].row.header) for row in grid]
    shown = sorted((pair for pair in marks if pair[0].value is not None), key=lambda pair: pair[0].value or 0.0)
    if shown:
        ends = dict.fromkeys(_number(*pair) for pair in (shown[0], shown[-1]))
        parts.append(f"has {' to '.join(ends)} of {'its' if parts else base + chr(39) + 's'} throughput")
    return f"{table.columns[k].header} {' and '.join(parts)}" if parts else ""


def _number(mark: Mark, row: str) -> str:
    """``0.97 (0.95 to 0.99, OPT-1.3B)``"""
    interval = "" if mark.low is None or mark.high is None else f"{mark.low:.2f} to {mark.high:.2f}, "
    return f"{mark.value:.2f} ({interval}{row})"
