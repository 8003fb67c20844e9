"""Forecasts for the cells of a paper's table on the paper's GPU: by a model of the paper's own program where there is
one, else by zobench's engine, and each says which (docs/predictions.md)."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from zobench import models
from zobench.cost import Rates, estimate
from zobench.cost import gpu as engine
from zobench.cost.gpu import Prediction, errors
from zobench.cost.hardware import Gpu
from zobench.cost.local import predict as machine_predicts
from zobench.cost.published import Forecast, PaperCell, cell_of, evidence, program_of
from zobench.cost.published.evidence import papers_gpus
from zobench.cost.published.memory import device_bytes, memory_share
from zobench.cost.published.seconds import is_link_anchor, link_rate, link_share, step_seconds, throughput
from zobench.cost.seconds import rates_of
from zobench.recipes.reference import PAPERS, Reference
from zobench.report.cells import Grid, TableCell, conditions, fill, flat, is_meant, mapped, meets, not_run
from zobench.report.table import Table, TableRow
from zobench.result import Facts, Result
from zobench.runspec import RunSpec

USUAL_GPU = "A100-80GB"
"""The papers' name of the GPU that is meant where a paper names none."""
BY_ENGINE = "By zobench's own engine: the paper's program has no model."
FITTED = "No test of the prediction: the constants were fitted on this value, or another table has it too."
SHARED_OUT = "By zobench's own engine as if one GPU held it all, which it does not."
VALUES: Mapping[str, Callable[[Prediction], float]] = {
    "gpu_memory": lambda prediction: prediction.device_bytes,
    "throughput": lambda prediction: prediction.tokens_per_second,
    "step_time": lambda prediction: prediction.step_seconds,
    "gpus": lambda prediction: math.ceil(prediction.device_bytes / prediction.gpu.memory),
}
"""Metric -> its predicted value in the base unit, of zobench's engine."""
_PROGRAMS: Mapping[str, Callable[[PaperCell, Gpu], float]] = {
    "gpu_memory": lambda cell, gpu: device_bytes(cell),
    "throughput": throughput,
    "step_time": step_seconds,
}
"""Metric -> its predicted value in the base unit, of a paper's program."""


def added(table: Table, grid: Grid) -> Grid:
    """``grid`` with a forecast in each cell of a cost, in a table of the papers or a column that asks for it."""
    if table.paper not in PAPERS and not any(column.predicted for column in table.columns):
        return grid
    cards = papers_gpus(anchored=True)
    named = Counter(cell.paper["gpu"] for cell in flat(grid) if cell.paper and cell.paper["gpu"] in cards)
    card = cards[named.most_common(1)[0][0] if named else USUAL_GPU]
    forecasts = mapped(grid, lambda cell: replace(cell, forecast=of(table, cell, card)))
    shares = _of_another(flat(forecasts))
    return mapped(forecasts, lambda cell: _widened(cell, shares))


def _of_another(cells: Iterable[TableCell]) -> Mapping[str, float]:
    """Metric -> the error that nine of ten predictions stay within which zobench's engine makes of another program."""
    errors: dict[str, list[float]] = {}
    for cell in cells:
        if cell.paper_value and cell.forecast and cell.forecast.of_engine and cell.forecast.value is not None:
            errors.setdefault(cell.metric.name, []).append(abs(cell.forecast.value / cell.paper_value - 1))
    return {name: evidence.quantile(shares, 0.9) for name, shares in errors.items()}


def _widened(cell: TableCell, shares: Mapping[str, float]) -> TableCell:
    """``cell`` with the error of ``shares`` where zobench's engine stands for a paper's program."""
    prediction, share = cell.forecast, shares.get(cell.metric.name, 0.0)
    if prediction is None or not prediction.of_engine or cell.column.reference is None or prediction.share >= share:
        return cell
    return replace(cell, forecast=replace(prediction, share=share))


def of(table: Table, cell: TableCell, card: Gpu) -> Forecast | None:
    """Returns the forecast for ``cell`` at ``card``; None for what no model of costs predicts, as an accuracy."""
    if not is_meant(cell.row, cell.column) or cell.column.extra or not (table.paper in PAPERS or cell.column.predicted):
        return None
    row = cell.paper
    if row is not None and cell.metric.name == "link_rate":
        rate, notes = link_rate(row, card), (FITTED,) if is_link_anchor(row) else ()
        return Forecast(value=rate, share=link_share(card), gpu=card, of_engine=False, notes=notes)
    if row is not None and cell.metric.name in _PROGRAMS and program_of(row):
        return _program(row, cell.metric.name, card)
    if cell.metric.name not in VALUES:
        return None
    where = conditions(table, cell.row, cell.column)
    return _engine({name: values[0] for name, values in where.items()}, cell, card)


def _program(row: Mapping[str, str], metric: str, card: Gpu) -> Forecast:
    cell, memory = cell_of(row), metric == "gpu_memory"
    share = (memory_share(row) if memory else None) or errors(card.errors)["memory" if memory else "throughput"]
    full = device_bytes(cell) > card.memory
    fitted = evidence.gave_group(row) if memory else evidence.repeats(row) or evidence.is_anchor(row)
    notes = [FITTED] if fitted else []
    if (reason := evidence.contradiction(row)) and not memory:
        notes.append(f"What the paper reports is contradicted: {reason}.")
    value = None if full else _PROGRAMS[metric](cell, card)
    return Forecast(value=value, share=share, gpu=card, of_engine=False, notes=tuple(notes))


