"""The predicted layer of a table for a GPU that is not here: zobench's engine in every cell. Each number has a ~."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from zobench.cost.forecast import Forecast
from zobench.cost.gpu import Prediction
from zobench.recipes.reference import Reference
from zobench.report.cells import Grid, TableCell, conditions, fill, flat, is_meant, mapped, meets
from zobench.report.compose import predicted_sheet
from zobench.report.forecasts import VALUES, by_engine
from zobench.report.render import WRITERS, grids, sheets
from zobench.report.table import Table, TableRow
from zobench.result import Result
from zobench.runspec import suggestion


def render(
    table: Table, predictions: Sequence[Prediction], stored: Sequence[Result], form: str, *, width: int, color: bool
) -> str:
    """``table`` as ``predictions`` have it, then as it was measured in ``stored`` and as the papers have it."""
    if form not in WRITERS:
        raise ValueError(f"unknown format {form!r}; {suggestion(form, WRITERS)}")
    reference = Reference.load()
    grid = foretold(table, predictions, reference)
    first = [predicted_sheet(table, grid)] if any(cell.forecast for cell in flat(grid)) else []
    others = sheets(table, grids(table, stored, None, reference, foretold=False))
    return WRITERS[form]([*first, *others], width, color)


def foretold(table: Table, predictions: Sequence[Prediction], reference: Reference) -> Grid:
    """The cells of ``table`` with the predictions that belong in them; of rows that the paper does not have, those in
    which any belongs."""

    def shown(row: TableRow) -> TableRow:
        places = [conditions(table, row, column) for column in table.columns]
        wanted = any(meets(prediction.spec, where) for prediction in predictions for where in places)
        return replace(row, extra=row.extra and not wanted)

    whole = replace(table, rows=tuple(map(shown, table.rows)))
    grid = fill(whole, [], reference)
    return mapped(grid, lambda cell: replace(cell, forecast=_forecast(whole, cell, predictions)))


def _forecast(table: Table, cell: TableCell, predictions: Sequence[Prediction]) -> Forecast | None:
    """Of the predictions that belong in a cell the one with the values that the table names first."""
    where = conditions(table, cell.row, cell.column)
    fitting = [prediction for prediction in predictions if meets(prediction.spec, where)]
    if cell.metric.name not in VALUES or not fitting or not is_meant(cell.row, cell.column):
        return None
    chosen = min(fitting, key=lambda fit: [where[name].index(getattr(fit.spec, name)) for name in sorted(where)])
    needs = f"needs {chosen.device_bytes / 1e9:.1f} GB, by prediction; the GPU has {chosen.gpu.memory / 1e9:.1f} GB"
    notes = (needs,) if cell.metric.name == "gpu_memory" and not chosen.fits else ()
    return by_engine(chosen, cell.metric.name, fits=chosen.fits, notes=notes)
