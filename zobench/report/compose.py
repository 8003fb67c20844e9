"""Composes sheets from filled cells: what was measured, and beside it what the paper reports."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from zobench.report.cells import Grid, TableCell, flat, not_run
from zobench.report.choice import needed
from zobench.report.forecast_text import (
    MEASURED_ALONE,
    OUT_OF_MEMORY,
    both,
    is_of_another_gpu,
    joined,
    places,
    predicted,
    predictors,
    ratio,
    times,
    times_between,
)
from zobench.report.sheet import NO_VALUE, CellText, ColumnGroup, Sheet, number, span
from zobench.report.table import Table, TableRow
from zobench.result import Outcome, Result
from zobench.result.quantity import ABSENT, Interval, Quantity
from zobench.runspec.registries import METRICS
from zobench.stats.intervals import Ratio as PairedRatio
from zobench.store import evidence, metrics
from zobench.store.query import distinct_names

INFERRED = "Inferred: the paper leaves this value out, and others in its table imply it."
_ARROW = {"lower": "↓", "higher": "↑"}
_SETTINGS = ("device", "weights", "data", "batch_size", "seq_len", "warmup")
"""The fields that a table of times names above itself."""
_TUNED = ("device", "weights", "task", "batch_size", "seq_len", "dtype", "seed", "definition")
"""The fields that a reader of accuracies asks for; of a task, ``seq_len`` is the most tokens of an example."""


def measured(grid: Grid) -> bool:
    """Whether any cell has a result, of whatever outcome."""
    return any(cell.result is not None for cell in flat(grid))


def measured_sheet(table: Table, grid: Grid, machine: str | None, *, fill: bool = False) -> Sheet:
    """Returns the sheet of the values measured on ``machine``, each value with its ratio to the baseline column, as the
    papers print it. ``fill``: what was not run shows what is predicted of it, for the paper's GPU."""
    table, grid = _shown(table, grid)
    cells = flat(grid)
    by_column = table.baseline in [column.header for column in table.columns]
    by_crossing = {_crossing(c, by_column): c for c in cells if table.baseline in (c.column.header, c.row.header)}
    bases = {id(cell): by_crossing.get(_crossing(cell, by_column)) for cell in cells}
    ratios = {id(cell): paired(cell, bases[id(cell)]) for cell in cells}

    def entry(cell: TableCell) -> CellText:
        if fill and not_run(cell) and (cell.forecast or cell.on_machine or cell.metric.quantity.share):
            return both(cell)
        base, quantity = bases[id(cell)], cell.metric.quantity
        if base is None or base is cell or quantity.share or quantity.base_unit == "1":  # an accuracy is a share
            return _measured(cell, "")
        known_ratio = ratios[id(cell)]
        return _measured(cell, times_between(known_ratio) if known_ratio else times(ratio(cell.value, base.value)))

    line = "row" if by_column else "column"
    remarks = [
        table.caption,
        f"(x) is the ratio to {table.baseline} in the same {line}." if table.baseline else "",
        _paired_legend(filter(None, ratios.values())),
        *_settings(cells),
        *_shared_names(cells),
        *_units(table),
        _intervals(cells),
        *(_filled_legend(cells) if fill else _legend(cells)),
    ]
    predicted_cells = [cell for cell in cells if fill and not_run(cell)]
    source = "; ~ predicted for ".join(filter(None, (measured_on(cells, machine), places(predicted_cells))))
    return sheet_of(table, grid, "measured", machine, source, entry, remarks)


def paired(cell: TableCell, base: TableCell | None) -> PairedRatio | None:
    """The ratio of a cell to its baseline from the rounds that both were in."""
    if base is None or base is cell or len(cell.results) != 1 or len(base.results) != 1:
        return None
    return evidence.ratio(cell.result, base.result, cell.quantity)


def relative(cell: TableCell, base: TableCell | None) -> tuple[float | None, Interval | None]:
    """The value over that of ``base``, from shared rounds if there are any, with its 95 % interval; or the value."""
    if base is None:
        return cell.value, cell.interval
    paired_ratio = paired(cell, base)
    return (paired_ratio.value, paired_ratio.interval) if paired_ratio else (ratio(cell.value, base.value), None)


def _paired_legend(ratios: Iterable[PairedRatio]) -> str:
    rounds = span([str(known_ratio.pairs) for known_ratio in ratios if known_ratio.interval is not None])
    return f"(x, a to b): from {rounds} rounds in which both ran, with the 95 % interval of the ratio." * bool(rounds)


