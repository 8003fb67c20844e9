"""The one-page comparison with the papers: what was measured of what they report, the ratios, and their claims."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from zobench.report import claims
from zobench.report.cells import TableCell
from zobench.report.compose import Grid, joined, measurable, needs
from zobench.report.forecasts import FITTED
from zobench.report.sheet import WARNING, Sheet, of_frame
from zobench.report.table import Table
from zobench.runspec.registries import METRICS
from zobench.store import metrics

NO_MODEL = "what a run learns has no model of costs"
"""Why a value has no prediction."""
_QUARTILES = ("least", "25 %", "median", "75 %", "most")


@dataclass(frozen=True, kw_only=True, slots=True)
class Filled:
    """A paper's table and its cells on each machine; (None, cells) if nothing was measured."""

    table: Table
    grids: tuple[tuple[str | None, Grid], ...]

    def on(self, machine: str | None) -> Grid:
        """The cells of ``machine``, or those of another one, whose papers' values are the same."""
        return dict(self.grids).get(machine, self.grids[0][1])


def own_cells(grid: Grid) -> list[TableCell]:
    """The cells that the paper's own table reports a value or an out-of-memory for."""
    every = (cell for row in grid for group in row for cell in group)
    return [cell for cell in every if cell.paper is not None and not (cell.row.extra or cell.is_derived)]


def compared(grid: Grid) -> list[TableCell]:
    """The cells with a measured and a reported value; those of extra rows are other tables' values."""
    return [cell for row in grid for group in row for cell in group if cell.ratio is not None]


def sheets(filled: Sequence[Filled], count: int = 0) -> list[Sheet]:
    """What it comes to, coverage and ratios for each machine, then the claims; of ``count`` results in all."""
    machines = sorted({machine for item in filled for machine, _ in item.grids if machine is not None})
    everywhere: list[str | None] = [*machines] or [None]
    shown = [
        _glance(filled, machines),
        *([_layers(filled)] if any(cell.forecast for item in filled for cell in own_cells(item.grids[0][1])) else []),
        *(_coverage(filled, machine) for machine in everywhere),
        *(_ratios(filled, machine) for machine in machines),
        _claims(filled, machines),
    ]
    if count and not machines:
        told = f"none of the {count} results here is of the papers' tables"
        shown = [replace(sheet, source=told) for sheet in shown]
    return [sheet for sheet in shown if sheet.rows]


def verdicts(filled: Sequence[Filled], machine: str | None) -> dict[str, int]:
    """How many of the papers' claims have each verdict on ``machine``."""
    told = [one.verdict for item in filled for one in _measured_claims(item, machine)]
    return {word: told.count(word) for word in _VERDICTS}


def layers(filled: Sequence[Filled]) -> tuple[int, int, int, int]:
    """Of the values that the papers' tables report: how many, and how many of them are measured, predicted only, or
    neither."""
    body = [_layered(item) for item in filled]
    reported, seen, ahead, neither = (sum(int(line[k]) for line in body) for k in range(4))
    return reported, seen, ahead, neither


def _glance(filled: Sequence[Filled], machines: Sequence[str]) -> Sheet:
    """What the whole comparison comes to, a column per machine."""
    reported = sum(len(own_cells(item.grids[0][1])) for item in filled)
    columns: list[list[str]] = []
    for machine in machines:
        ratios = by_quantity(filled, machine)
        counts = list(map(str, verdicts(filled, machine).values()))
        medians = [_median(ratios[name].values()) if name in ratios else "" for name in ("gpu_memory", "throughput")]
        sums = (sum(map(len, ratios.values())), _measurements(filled, machine), _deviating(filled, machine))
        columns.append([*map(str, sums), *medians, *counts])
    rows = [f"Values measured here, of the {reported} that the papers' tables report"]
    rows += ["different measurements behind them: the papers repeat one another's cells"]
    rows += ["of these values, under another condition than the paper's (a table says which)"]
    rows += ["Memory, measured / paper: median", "Throughput, measured / paper: median"]
    rows += [f"Claims of the papers: {words} here" for words in map(_of_many, _VERDICTS)]
    blank = ["0", "0", "0", "", "", "0", "0", "0", str(sum(len(item.table.claims) for item in filled))]
    headers = [f"On {machine}" for machine in machines] or ["Here"]
    body = [list(line) for line in zip(*(columns or [blank]), strict=True)]
    told = "measured" if machines else "nothing measured yet"
    remarks = [f"{word}: {meaning}." for word, meaning in _VERDICTS.items()] + _caveats(filled, machines)
    return _sheet("glance", "At a glance", told, "The papers' tables and this hardware", rows, headers, body, remarks)


