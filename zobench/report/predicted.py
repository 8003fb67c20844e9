"""The predicted layer of a table: zobench's engine on a GPU that is not here. Each number has a ~."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from zobench.predict.gpu import Prediction
from zobench.predict.hardware import Gpu
from zobench.recipes.reference import Reference
from zobench.report.cells import TableCell, conditions, fill, meets
from zobench.report.compose import NO_VALUE, OUT_OF_MEMORY, sheet_of, times
from zobench.report.forecasts import VALUES
from zobench.report.formats import latex, markdown, terminal
from zobench.report.quantity import rounded
from zobench.report.render import grids, sheets
from zobench.report.sheet import CellText, Sheet
from zobench.report.table import Table, TableColumn, TableRow
from zobench.result import Result
from zobench.runspec import suggestion

FORMS: Mapping[str, Callable[[Sequence[Sheet], int, bool], str]] = {
    "terminal": terminal.write,
    "markdown": lambda sheets, width, color: markdown.write(sheets),
    "latex": lambda sheets, width, color: latex.write(sheets),
}


def render(
    table: Table, known: Sequence[Prediction], gpu: Gpu, stored: Sequence[Result], form: str, *, width: int, color: bool
) -> str:
    """``table`` as it is predicted for ``gpu``, then as it was measured in ``stored`` and as the papers have it."""
    if form not in FORMS:
        raise ValueError(f"unknown format {form!r}; {suggestion(form, FORMS)}")
    reference = Reference.load()
    others = sheets(table, grids(table, stored, None, reference, foretold=False))
    return FORMS[form]([sheet(table, known, gpu, reference), *others], width, color)


def sheet(table: Table, known: Sequence[Prediction], gpu: Gpu, reference: Reference) -> Sheet:
    """The predictions that belong in ``table``, each with predicted / reported where a paper reports a value.
    Of columns that the paper does not have, those in which any belongs."""
    rows = [replace(row, extra=row.extra and not _any(table, [row], table.columns, known)) for row in table.rows]
    columns = [column for column in table.columns if not column.extra or _any(table, table.rows, [column], known)]
    metrics = [one for one in table.metrics if one.name in VALUES]
    whole = replace(table, rows=tuple(rows), columns=tuple(columns), metrics=tuple(metrics))
    grid = fill(whole, [], reference)
    (share, memory) = (known[0].share, known[0].memory_share) if known else (0.0, 0.0)
    remarks = [
        *([table.caption] if table.caption else []),
        f"~ is predicted for one {gpu.name} and zobench's own engine; nothing here was measured. Nine of ten held-out "
        f"values of the papers' programs were within {share:.1%} (throughput) and {memory:.1%} (memory) of such "
        "predictions.",
        "(x) is predicted / reported by the paper, whose program and GPU may be others.",
        f"{OUT_OF_MEMORY} means predicted out of memory; {NO_VALUE} that no cell of this matrix belongs there.",
    ]
    source = f"predicted for {gpu.name}, not measured"
    return sheet_of(whole, grid, "predicted", gpu.name, source, lambda group, k: _text(whole, group[k], known), remarks)


def _any(table: Table, rows: Sequence[TableRow], columns: Sequence[TableColumn], known: Iterable[Prediction]) -> bool:
    """Whether any prediction belongs in one of ``rows`` and ``columns``."""
    places = [conditions(table, row, column) for row in rows for column in columns]
    return any(meets(one.spec, where) for one in known for where in places)


def _text(table: Table, cell: TableCell, known: Sequence[Prediction]) -> CellText:
    where = conditions(table, cell.row, cell.column)
    fitting = [one for one in known if not cell.lacks and meets(one.spec, where)]
    if not fitting:
        return CellText(text=NO_VALUE, tone="blank")
    values = [one.spec.to_dict() for one in fitting]
    best = min(range(len(fitting)), key=lambda i: [where[key].index(values[i][key]) for key in sorted(where)])
    chosen = fitting[best]
    if not chosen.fits:
        needs = f"needs {chosen.device_bytes / 1e9:.1f} GB, by prediction; the GPU has {chosen.gpu.memory / 1e9:.1f} GB"
        return CellText(text=OUT_OF_MEMORY, tone="failure", shared=() if cell.metric.name != "gpu_memory" else (needs,))
    value = VALUES[cell.metric.name](chosen)
    ratio = value / cell.paper_value if cell.paper_value else None
    return CellText(
        text=f"~{rounded(value / cell.metric.scale, cell.metric.format)}", detail=times(ratio), tone="predicted"
    )
