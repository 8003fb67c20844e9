"""What a cell of a paper's table should come to on the paper's GPU: by a model of the paper's own program where there
is one, else by zobench's engine, and each says which (docs/predictions.md)."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from zobench import models
from zobench.predict import Rates, estimate
from zobench.predict import gpu as engine
from zobench.predict.forecast import Forecast
from zobench.predict.gpu import Prediction, errors
from zobench.predict.hardware import Gpu
from zobench.predict.here import predict as machine_predicts
from zobench.predict.published import evidence, transfers
from zobench.predict.published.cell import PROGRAMS, Cell, cell_of
from zobench.predict.published.memory import device_bytes
from zobench.predict.published.seconds import step_seconds, throughput
from zobench.predict.published.validation import memory_share, papers_gpus, quantile
from zobench.predict.seconds import rates_of
from zobench.recipes.reference import PAPERS
from zobench.report.cells import Grid, TableCell, conditions, flat, is_meant, mapped, not_run
from zobench.report.table import Table
from zobench.result import Result
from zobench.runspec import RunSpec

USUAL_GPU = "A100-80GB"
"""The papers' name of the GPU that is meant where a paper names none."""
OWN = "By zobench's own engine: the paper's program has no model."
FITTED = "No test of the prediction: the constants were fitted on this value, or another table has it too."
SHARED_OUT = "By zobench's own engine as if one GPU held it all, which it does not."
VALUES: Mapping[str, Callable[[Prediction], float]] = {
    "gpu_memory": lambda known: known.device_bytes,
    "throughput": lambda known: known.tokens_per_second,
    "step_time": lambda known: known.step_seconds,
    "gpus": lambda known: math.ceil(known.device_bytes / known.gpu.memory),
}
"""Metric -> its predicted value in the base unit, of zobench's engine."""
_PROGRAMS: Mapping[str, Callable[[Cell, Gpu], float]] = {
    "gpu_memory": lambda cell, gpu: device_bytes(cell),
    "throughput": throughput,
    "step_time": step_seconds,
}
"""Likewise of a paper's program."""


def added(table: Table, grid: Grid) -> Grid:
    """``grid`` with a forecast in each cell that can have one: of a cost, in a table of the five papers or a column
    that asks for it."""
    if table.paper not in PAPERS and not any(column.predicted for column in table.columns):
        return grid
    place = gpu_of(flat(grid))
    told = mapped(grid, lambda cell: replace(cell, forecast=of(table, cell, place)))
    shares = _of_another(flat(told))
    return mapped(told, lambda cell: _widened(cell, shares))


def _of_another(cells: Iterable[TableCell]) -> Mapping[str, float]:
    """Metric -> the error that nine of ten predictions stay within which zobench's engine makes of another program."""
    errors: dict[str, list[float]] = {}
    for cell in cells:
        if cell.paper_value and cell.forecast and cell.forecast.own and cell.forecast.value is not None:
            errors.setdefault(cell.metric.name, []).append(abs(cell.forecast.value / cell.paper_value - 1))
    return {name: quantile(sorted(shares), 0.9) for name, shares in errors.items()}


def _widened(cell: TableCell, shares: Mapping[str, float]) -> TableCell:
    """``cell`` with the error of ``shares`` where zobench's engine stands for a paper's program."""
    known, share = cell.forecast, shares.get(cell.metric.name, 0.0)
    if known is None or not known.own or cell.column.reference is None or known.share >= share:
        return cell
    return replace(cell, forecast=replace(known, share=share))


def gpu_of(cells: Iterable[TableCell]) -> Gpu:
    """The GPU that a paper's table is about."""
    told = Counter(cell.paper["gpu"] for cell in cells if cell.paper and cell.paper["gpu"])
    return _gpus()[told.most_common(1)[0][0] if told else USUAL_GPU]


@functools.cache
def _gpus() -> Mapping[str, Gpu]:
    return papers_gpus(anchored=True)


def of(table: Table, cell: TableCell, place: Gpu) -> Forecast | None:
    """What ``cell`` should come to at ``place``; None for what no model of costs predicts, as an accuracy."""
    if not is_meant(cell.row, cell.column) or cell.column.extra or not (table.paper in PAPERS or cell.column.predicted):
        return None
    row = cell.paper
    if row is not None and cell.metric.name == "link_rate":
        return _transfer(row, place)
    if row is not None and cell.metric.name in _PROGRAMS and (row["paper"], _family(row)) in PROGRAMS:
        return _program(row, cell.metric.name, place)
    if cell.metric.name not in VALUES:
        return None
    where = conditions(table, cell.row, cell.column)
    return _engine({name: values[0] for name, values in where.items()}, cell, place)