def _layers(filled: Sequence[Filled]) -> Sheet:
    """Per table: how many of its values were measured here, are only predicted, or neither, and why."""
    body = [_layered(item) for item in filled]
    sums = reported, seen, ahead, neither = layers(filled)
    remarks = [
        f"Of the {reported} values, {seen} were measured here, {ahead} are predicted only, {neither} neither.",
        *(f"Neither: {count} of {name}, because {NO_MODEL}." for name, count in sorted(_neither(filled).items())),
        "Predicted: for the paper's GPU; (x) is the median of predicted / paper. Each table says how far off.",
    ]
    fitted = sum(_is_fitted(cell) for item in filled for cell in own_cells(item.grids[0][1]))
    if fitted:
        remarks.append(f"{fitted} predictions are no test: the constants were fitted on the value, or it repeats one.")
    columns = ("Reported", "Measured", "Predicted only", "Neither", "(x)", "Why neither")
    rows = [*(item.table.name for item in filled), "All"]
    return _sheet(
        "layers", "Measured, predicted, paper", "all machines together", "Table", rows, columns,
        [*body, [*map(str, sums), "", ""]], remarks,
    )  # fmt: skip


def _neither(filled: Sequence[Filled]) -> Counter[str]:
    """Metric -> how many of its values are neither measured nor predicted."""
    return Counter(cell.metric.name for item in filled for cell in _unmeasured(item) if cell.forecast is None)


def _unmeasured(item: Filled) -> list[TableCell]:
    seen = {tuple(cell.paper.values()) for _, grid in item.grids for cell in compared(grid) if cell.paper}
    return [cell for cell in own_cells(item.grids[0][1]) if cell.paper and tuple(cell.paper.values()) not in seen]


def _layered(item: Filled) -> list[str]:
    cells, rest = own_cells(item.grids[0][1]), _unmeasured(item)
    neither = [cell for cell in rest if cell.forecast is None]
    ratios = [cell.forecast.value / cell.paper_value for cell in cells
              if cell.forecast and cell.forecast.value and cell.paper_value]  # fmt: skip
    why = "; ".join(dict.fromkeys(_unpredicted(cell) for cell in neither))
    counts = (len(cells), len(cells) - len(rest), len(rest) - len(neither), len(neither))
    return [*map(str, counts), _median(ratios), why]


def _unpredicted(cell: TableCell) -> str:
    """Why there is no prediction of a value."""
    return f"{cell.metric.name}: {NO_MODEL}"


def _is_fitted(cell: TableCell) -> bool:
    return cell.forecast is not None and FITTED in cell.forecast.notes


def _caveats(filled: Sequence[Filled], machines: Sequence[str]) -> list[str]:
    """What a reader should know of the measured values that are compared, each once; warnings are in the tables."""
    cells = [cell for machine in machines for item in filled for cell in _here(item, machine)]
    caveats = dict.fromkeys(caveat for cell in cells for caveat in cell.caveats)
    return [caveat for caveat in caveats if not caveat.startswith(WARNING)]


def _measurements(filled: Sequence[Filled], machine: str) -> int:
    """Different measured numbers among the compared cells: a quantity of a run each."""
    cells = [cell for item in filled for cell in _here(item, machine)]
    return len({(cell.result.spec.hash, cell.metric.name) for cell in cells if cell.result})


def _deviating(filled: Sequence[Filled], machine: str) -> int:
    """How many of the measured values were measured under another condition than the reported one."""
    cells = [cell for item in filled for cell in _here(item, machine)]
    return len({tuple(cell.paper.values()) for cell in cells if cell.paper and cell.deviations})


def _here(item: Filled, machine: str) -> list[TableCell]:
    return compared(item.on(machine)) if machine in dict(item.grids) else []