def _engine(fields: Mapping[str, Any], cell: TableCell, card: Gpu) -> Forecast:
    """Out of memory only under zobench's own heading: a paper may share out over several GPUs what one cannot hold."""
    spec = RunSpec(**fields).resolve("cuda")
    prediction, is_papers = engine.predict(spec, card), cell.column.reference is not None
    notes = () if not is_papers else (BY_ENGINE if prediction.fits else SHARED_OUT,)
    return by_engine(prediction, cell.metric.name, fits=prediction.fits or is_papers, notes=notes)


def by_engine(prediction: Prediction, metric: str, *, fits: bool, notes: tuple[str, ...] = ()) -> Forecast:
    """Returns the forecast for zobench's engine in ``metric``, out of memory where it does not fit."""
    share = prediction.memory_share if metric in ("gpu_memory", "gpus") else prediction.share
    value = VALUES[metric](prediction) if fits else None
    return Forecast(value=value, share=share, gpu=prediction.gpu, of_engine=True, notes=notes)


def on_this_machine(table: Table, grid: Grid, results: Sequence[Result]) -> Grid:
    """``grid`` with what its cells should come to on the CPU that ``results`` are of, by the rates that travel with
    them (:func:`_usual`); unchanged where they have none, or are of a GPU, whose memory they do not tell."""
    runs = [result for result in results if rates_of(result) is not None and result.spec.device == "cpu"]
    if not runs or not table.paper:
        return grid
    rates, facts = _usual(runs)
    room = facts.memory_limit_bytes or math.inf

    @functools.cache  # cells of several metrics and rows ask for the same
    def predicted(spec: RunSpec) -> Prediction:
        seconds = estimate(spec, rates, runs).step_seconds
        return replace(machine_predicts(spec, rates), step_seconds=seconds)

    def foretold(cell: TableCell) -> TableCell:
        spec = _on_cpu(table, cell, rates) if not_run(cell) else None
        prediction = predicted(spec) if spec is not None else None
        if prediction is None:
            return cell
        is_too_large = prediction.device_bytes + prediction.host_bytes > room
        value = None if is_too_large else VALUES[cell.metric.name](prediction)
        gpu = replace(prediction.gpu, name=facts.machine)
        return replace(cell, on_machine=Forecast(value=value, share=prediction.share, gpu=gpu, of_engine=True))

    return mapped(grid, foretold)


def _usual(results: Sequence[Result]) -> tuple[Rates, Facts]:
    """(the rates that the median of ``results`` was measured beside, its environment), by products in float32: of runs
    that nothing disturbed, where there are any, those that computed with the most threads."""
    quiet = [result for result in results if not result.disturbances] or results
    most = max(result.environment.threads or 0 for result in quiet)
    whole = [result for result in quiet if (result.environment.threads or 0) == most]
    measured = [(rates, result.environment) for result in whole if (rates := rates_of(result)) is not None]
    return sorted(measured, key=lambda pair: pair[0].flops["fp32"])[len(measured) // 2]


def _on_cpu(table: Table, cell: TableCell, rates: Rates) -> RunSpec | None:
    """The cell's conditions, in the 16-bit type that is fastest there where any will do; None for what has no cost, or
    what only a GPU has, or is of a model that is not here."""
    if cell.metric.name not in VALUES or cell.metric.name == "gpus" or not is_meant(cell.row, cell.column):
        return None
    where = conditions(table, cell.row, cell.column)
    fields = {name: max(values, key=rates.flops.__getitem__) if name == "dtype" else values[0]
              for name, values in where.items()}  # fmt: skip
    try:
        spec = RunSpec(**fields).resolve("cpu")
    except ValueError:
        return None
    return spec if models.is_known(spec) else None


def of_predictions(table: Table, predictions: Sequence[Prediction], reference: Reference) -> Grid:
    """The cells of ``table`` with the predictions that belong in them; extra rows only where any belongs."""

    def shown(row: TableRow) -> TableRow:
        places = [conditions(table, row, column) for column in table.columns]
        wanted = any(meets(prediction.spec, where) for prediction in predictions for where in places)
        return replace(row, extra=row.extra and not wanted)

    whole = replace(table, rows=tuple(map(shown, table.rows)))
    grid = fill(whole, [], reference)
    return mapped(grid, lambda cell: replace(cell, forecast=_belonging(whole, cell, predictions)))


def _belonging(table: Table, cell: TableCell, predictions: Sequence[Prediction]) -> Forecast | None:
    """Returns, of the predictions that belong in a cell, the one with the values that the table names first."""
    where = conditions(table, cell.row, cell.column)
    fitting = [prediction for prediction in predictions if meets(prediction.spec, where)]
    if cell.metric.name not in VALUES or not fitting or not is_meant(cell.row, cell.column):
        return None
    chosen = min(fitting, key=lambda fit: [where[name].index(getattr(fit.spec, name)) for name in sorted(where)])
    needs = f"needs {chosen.device_bytes / 1e9:.1f} GB, by prediction; the GPU has {chosen.gpu.memory / 1e9:.1f} GB"
    notes = (needs,) if cell.metric.name == "gpu_memory" and not chosen.fits else ()
    return by_engine(chosen, cell.metric.name, fits=chosen.fits, notes=notes)