def _crossing(cell: TableCell, by_column: bool) -> tuple[str, str]:
    """The metric, and the row or the column in which a cell meets its baseline."""
    return cell.metric.name, cell.row.header if by_column else cell.column.header


def predicted_sheet(table: Table, grid: Grid) -> Sheet:
    """Returns the sheet of each cost predicted for the paper's GPU, and in parentheses how many times the paper's
    value."""
    js = [j for j in range(len(table.metrics)) if any(cell.forecast for row in grid for cell in row[j])]
    ks = [k for k in range(len(table.columns)) if any(group[k].forecast for row in grid for group in row)]
    table, grid = _cut(table, grid, js, ks)
    cells = flat(grid)

    def entry(cell: TableCell) -> CellText:
        return predicted(cell, ratio(cell.forecast.value, cell.paper_value) if cell.forecast else None)

    source = f"predicted for {places(cells)}, not measured"
    no_test = ", on its own GPU: no test of the prediction" if is_of_another_gpu(cells) else ""
    remarks = [*predictors(cells), f"(x) is predicted / paper{no_test}."]
    return sheet_of(table, grid, "predicted", None, source, entry, remarks)


def _filled_legend(cells: Sequence[TableCell]) -> list[str]:
    """As :func:`_legend`, where what was not run shows its forecast."""
    empty = [cell for cell in cells if not_run(cell)]
    shares = any(cell.metric.quantity.share for cell in empty)
    shown = [cell for cell in cells if not (not_run(cell) and (cell.forecast or cell.metric.quantity.share))]
    return [*_legend(shown), *predictors(empty), f"{MEASURED_ALONE}: only what was measured has it." * shares]


def paper_sheet(table: Table, grid: Grid, machine: str | None, *, fill: bool = False) -> Sheet:
    """Returns the sheet of the paper's values, and in parentheses how many times that much was measured; only columns
    it can have. ``fill``: of what was not run, how many times that much is predicted."""
    js = [j for j, metric in enumerate(table.metrics) if not metric.quantity.share]
    ks = [k for k, column in enumerate(table.columns) if column.reference is not None or column.minus]
    table, grid = _cut(table, grid, js, ks)
    cells = flat(grid)
    where = joined(hardware(cell.paper) for cell in cells if cell.paper)
    shown = (cell.paper for cell in cells if cell.paper and not cell.row.extra)  # an extra row has a note of its own
    artifacts = joined(map(_artifact_name, shown))
    source = f"paper ({artifacts or f'{table.paper} {table.artifact}'}), on {where or 'hardware that it does not name'}"
    if machine is not None and measured(grid):
        remarks = [f"(x) is measured / paper; {measured_on(cells, machine)}."]
    else:
        reproduce = f"`zobench reproduce {table.name}` measures here what this machine can"
        remarks = [table.caption, f"Nothing measured yet: {reproduce if table.runner else 'no runner does it'}."]
    if fill and any(_foretold(cell) for cell in cells):
        remarks.append(f"~(x) is predicted / paper, for the {places(cells)}.")
    if any(cell.paper and cell.paper["status"] == "oom" for cell in cells):
        remarks.append(f"{OUT_OF_MEMORY} means out of memory in the paper.")
    if any(cell.paper is None for cell in cells):
        remarks.append(f"{NO_VALUE} means that the paper reports no value.")
    return sheet_of(table, grid, "paper", machine, source, lambda cell: _reported(cell, fill), remarks)


def _artifact_name(paper: Mapping[str, str]) -> str:
    return f"{paper['paper']} {paper['artifact']}"


def hardware(paper: Mapping[str, str]) -> str:
    """``2x H20-96GB``, or nothing where the paper does not say."""
    return f"{paper['gpus'] or '1'}x {paper['gpu']}" if paper["gpu"] else ""


def _shown(table: Table, grid: Grid) -> tuple[Table, Grid]:
    """The table and its cells with a measured sheet's columns: the paper's, and others of which anything was run."""
    is_papers = [bool(table.paper) and not column.extra for column in table.columns]
    ks = [k for k in range(len(table.columns)) if is_papers[k] or any(row[0][k].result for row in grid)]
    return _cut(table, grid, range(len(table.metrics)), ks or range(1))


def _cut(table: Table, grid: Grid, js: Iterable[int], ks: Sequence[int]) -> tuple[Table, Grid]:
    """Metrics ``js`` and columns ``ks`` of ``table`` and of its cells."""
    js = list(js)
    cut = replace(table, metrics=tuple(table.metrics[j] for j in js), columns=tuple(table.columns[k] for k in ks))
    return cut, [[[row[j][k] for k in ks] for j in js] for row in grid]