def _measured_claims(item: Filled, machine: str | None) -> list[claims.CheckedClaim]:
    grids = dict(item.grids)
    return claims.measured(item.table, grids[machine] if machine in grids else _unfilled(item))


def _unfilled(item: Filled) -> Grid:
    """The table's cells without their results: of a machine that measured none of them."""
    rows = item.grids[0][1]
    return [[[replace(cell, results=(), value=None, interval=None) for cell in group] for group in row] for row in rows]


def _coverage(filled: Sequence[Filled], machine: str | None) -> Sheet:
    """Per table: how many of its values were measured, how they compare, and how close to this machine's floor."""
    grids = {item.table.name: item.on(machine) if machine in dict(item.grids) else item.grids[0][1] for item in filled}
    here = {item.table.name: machine is not None and machine in dict(item.grids) for item in filled}
    body = [_covered(item.table, grids[item.table.name], here[item.table.name]) for item in filled]
    reported = sum(len(own_cells(grid)) for grid in grids.values())
    ratios = [cell for item in filled if here[item.table.name] for cell in compared(grids[item.table.name])]
    seen = len({tuple(cell.paper.values()) for cell in ratios if cell.paper})
    hardware = joined(cell.result.environment.get("description", "") for cell in ratios if cell.result)
    told = f"measured on {machine}" + (f" ({hardware})" if hardware else "") if machine else "nothing measured yet"
    columns = ("Reported", "Measured", "Memory", "Throughput", "Step time", "Floor (%)", "Needs")
    return _sheet(
        f"coverage-{machine or 'none'}",
        "Tables of the papers",
        told,
        "Table",
        [item.table.name for item in filled],
        columns,
        body,
        [
            f"{seen} of the {reported} values that the papers' tables report were measured here.",
            "Memory, Throughput, Step time: the median of measured / paper. Floor: the median share of the floor.",
            "Measured counts rows that a table does not have itself (smaller models) where another paper reports them.",
        ],
    )


def _covered(table: Table, grid: Grid, here: bool) -> list[str]:
    cells = compared(grid) if here else []
    medians = [_median(cell.ratio for cell in cells if cell.metric.name == name) for name in _COMPARED]
    results = {cell.result.spec.hash: cell.result for row in grid for group in row for cell in group if cell.result}
    floors = [share for result in results.values() if (share := metrics(result).get("floor_share"))]
    floor = f"{100 * statistics.median(floors):.0f}" if floors and here else ""
    lacks = ("" if measurable(grid) else "all: ") + needs(grid) if needs(grid) else ""
    return [str(len(own_cells(grid))), str(len(cells)), *medians, floor, lacks]


_VERDICTS = {
    claims.HOLDS: "the 95 % interval of every ratio that was measured is within the claim's bounds",
    claims.FAILS: "the interval of one is outside",
    claims.UNSHOWN: "an interval is on both sides of a bound, or there were too few rounds or steps for one",
    claims.OPEN: "no row (or column) that the claim is about has both values",
}
_COMPARED = ("gpu_memory", "throughput", "step_time")


