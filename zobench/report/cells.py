"""Fills a table: which result belongs in each cell, what it came to, and everything a reader must know about it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

from zobench.cost.published import Forecast
from zobench.recipes.reference import Reference
from zobench.report.choice import ShownRuns, choose, outcome_note
from zobench.report.sheet import WARNING
from zobench.report.table import USUAL, Metric, Table, TableColumn, TableRow, Where
from zobench.report.terms import deviations, fields
from zobench.result import Outcome, Result
from zobench.result.quantity import Interval, Quantity
from zobench.runspec import RunSpec
from zobench.runspec.registries import METRICS
from zobench.store import evidence

_CPU_RANKS = "GPUs stand for processes here, which share the cores of one CPU and its memory's bandwidth."
_BOUND = "seq_len"
"""With a task it only bounds an example's tokens: then a table that does not name it allows any."""
DEVIATION = "Measured with "


@dataclass(frozen=True, kw_only=True, slots=True)
class TableCell:
    """One cell. ``value`` is in the base unit: of its one result, or the mean of several ``results``. ``interval``: its
    95 % interval, or the least and the most of several. ``paper`` is the matching row of the papers' values.

    ``caveats`` say how the measurement differs from what the heading promises; ``notes`` say how this cell came to be;
    ``forecast`` what it should come to on the paper's GPU, and ``on_machine`` on the machine where the
    others were measured.
    """

    row: TableRow
    column: TableColumn
    metric: Metric
    results: tuple[Result, ...]
    value: float | None
    interval: Interval | None
    paper: Mapping[str, str] | None
    caveats: tuple[str, ...]
    notes: tuple[str, ...]
    forecast: Forecast | None = None
    on_machine: Forecast | None = None

    @property
    def result(self) -> Result | None:
        """The result that is shown, the first of several."""
        return self.results[0] if self.results else None

    @property
    def quantity(self) -> Quantity:
        """The quantity that the cell shows: its metric, or the one that its column shows in that place."""
        return _quantity(self.column, self.metric)

    @property
    def paper_value(self) -> float | None:
        """The reported value in the base unit; None where the paper reports none or ran out of memory."""
        if self.paper is None or not self.paper["value"]:
            return None
        return float(self.paper["value"]) * self.metric.quantity.units[self.paper["unit"]]

    @property
    def is_inferred(self) -> bool:
        """Whether the paper leaves its value out, and others of its table imply it."""
        return self.paper is not None and self.paper["status"] == "inferred"

    @property
    def deviations(self) -> tuple[str, ...]:
        """The differences of the run from the conditions of the reported value, such as its dtype."""
        return tuple(caveat for caveat in self.caveats if caveat.startswith(DEVIATION))

    @property
    def is_derived(self) -> bool:
        """Whether the paper's value follows from others: a difference of two, or a condition of another metric's."""
        return self.column.minus is not None or bool(self.metric.quantity.beside_metric)

    @property
    def ratio(self) -> float | None:
        """Measured over reported; None unless there are both, and for what is derived."""
        if self.value is None or not self.paper_value or self.is_derived:
            return None
        return self.value / self.paper_value


def _quantity(column: TableColumn, metric: Metric) -> Quantity:
    """Returns the quantity that is shown where ``column`` and ``metric`` meet."""
    shown: Quantity = METRICS.get(column.quantity) if column.quantity else metric.quantity
    return shown


Grid = Sequence[Sequence[Sequence[TableCell]]]
"""Cells as ``[row][metric][column]``."""


def flat(grid: Grid) -> list[TableCell]:
    """All cells, row by row."""
    return [cell for row in grid for group in row for cell in group]


def mapped(grid: Grid, of: Callable[[TableCell], TableCell]) -> Grid:
    """The grid with ``of(cell)`` in place of each cell."""
    return [[[of(cell) for cell in group] for group in row] for row in grid]