def measured_on(cells: Iterable[TableCell], machine: str | None) -> str:
    """``measured on <machine> (<what it is>)``, from the results themselves; ``nothing measured yet on`` without any
    value."""
    if machine is None:
        return "nothing measured yet"
    ran = [(cell.value, cell.result.environment.description) for cell in cells if cell.result]
    about = joined(description for _, description in ran)
    where = f"{machine} ({about})" if about else machine
    return f"nothing measured yet on {where}" if all(value is None for value, _ in ran) else f"measured on {where}"


def paper_source(cells: Iterable[TableCell]) -> list[str]:
    """``paper: <paper> <artifact>, on <hardware>``, of the values that a figure draws; nothing where it draws none."""
    reported = [cell.paper for cell in cells if cell.paper is not None and cell.paper_value is not None]
    names, where = joined(map(_artifact_name, reported)), joined(map(hardware, reported))
    return [f"paper: {names}, on {where or 'hardware that it does not name'}"] if reported else []


def sheet_of(
    table: Table,
    grid: Grid,
    kind: str,
    machine: str | None,
    source: str,
    entry: Callable[[TableCell], CellText],
    remarks: Sequence[str],
) -> Sheet:
    """``table`` with the text that ``entry`` gives each cell of ``grid``, numbered notes, and ``remarks`` below."""
    headings = [CellText(text=f"{metric.header} {_ARROW[metric.better]}", tone="label") for metric in table.metrics]
    columns = [CellText(text=column.header, tone="label") for column in table.columns]
    body = [[[entry(cell) for cell in group] for group in row] for row in grid]
    if table.groups == "columns":  # a metric each below a column's heading
        body = [[list(values) for values in zip(*row, strict=True)] for row in body]
        headings, columns = columns, headings
    groups = tuple(
        ColumnGroup(header=heading, columns=tuple(columns), body=tuple(tuple(row[i]) for row in body))
        for i, heading in enumerate(headings)
    )
    if table.text_header and kind == "paper":
        texts = tuple((CellText(text=row[0][0].row.text or NO_VALUE, tone="reported"),) for row in grid)
        label = CellText(text=table.text_header, tone="label")
        groups = (ColumnGroup(header=CellText(text="", tone="label"), columns=(label,), body=texts), *groups)
    sheet = Sheet(
        label="-".join((table.name, kind, machine or "none")),
        title=table.title,
        source=source,
        row_header=table.row_header,
        rows=tuple(_row_label(table, row[0][0].row, kind) for row in grid),
        groups=groups,
        remarks=tuple(remarks),
    )
    return number(sheet)


def _row_label(table: Table, row: TableRow, kind: str) -> CellText:
    reported = row.reference or {}
    other = " ".join(reported[key] for key in ("paper", "artifact") if key in reported) if kind == "paper" else ""
    note = f"From {other}." if other else "Not in the paper's table." if table.paper else ""
    return CellText(text=row.header, tone="label", notes=(note,) if row.extra and note else ())


def _measured(cell: TableCell, to_baseline: str) -> CellText:
    """The value with its ratio ``to_baseline``, or in its place the word for how the run ended."""
    if cell.result is None:
        return CellText(text=NO_VALUE, tone="blank")
    if cell.result.outcome is not Outcome.OK:
        text = OUT_OF_MEMORY if cell.result.outcome is Outcome.OOM else needed(cell.result) or str(cell.result.outcome)
        return CellText(text=text, tone="failure", notes=cell.notes)
    if cell.value is None:
        return CellText(text=cell.quantity.absent[0], tone="blank", notes=cell.notes)
    detail = " ".join(filter(None, (_between(cell), to_baseline)))
    return CellText(text=cell.metric.text(cell.value), detail=detail, notes=cell.notes, shared=cell.caveats)


def _between(cell: TableCell) -> str:
    """``[60.7, 67.0]`` of a metric whose table shows its interval."""
    if not cell.metric.interval or cell.interval is None:
        return ""
    return f"[{', '.join(map(cell.metric.text, cell.interval))}]"


def _foretold(cell: TableCell) -> float | None:
    """Predicted over reported, of a cell that was not run; None where either is lacking."""
    forecast = cell.forecast if not_run(cell) else None
    return ratio(forecast.value, cell.paper_value) if forecast else None