def _family(row: Mapping[str, str]) -> str:
    return models.get(row["model"]).model_type


def _program(row: Mapping[str, str], metric: str, place: Gpu) -> Forecast:
    cell, memory = cell_of(row), metric == "gpu_memory"
    share = (memory_share(row) if memory else None) or errors(place)["memory" if memory else "throughput"]
    full = device_bytes(cell) > place.memory
    fitted = evidence.gave_group(row) if memory else evidence.repeats(row) or evidence.is_anchor(row)
    notes = [FITTED] if fitted else []
    if (reason := evidence.contradiction(row)) and not memory:
        notes.append(f"What the paper reports is contradicted: {reason}.")
    value = None if full else _PROGRAMS[metric](cell, place)
    return Forecast(value=value, share=share, gpu=place, own=False, notes=tuple(notes))


def _transfer(row: Mapping[str, str], place: Gpu) -> Forecast:
    notes = (FITTED,) if transfers.is_anchor(row) else ()
    return Forecast(
        value=transfers.rate(row, place), share=transfers.share(place), gpu=place, own=False, notes=notes
    )  # fmt: skip


def _engine(fields: Mapping[str, Any], cell: TableCell, place: Gpu) -> Forecast:
    """Out of memory only under zobench's own heading: a paper may share out over several GPUs what one cannot hold."""
    spec = RunSpec(**fields).resolve("cuda")
    known, metric = _known(spec, place), cell.metric.name
    share = known.memory_share if metric in ("gpu_memory", "gpus") else known.share
    theirs = cell.column.reference is not None
    notes = [] if not theirs else [OWN if known.fits else SHARED_OUT]
    value = VALUES[metric](known) if known.fits or theirs else None
    return Forecast(value=value, share=share, gpu=place, own=True, notes=tuple(notes))


@functools.cache
def _known(spec: RunSpec, place: Gpu) -> Prediction:
    return engine.predict(spec, place)


def here(table: Table, grid: Grid, results: Sequence[Result]) -> Grid:
    """``grid`` with what its cells should come to on the CPU that ``results`` are of, by the rates that travel with
    them (:func:`_usual`); unchanged where they have none, or are of a GPU, whose memory they do not tell."""
    known = [one for one in results if rates_of(one) is not None and one.spec.device == "cpu"] if table.paper else []
    if not known:
        return grid
    rates, facts = _usual(known)
    room = facts.get("memory_limit_bytes") or math.inf

    def foretold(cell: TableCell) -> TableCell:
        ahead = _here(table, cell, rates, known) if not_run(cell) else None
        if ahead is None:
            return cell
        is_too_large = ahead.device_bytes + ahead.host_bytes > room
        value = None if is_too_large else VALUES[cell.metric.name](ahead)
        gpu = replace(ahead.gpu, name=facts["machine"])
        return replace(cell, here=Forecast(value=value, share=ahead.share, gpu=gpu, own=True))

    return mapped(grid, foretold)


def _usual(results: Sequence[Result]) -> tuple[Rates, Mapping[str, Any]]:
    """(the rates that the median of ``results`` was measured beside, its environment), by products in float32: of runs
    that nothing disturbed, where there are any, those that computed with the most threads."""
    quiet = [one for one in results if not one.disturbances] or results
    most = max(one.environment.get("threads") or 0 for one in quiet)
    whole = [one for one in quiet if (one.environment.get("threads") or 0) == most]
    known = [(rates, one.environment) for one in whole if (rates := rates_of(one)) is not None]
    return sorted(known, key=lambda pair: pair[0].flops["fp32"])[len(known) // 2]


def _here(table: Table, cell: TableCell, rates: Rates, results: Sequence[Result]) -> Prediction | None:
    """Of the cell's conditions, in the 16-bit type that is fastest there where any will do; ``results`` correct it."""
    if cell.metric.name not in VALUES or cell.metric.name == "gpus" or not is_meant(cell.row, cell.column):
        return None
    where = conditions(table, cell.row, cell.column)
    fields = {name: max(values, key=rates.flops.__getitem__) if name == "dtype" else values[0]
              for name, values in where.items()}  # fmt: skip
    try:
        spec = RunSpec(**fields).resolve("cpu")
    except ValueError:  # what only a GPU has
        return None
    seconds = estimate(spec, rates, results).step_seconds
    return replace(machine_predicts(spec, rates), step_seconds=seconds)