def fill(table: Table, results: Sequence[Result], reference: Reference) -> Grid:
    """Cells as ``[row][metric][column]``; ``results`` are of one machine. Extra rows without one are left out."""
    common = {field: values for field, values in _usual(table).items() if field not in _elsewhere(table)}
    candidates = [result for result in results if meets(result.spec, common)]
    filled: list[list[list[TableCell]]] = []
    for row in table.rows:
        fitting = [result for result in candidates if meets(result.spec, row.where)]
        choices = [_choice(table, row, column, candidates if column.level else fitting) for column in table.columns]
        pairs = list(zip(table.columns, choices, strict=True))
        if row.extra and not any(choice.shown for column, choice in pairs if not column.level):
            continue
        base = next((choice.first for column, choice in pairs if column.header == table.baseline), None)
        filled.append(
            [
                [_cell(table, row, column, metric, choice, reference, base) for column, choice in pairs]
                for metric in table.metrics
            ]
        )
    return [[[_less(row, filled, j, cell) for cell in group] for j, group in enumerate(row)] for row in filled]


def _less(line: Sequence[Sequence[TableCell]], grid: Grid, j: int, cell: TableCell) -> TableCell:
    """``cell`` of metric ``j`` in the row ``line``; in a column of differences with that of its two cells."""
    if cell.column.minus is None:
        return cell
    first, second = cell.column.minus
    by_column = {other.column.header: other for other in line[j]}
    by_row = {row[j][0].row.header: other for row in grid for other in row[j] if other.column.header == first}
    over, under = by_column[first], by_column.get(second) or (None if cell.row.extra else by_row.get(second))
    if under is None:
        return cell
    value, paper = None, None
    if over.value is not None and under.value is not None:
        value = over.value - under.value
    if over.paper and under.paper and over.paper["value"] and under.paper["value"]:
        less = Decimal(over.paper["value"]) - Decimal(under.paper["value"])
        paper = {**over.paper, "value": str(less), "status": "ok"}
    return replace(cell, results=() if value is None else (*over.results, *under.results), value=value, paper=paper)


def _usual(table: Table) -> Where:
    """The conditions on all cells: a field that the table does not mention must have its usual value."""
    tuned = "task" in table.where or "task" in _elsewhere(table)
    return {**{field: values for field, values in USUAL.items() if field != _BOUND or not tuned}, **table.where}


def _elsewhere(table: Table) -> set[str]:
    """Fields on which the rows or columns of ``table`` have conditions."""
    lines: list[TableRow | TableColumn] = [*table.rows, *table.columns]
    return {field for line in lines for field in line.where}


def meets(spec: RunSpec, where: Where) -> bool:
    """Whether ``spec`` has one of the allowed values in every field of ``where``."""
    return all(getattr(spec, field) in values for field, values in where.items())


def is_meant(row: TableRow, column: TableColumn) -> bool:
    """Whether a run can belong where ``row`` and ``column`` meet. None can in a column of differences, nor where an
    extra row and an extra column have conditions on the same field."""
    return column.minus is None and not (row.extra and column.extra and row.where.keys() & column.where.keys())


def not_run(cell: TableCell) -> bool:
    """Whether the cell's run was never started: it has no result, or one whose outcome is "skipped"."""
    return cell.result is None or cell.result.outcome is Outcome.SKIPPED


def conditions(table: Table, row: TableRow, column: TableColumn) -> Where:
    """Returns the conditions that a result must satisfy to belong in a cell."""
    return {**_usual(table), **_line_conditions(row, column)}


def _line_conditions(row: TableRow, column: TableColumn) -> Where:
    """The conditions of the row and the column; on the same field the row's hold, or those of a ``level`` column."""
    return {**row.where, **column.where} if column.level else {**column.where, **row.where}


def belongs(table: Table, spec: RunSpec) -> bool:
    """Whether a run of ``spec`` has a place in ``table``."""
    pairs = ((row, column) for row in table.rows for column in table.columns if is_meant(row, column))
    usual = _usual(table)
    return any(meets(spec, {**usual, **_line_conditions(row, column)}) for row, column in pairs)


def mismatch(table: Table, results: Sequence[Result]) -> str:
    """Why none of ``results`` has a place in ``table``: what it needs that none of them has; "" if one has a place."""
    if any(_choice(table, row, column, results).shown for row in table.rows for column in table.columns):
        return ""
    every = [conditions(table, row, column) for row in table.rows for column in table.columns if is_meant(row, column)]
    unmet = []
    for field, usual in _usual(table).items():
        values: list[Any] = []  # some cannot be hashed
        for value in (value for where in every for value in where[field]):
            values += [] if value in values else [value]
        if not any(getattr(result.spec, field) in values for result in results):
            usual_first = sorted(values, key=lambda value: value not in usual)
            unmet.append(f"{field}={' or '.join(map(str, usual_first))}")
    needs = f"it needs {', '.join(unmet)}" if unmet else "its rows and columns are about others"
    return f"none of these {len(results)} results belongs in {table.name}: {needs}"