def _median(values: Iterable[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"x{statistics.median(known):.3g}" if known else ""


def _ratios(filled: Sequence[Filled], machine: str) -> Sheet:
    """The distribution of measured / paper by quantity; each reported value counts once."""
    by_metric = by_quantity(filled, machine)
    rows = [name for name in METRICS.names() if name in by_metric]
    body = [[str(len(by_metric[name])), *_spread(list(by_metric[name].values()))] for name in rows]
    return _sheet(
        f"ratios-{machine}",
        "Measured / paper",
        f"measured on {machine}",
        "Quantity",
        rows,
        ("Values", *_QUARTILES),
        body,
        ["Every reported value that was measured here counts once. Throughput above 1 is faster than the paper."],
    )


def by_quantity(filled: Sequence[Filled], machine: str) -> dict[str, dict[tuple[str, ...], float]]:
    """Quantity -> reported value (its whole row) -> measured / reported on ``machine``."""
    ratios: dict[str, dict[tuple[str, ...], float]] = {}
    for item in filled:
        for cell in _here(item, machine):
            assert cell.paper is not None
            assert cell.ratio is not None
            ratios.setdefault(cell.metric.name, {})[tuple(cell.paper.values())] = cell.ratio
    return ratios


def _spread(values: list[float]) -> list[str]:
    """Least, quartiles and most, by linear interpolation."""
    ordered = sorted(values)
    if len(ordered) == 1:
        points = ordered * len(_QUARTILES)
    else:
        points = [ordered[0], *statistics.quantiles(ordered, n=4, method="inclusive"), ordered[-1]]
    return [f"x{value:.3g}" for value in points]


def _claims(filled: Sequence[Filled], machines: Sequence[str]) -> Sheet:
    """Every claim: its bound, the paper's own values, what is predicted, and what was measured on each machine."""
    labels, body, predicted = [], [], list[str]()
    verdicts: dict[str, list[str]] = {machine: [] for machine in machines}
    for item in filled:
        own = claims.reported(item.table, item.grids[0][1])
        ahead = claims.predicted(item.table, item.grids[0][1])
        here = {name: claims.measured(item.table, grid) for name, grid in item.grids if name is not None}
        for i, verdict in enumerate(own):
            measured = [here[name][i] if name in here else None for name in machines]
            labels.append(f"{item.table.name}: {verdict.claim.text}")
            words = [_verdict(one, " so far") for one in measured]
            foretold = _verdict(ahead[i], "") if ahead[i].ratios else claims.UNTOLD
            body.append([claims.bounds(verdict.claim), _verdict(verdict, ""), foretold, *words])
            for machine, one in zip(machines, measured, strict=True):
                verdicts[machine].append(one.verdict if one is not None else claims.OPEN)
            predicted.append(ahead[i].verdict if ahead[i].ratios else claims.UNTOLD)
    counts = "; ".join(f"on {machine}: {_counted(words, _VERDICTS)}" for machine, words in verdicts.items())
    told = f"measured {counts}" if counts else "nothing measured yet"
    remarks = [
        "A claim is a ratio with a bound, taken in every row (or column) that it is about; it holds if all are within.",
        "Where the paper's own values are out of bounds, its words go beyond its table.",
    ]
    if any(word != claims.UNTOLD for word in predicted):
        told = f"Predicted, apart from what was measured: {_counted(predicted)}."
        remarks.append(f"{told} A ratio's range is that of two independent errors.")
    else:
        body = [[*line[:2], *line[3:]] for line in body]
    ahead_too = ["Predicted"] if len(remarks) > 2 else []
    columns = ("Bound", "The paper's own values", *ahead_too, *(f"Measured on {name}" for name in machines))
    return _sheet("claims", "Claims of the papers", told, "Claim", labels, columns, body, remarks)


def _counted(words: Sequence[str], all_of: Iterable[str] = ()) -> str:
    """The verdicts that were given, and each of ``all_of``, as :func:`in_words` has them."""
    known = [word for word in (*_VERDICTS, claims.UNTOLD) if word in words or word in tuple(all_of)]
    return in_words({word: words.count(word) for word in known})


def in_words(counts: Mapping[str, int]) -> str:
    """``3 hold, 1 does not hold``: how many claims have each verdict."""
    return ", ".join(f"{count} {word if count == 1 else _of_many(word)}" for word, count in counts.items())


def _of_many(verdict: str) -> str:
    """The verdict, said of several claims."""
    return {claims.HOLDS: "hold", claims.FAILS: "do not hold"}.get(verdict, verdict)


def _verdict(verdict: claims.CheckedClaim | None, partly: str) -> str:
    """The verdict and its numbers; ``partly`` is added where a claim holds in some of its rows and others are open."""
    if verdict is None or not verdict.ratios:
        return claims.OPEN
    some = verdict.verdict == claims.HOLDS and len(verdict.ratios) < verdict.expected
    return f"{verdict.verdict}{partly if some else ''}: {verdict.told}"


def _sheet(
    label: str, title: str, source: str, header: str, rows: Sequence[str], columns: Sequence[str],
    body: Sequence[Sequence[str]], remarks: Sequence[str],
) -> Sheet:  # fmt: skip
    """A sheet of texts under one heading."""
    import pandas as pd

    frame = pd.DataFrame(body, index=pd.Index(rows, name=header), columns=list(columns))
    return of_frame(frame, label=f"summary-{label}", title=title, source=source, remarks=remarks)
