"""Fills a table: which result belongs in each cell, what it came to, and everything a reader must know about it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from zobench.report.quantity import QUANTITIES, rounded
from zobench.report.reference import Reference
from zobench.report.table import Column, Metric, Row, Table, Where
from zobench.result import Outcome, Result
from zobench.spec import FIELDS, RunSpec

_CPU_MEMORY = "Measured on a CPU: the process's peak resident memory above its baseline, not GPU memory."
_CUDA_MEMORY = "Measured as the allocator's peak; the paper reads NVML, which adds the CUDA context and the cache."
_LISTED = 3
_LONGEST = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One cell. ``value`` is in the base unit; ``paper`` is the matching row of the papers' values.

    ``caveats`` say how the measurement differs from what the heading promises; ``notes`` say how this cell came to be.
    """

    row: Row
    column: Column
    metric: Metric
    result: Result | None
    value: float | None
    paper: Mapping[str, str] | None
    caveats: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def paper_value(self) -> float | None:
        """The reported value in the base unit; None where the paper reports none or ran out of memory."""
        if self.paper is None or not self.paper["value"]:
            return None
        return float(self.paper["value"]) * QUANTITIES[self.metric.name].scale


def fill(table: Table, results: Sequence[Result], reference: Reference) -> list[list[list[Cell]]]:
    """Cells as ``[row][metric][column]``; ``results`` are of one machine. Extra rows without one are left out."""
    filled = []
    for row in table.rows:
        found = [_matches(table, row, column, results) for column in table.columns]
        if row.extra and not any(found):
            continue
        pairs = list(zip(table.columns, found, strict=True))
        filled.append(
            [
                [_cell(table, row, column, metric, matched, reference) for column, matched in pairs]
                for metric in table.metrics
            ]
        )
    return filled


def _matches(table: Table, row: Row, column: Column, results: Iterable[Result]) -> list[Result]:
    """Results that satisfy all conditions of the cell, the preferred one first.

    Preferred are, in order: finished ones, the values listed first in the table, fields at their usual values.
    """
    where = {**table.where, **column.where, **row.where}
    fitting = [result for result in results if all(getattr(result.spec, key) in where[key] for key in where)]
    return sorted(fitting, key=lambda result: _preference(where, result))


def _preference(where: Where, result: Result) -> tuple[Any, ...]:
    values = result.spec.to_dict()
    listed = tuple(where[key].index(values[key]) for key in sorted(where))
    usual = RunSpec(model="any", engine=result.spec.engine).resolve(result.spec.device).to_dict()
    unusual = sum(values[key] != usual[key] for key in FIELDS if key not in where)
    return result.outcome is not Outcome.OK, listed, unusual, result.spec.hash


def _cell(
    table: Table, row: Row, column: Column, metric: Metric, matched: Sequence[Result], reference: Reference
) -> Cell:
    result = matched[0] if matched else None
    paper = reference.find(conditions) if (conditions := _conditions(table, row, column, metric)) else None
    if paper is not None and paper["unit"] != QUANTITIES[metric.name].shown_unit:
        raise ValueError(
            f"`{metric.name}` must be in {QUANTITIES[metric.name].shown_unit}, but got {paper['unit']}; convert it"
        )
    value = QUANTITIES[metric.name].of(result) if result else None
    notes = [] if result is None or result.outcome is Outcome.OK else [_outcome_note(result)]
    if len(matched) > 1:
        notes.append(_choice_note(matched, metric))
    return Cell(
        row=row,
        column=column,
        metric=metric,
        result=result,
        value=value,
        paper=paper,
        caveats=_caveats(row, column, metric, result) if result and value is not None else (),
        notes=tuple(notes),
    )


def _conditions(table: Table, row: Row, column: Column, metric: Metric) -> Mapping[str, str]:
    """What the paper's value of a cell is found by; empty where it can have none."""
    if not table.paper or not column.reference or QUANTITIES[metric.name].share:
        return {}
    own = {"paper": table.paper, "artifact": table.artifact, "metric": metric.name}
    return {**own, **column.reference, **row.reference}


def needed(result: Result) -> str:
    """``needs 27.2 GB``: what a skipped cell lacked, short enough for its place in the table, or ""."""
    head, of, _ = result.reason.partition(" of ")
    return head if result.outcome is Outcome.SKIPPED and of and head.startswith("needs ") else ""


def _outcome_note(result: Result) -> str:
    if needed(result):  # one note serves all cells that lacked the same thing
        return f"skipped, by prediction: {result.reason.partition(' of ')[2].partition(' (')[0]}"
    reason = textwrap.shorten(result.reason, _LONGEST, placeholder=" ...") or "no reason was recorded"
    name = {"oom": "out of memory"}.get(result.outcome, str(result.outcome))
    return f"{name}: {reason}"


def _choice_note(matched: Sequence[Result], metric: Metric) -> str:
    """Says which of several results is shown and what the others came to."""
    dicts = [result.spec.to_dict() for result in matched]
    differing = [key for key in FIELDS if len({values[key] for values in dicts}) > 1]

    def told(result: Result) -> str:
        value = QUANTITIES[metric.name].of(result)
        scale = QUANTITIES[metric.name].scale
        ending = str(result.outcome) if value is None else rounded(value / scale, metric.format)
        return " ".join(f"{key}={getattr(result.spec, key)}" for key in differing) + f" ({ending})"

    others = "; ".join(told(result) for result in matched[1 : 1 + _LISTED])
    more = f"; and {len(matched) - 1 - _LISTED} more" if len(matched) > 1 + _LISTED else ""
    return f"{len(matched)} results match. Shown: {told(matched[0])}. Not shown: {others}{more}."


def _caveats(row: Row, column: Column, metric: Metric, result: Result) -> tuple[str, ...]:
    """What a reader of the heading would not expect of this number; read from the result itself."""
    spec = result.spec
    notes = []
    if metric.name == "gpu_memory":
        notes.append(_CPU_MEMORY if spec.device.startswith("cpu") else _CUDA_MEMORY)
    for field, expected in column.reference.items():
        if field in FIELDS and str(getattr(spec, field)) != expected:
            notes.append(f"Measured with {field} {getattr(spec, field)}; the paper has {expected}.")
    for field, (meant, *others) in {**column.where, **row.where}.items():
        if others and field not in column.reference and getattr(spec, field) != meant:
            notes.append(f"Measured with {field} {getattr(spec, field)}; the heading means {meant}.")
    if spec.weights == "shared":
        notes.append("Weights are shared: a few real blocks stand for all layers, for time and memory only.")
    if result.skipped_updates:
        notes.append(f"{result.skipped_updates} updates were skipped, because the losses were not finite.")
    return (*notes, *(f"Warning: {warning}" for warning in result.warnings))