def _choice(table: Table, row: TableRow, column: TableColumn, results: Iterable[Result]) -> ShownRuns:
    """Returns which of ``results`` the cell of ``row`` and ``column`` shows."""
    if not is_meant(row, column):
        return ShownRuns()
    where = conditions(table, row, column)
    return choose(where, [result for result in results if meets(result.spec, where)], row.over)


def _cell(
    table: Table, row: TableRow, column: TableColumn, metric: Metric, choice: ShownRuns, reference: Reference,
    base: Result | None,
) -> TableCell:  # fmt: skip
    """One cell; ``base``: the result that the baseline's column shows in its row."""
    result, quantity = choice.first, _quantity(column, metric)
    paper = reference.find(wanted) if (wanted := _reported(table, row, column, metric)) else None
    if paper is not None and metric.quantity.beside_metric:
        paper = {**paper, "metric": metric.name, "unit": metric.unit, "value": paper[metric.name]}
    if paper is not None and paper["unit"] not in (units := metric.quantity.units):
        raise ValueError(f"`{metric.name}` must be in {' or '.join(units)}, but got {paper['unit']}; convert it")
    value = choice.value(quantity, base)
    once = result is not None and result.evaluation and len(table.metrics) > 1
    notes = [] if result is None or result.outcome is Outcome.OK else [outcome_note(result)]
    caveats = [_caveats(row, column, metric, result_shown, paper) for result_shown in choice.shown if value is not None]
    return TableCell(
        row=row,
        column=column,
        metric=metric,
        results=choice.shown,
        value=value,
        interval=choice.interval(quantity),
        paper=paper,
        caveats=tuple(dict.fromkeys(itertools.chain(*caveats))),
        notes=(*notes, *choice.note(metric, None if once else quantity)),
    )


def _reported(table: Table, row: TableRow, column: TableColumn, metric: Metric) -> Mapping[str, str]:
    """The columns by which a cell's paper value is looked up; empty where the paper can have none."""
    if column.reference is None or row.reference is None or metric.quantity.share:
        return {}
    source = {"paper": table.paper, "artifact": table.artifact} if table.paper else {}
    name = metric.quantity.beside_metric or metric.name
    wanted = {**source, "metric": name, **table.reference, **column.reference, **row.reference}
    return wanted if "paper" in wanted else {}


def _caveats(
    row: TableRow, column: TableColumn, metric: Metric, result: Result, paper: Mapping[str, str] | None
) -> tuple[str, ...]:
    """Returns what a cell's heading does not say of its number: other fields, warnings, shared weights."""
    spec = result.spec
    quantity = _quantity(column, metric)
    notes = list(quantity.remarks(result))
    if spec.gpus > 1 and spec.device.startswith("cpu"):
        notes.append(_CPU_RANKS)
    common = fields(paper) if paper else {}
    for field, (ran_with, reported) in (deviations(spec, paper) if paper else {}).items():
        notes.append(f"{DEVIATION}{field} {ran_with}; the paper has {reported}.")
    for field, (meant, *allowed) in _line_conditions(row, column).items():
        if allowed and field not in (*common, row.over) and getattr(spec, field) != meant:
            notes.append(f"{DEVIATION}{field} {getattr(spec, field)}; the heading means {meant}.")
    if spec.weights == "shared":
        notes.append("Weights are shared: a few real blocks stand for all layers, for time and memory only.")
    if result.skipped_updates:
        notes.append(f"{result.skipped_updates} updates were skipped, because the losses were not finite.")
    remarks = evidence.remarks(result) if quantity.timed else []
    notes += [f"{text[0].upper()}{text[1:]}." for text in remarks]
    timeless = quantity.steady or (quantity.learned and quantity.base_unit != "s")
    of_times = result.disturbances if timeless else ()
    return (*notes, *(f"{WARNING}{warning}" for warning in result.warnings if warning not in of_times))