def _reported(cell: TableCell, fill: bool) -> CellText:
    """The paper's value exactly as it is printed there, and measured / paper, or where there is none predicted."""
    if cell.paper is None:
        return CellText(text=NO_VALUE, tone="blank")
    if cell.paper_value is None:
        return CellText(text=OUT_OF_MEMORY, tone="failure")
    is_printed_so = cell.paper["unit"] == cell.metric.unit
    text = cell.paper["value"] if is_printed_so else cell.metric.text(cell.paper_value)
    inferred = (INFERRED,) if cell.is_inferred else ()
    if cell.ratio is None:
        share = _foretold(cell) if fill else None
        return CellText(text=text, detail=f"~{times(share)}" if share else "", tone="reported", notes=inferred)
    return CellText(text=text, detail=times(cell.ratio), notes=inferred, shared=cell.caveats)


def _settings(cells: Iterable[TableCell]) -> list[str]:
    """One line on how the shown values were measured, or nothing if there are none."""
    results = [result for cell in cells if cell.value is not None for result in cell.results]
    if not results:
        return []
    tuned = any(result.spec.task != "none" for result in results)
    settings = _TUNED if tuned else _SETTINGS
    said = [f"{name} {joined(str(getattr(result.spec, name)) for result in results)}" for name in settings]
    if tuned:
        return [f"Tuned for {joined(str(result.spec.steps) for result in results)} steps: {', '.join(said)}."]
    steps = joined(str(len(run.samples.get("step_seconds", []))) for result in results for run in result.runs)
    repeats = joined(str(len(result.runs)) for result in results)
    processes = "" if repeats == "1" else f" in each of {repeats} processes, whose median is shown"
    measured = f"measured steps: {steps}{processes}"
    return [f"Throughput is tokens per median step; {measured}; {', '.join(said)}.", *_floors(results)]


def _floors(results: Iterable[Result]) -> list[str]:
    """How close the shown runs come to what their machine allows, where its rates are known."""
    shares = {result.spec.hash: metrics(result).get("floor_share") for result in results}
    percents = [100 * share for share in shares.values() if share is not None]
    if not percents:
        return []
    span = f"{min(percents):.0f}" if len(percents) == 1 else f"{min(percents):.0f} to {max(percents):.0f}"
    above = " Above 100 % a step was faster than the rates, which were measured apart from it."
    floor = f"These runs reach {span} % of this machine's floor: the least time that its measured rates allow a step."
    return [floor + above * (max(percents) > 100)]


def _shared_names(cells: Iterable[TableCell]) -> list[str]:
    """A line for each name of a model that stands for several models here."""
    results = {result.spec.hash: result for cell in cells for result in cell.results}
    names = distinct_names(results.values())
    tagged: dict[str, list[str]] = {}
    for key, name in names.items():
        if name != results[key].spec.model:
            tagged.setdefault(results[key].spec.model, []).append(name)
    return [
        f"Warning: {model} is the name of {len(set(those))} models here, {' and '.join(sorted(set(those)))}; give each "
        'its own with name = "...".'
        for model, those in tagged.items()
    ]


def _units(table: Table) -> list[str]:
    abouts = [(metric.quantity.about, metric) for metric in table.metrics]
    return [about.format(unit=metric.unit, size=f"{metric.scale:.0f}") for about, metric in abouts if about]


def _intervals(cells: Sequence[TableCell]) -> str:
    shown = [cell for cell in cells if cell.metric.interval and cell.interval is not None and len(cell.results) == 1]
    names = joined(cell.metric.header for cell in shown)
    return f"In brackets after {names}: the 95 % interval." if shown else ""


def _absent(quantity: Quantity) -> tuple[str, str]:
    """Returns the text where a run has no value, and its meaning: of a plug-in's metric, that it returned None."""
    provider = METRICS.provider(quantity.name)
    if not provider or quantity.absent is not ABSENT:
        return quantity.absent
    return ABSENT[0], f"the metric {quantity.name} of {provider} returned None for that run"


def _legend(cells: Sequence[TableCell]) -> list[str]:
    lacking = [cell for cell in cells if cell.result and cell.result.outcome is Outcome.OK and cell.value is None]
    absent = dict.fromkeys(_absent(cell.quantity) for cell in lacking)
    return [
        f"{OUT_OF_MEMORY} means out of memory." * any(c.result and c.result.outcome is Outcome.OOM for c in cells),
        *(f"{text} means that {meaning}." for text, meaning in absent),
        f"{NO_VALUE} means never run." * any(cell.result is None for cell in cells),
    ]
