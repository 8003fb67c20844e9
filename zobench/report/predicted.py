"""The predicted layer of a table for a GPU that is not here: zobench's engine in every cell. Each number has a ~."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from zobench.predict.forecast import Forecast
from zobench.predict.gpu import Prediction
from zobench.recipes.reference import Reference
from zobench.report.cells import TableCell, conditions, fill, flat, is_meant, mapped, meets
from zobench.report.compose import Grid, predicted_sheet
from zobench.report.forecasts import VALUES
from zobench.report.render import WRITERS, grids, sheets
from zobench.report.table import Table, TableRow
from zobench.result import Result
from zobench.runspec import suggestion


def render(
    table: Table, known: Sequence[Prediction], stored: Sequence[Result], form: str, *, width: int, color: bool
) -> str:
    """``table`` as it is predicted by ``known``, then as it was measured in ``stored`` and as the papers have it."""
    if form not in WRITERS:
        raise ValueError(f"unknown format {form!r}; {suggestion(form, WRITERS)}")
    reference = Reference.load()
    grid = foretold(table, known, reference)
    ahead = [predicted_sheet(table, grid)] if any(cell.forecast for cell in flat(grid)) else []
    others = sheets(table, grids(table, stored, None, reference, foretold=False))
    return WRITERS[form]([*ahead, *others], width, color)


def foretold(table: Table, known: Sequence[Prediction], reference: Reference) -> Grid:
    """The cells of ``table`` with the predictions that belong in them; of rows that the paper does not have, those in
    which any belongs."""

    def shown(row: TableRow) -> TableRow:
        places = [conditions(table, row, column) for column in table.columns]
        return replace(row, extra=row.extra and not any(meets(one.spec, where) for one in known for where in places))

    whole = replace(table, rows=tuple(map(shown, table.rows)))
    grid = fill(whole, [], reference)
    return mapped(grid, lambda cell: replace(cell, forecast=_forecast(whole, cell, known)))


def _forecast(table: Table, cell: TableCell, known: Sequence[Prediction]) -> Forecast | None:
    """Of the predictions that belong in a cell the one with the values that the table names first."""
    where = conditions(table, cell.row, cell.column)
    fitting = [one for one in known if meets(one.spec, where)]
    if cell.metric.name not in VALUES or not fitting or not is_meant(cell.row, cell.column):
        return None
    chosen = min(fitting, key=lambda one: [where[name].index(getattr(one.spec, name)) for name in sorted(where)])
    share = chosen.memory_share if cell.metric.name in ("gpu_memory", "gpus") else chosen.share
    if chosen.fits:
        return Forecast(value=VALUES[cell.metric.name](chosen), share=share, gpu=chosen.gpu, own=True)
    needs = f"needs {chosen.device_bytes / 1e9:.1f} GB, by prediction; the GPU has {chosen.gpu.memory / 1e9:.1f} GB"
    notes = (needs,) if cell.metric.name == "gpu_memory" else ()
    return Forecast(value=None, share=share, gpu=chosen.gpu, own=True, notes=notes)
