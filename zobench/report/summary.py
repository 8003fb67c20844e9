"""The one-page comparison with the papers: what was measured of what they report, the ratios, and their claims."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from zobench.report import claims
from zobench.report.cells import Grid, TableCell, flat, mapped
from zobench.report.forecast_text import joined
from zobench.report.forecasts import FITTED
from zobench.report.sheet import WARNING, Sheet, of_lines
from zobench.report.table import Table
from zobench.runspec.registries import METRICS
from zobench.store import metrics

if TYPE_CHECKING:
    import pandas as pd

NO_MODEL = "what a run learns has no model of costs"
"""Why a value has no prediction."""
_LAYERS = ("Measured", "Predicted only", "Neither")
_QUARTILES = {"least": 0.0, "25 %": 0.25, "median": 0.5, "75 %": 0.75, "most": 1.0}
_COMPARED = {"gpu_memory": "Memory", "throughput": "Throughput", "step_time": "Step time"}
_VERDICTS = {
    claims.HOLDS: "the 95 % interval of every ratio that was measured is within the claim's bounds",
    claims.FAILS: "the interval of one is outside",
    claims.UNSHOWN: "an interval is on both sides of a bound, or there were too few processes or steps for one",
    claims.OPEN: "no row (or column) that the claim is about has both values",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Filled:
    """A paper's table and its cells on each machine; (None, cells) if nothing was measured."""

    table: Table
    grids: tuple[tuple[str | None, Grid], ...]


def frame(filled: Sequence[Filled]) -> pd.DataFrame:
    """A line for each cell of each table on each machine.

    ``reported``: the paper's whole row, which tells its values apart; ``own``: whether the paper's table itself has it,
    as a value or an out-of-memory; ``ratio``: measured / reported; ``layer``: how it is known, of a table's own values
    on its first machine; ``foretold``: predicted / reported; ``run`` and ``floor``: the run that is shown, and its
    share of the machine's floor.
    """
    import pandas as pd

    lines = [
        {"table": item.table.name, "machine": machine or "", **_line(cell, first=not n)}
        for item in filled for n, (machine, grid) in enumerate(item.grids) for cell in flat(grid)
    ]  # fmt: skip
    made = pd.DataFrame(lines, columns=["table", "machine", *_FIELDS])
    measured = made["ratio"].notna().groupby([made["table"], made["reported"]]).transform("any")
    made["layer"] = measured.map({True: _LAYERS[0]}).fillna(made["ahead"].map({True: _LAYERS[1], False: _LAYERS[2]}))
    return made.astype(dict.fromkeys(("ratio", "foretold", "floor"), float) | dict.fromkeys(_FLAGS, bool))


_FIELDS = ("metric", "reported", "own", "ratio", "ahead", "foretold", "fitted", "deviates", "run", "floor", "hardware")
_FLAGS = ("own", "ahead", "fitted", "deviates")


def _line(cell: TableCell, *, first: bool) -> dict[str, Any]:
    forecast, result = cell.forecast, cell.result
    return {
        "metric": cell.metric.name, "reported": tuple(cell.paper.values()) if cell.paper else (),
        "own": first and cell.paper is not None and not (cell.row.extra or cell.is_derived), "ratio": cell.ratio,
        "ahead": forecast is not None, "fitted": forecast is not None and FITTED in forecast.notes,
        "foretold": forecast.value / cell.paper_value if forecast and forecast.value and cell.paper_value else None,
        "deviates": bool(cell.deviations), "run": result.spec.hash if result else "",
        "floor": metrics(result).get("floor_share") if result else None,
        "hardware": result.environment.description if result else "",
    }  # fmt: skip


def sheets(filled: Sequence[Filled], count: int = 0) -> list[Sheet]:
    """The sheets of the comparison: at a glance, layers, then coverage and ratios of each machine, then the claims.
    ``count``: stored results in all, which are mentioned where none of them belongs in a table."""
    machines = sorted({machine for item in filled for machine, _ in item.grids if machine is not None})
    every = frame(filled)
    papers = every[every["own"]]
    shown = [
        _glance(filled, every, machines),
        *([_layers(filled, papers)] if papers["ahead"].any() else []),
        *(_coverage(filled, every, machine) for machine in machines or [""]),
        *(_ratios(every, machine) for machine in machines if len(_compared(every, machine))),
        _claims(filled, machines),
    ]
    if count and not machines:
        source = f"none of the {count} results here is of the papers' tables"
        shown = [replace(sheet, source=source) for sheet in shown]
    return [sheet for sheet in shown if sheet.rows]


def verdicts(filled: Sequence[Filled], machine: str | None) -> dict[str, int]:
    """How many of the papers' claims have each verdict on ``machine``."""
    words = [claim.verdict for item in filled for claim in _measured_claims(item, machine)]
    return {word: words.count(word) for word in _VERDICTS}


def _compared(every: pd.DataFrame, machine: str) -> pd.DataFrame:
    """The measured values of ``machine`` that a paper reports; those of extra rows are other tables' values."""
    return every[(every["machine"] == machine) & every["ratio"].notna()]


def _by_quantity(every: pd.DataFrame, machine: str) -> pd.DataFrame:
    """The measured values of ``machine`` that a paper reports, each reported value once."""
    return _compared(every, machine).drop_duplicates(["metric", "reported"], keep="last")


def _median(ratios: pd.Series[float]) -> str:
    return f"x{ratios.median():.3g}" if ratios.notna().any() else ""


def _glance(filled: Sequence[Filled], every: pd.DataFrame, machines: Sequence[str]) -> Sheet:
    """Counts and medians of the whole comparison, a column for each machine."""
    import pandas as pd

    rows = [f"Values measured here, of the {every['own'].sum()} that the papers' tables report"]
    rows += ["different measurements behind them: the papers repeat one another's cells"]
    rows += ["of these values, under another condition than the paper's (a table says which)"]
    rows += ["Memory, measured / paper: median", "Throughput, measured / paper: median"]
    rows += [f"Claims of the papers: {words} here" for words in map(_of_many, _VERDICTS)]
    columns = {}
    for machine in machines or [""]:
        compared, values = _compared(every, machine), _by_quantity(every, machine)
        runs, deviating = compared[["run", "metric"]].drop_duplicates(), compared.loc[compared["deviates"], "reported"]
        sums = (len(values), len(runs), deviating.nunique())
        medians = [_median(values.loc[values["metric"] == name, "ratio"]) for name in ("gpu_memory", "throughput")]
        counts = verdicts(filled, machine).values()
        columns[f"On {machine}" if machine else "Here"] = [*map(str, sums), *medians, *map(str, counts)]
    index = pd.Index(rows, name="The papers' tables and this hardware")
    source = "measured" if machines else "nothing measured yet"
    remarks = [f"{word}: {meaning}." for word, meaning in _VERDICTS.items()] + _caveats(filled, machines)
    return _sheet("glance", "At a glance", source, pd.DataFrame(columns, index=index), remarks)


def _layers(filled: Sequence[Filled], papers: pd.DataFrame) -> Sheet:
    """Per table: how many of its values were measured here, are only predicted, or neither, and why."""
    import pandas as pd

    names = pd.Index([item.table.name for item in filled], name="Table")
    counts = pd.crosstab(papers["table"], papers["layer"]).reindex(index=names, columns=list(_LAYERS), fill_value=0)
    counts.insert(0, "Reported", counts.sum(axis=1))
    counts.loc["All"] = counts.sum()
    shown, neither = counts.astype(int).astype(str).rename_axis("Table"), papers[papers["layer"] == _LAYERS[2]]
    shown["(x)"] = papers.groupby("table")["foretold"].apply(_median).reindex(shown.index, fill_value="")
    reasons = neither.groupby("table")["metric"].apply(
        lambda names: "; ".join(f"{name}: {NO_MODEL}" for name in names.unique())
    )
    shown["Why neither"] = reasons.reindex(shown.index, fill_value="")
    reported, seen, predicted, nothing = counts.loc["All"]
    remarks = [
        f"Of the {reported} values, {seen} were measured here, {predicted} are predicted only, {nothing} neither.",
        *(f"Neither: {count} of {name}, because {NO_MODEL}."
          for name, count in neither["metric"].value_counts().sort_index().items()),
        "Predicted: for the paper's GPU; (x) is the median of predicted / paper. Each table says how far off.",
    ]  # fmt: skip
    if fitted := papers["fitted"].sum():
        remarks.append(f"{fitted} predictions are no test: the constants were fitted on the value, or it repeats one.")
    return _sheet("layers", "Measured, predicted, paper", "all machines together", shown, remarks)


def _caveats(filled: Sequence[Filled], machines: Sequence[str]) -> list[str]:
    """Returns cautions for readers of the measured values that are compared, each once; warnings are in the tables."""
    cells = [cell for machine in machines for item in filled for cell in flat(dict(item.grids).get(machine, ()))]
    caveats = dict.fromkeys(caveat for cell in cells if cell.ratio is not None for caveat in cell.caveats)
    return [caveat for caveat in caveats if not caveat.startswith(WARNING)]


def _measured_claims(item: Filled, machine: str | None) -> list[claims.CheckedClaim]:
    grid = dict(item.grids).get(machine)
    if grid is None:  # of a machine that measured none of them: the table's cells without their results
        grid = mapped(item.grids[0][1], lambda cell: replace(cell, results=(), value=None, interval=None))
    return claims.checked(item.table, grid, claims.measured)


def _coverage(filled: Sequence[Filled], every: pd.DataFrame, machine: str) -> Sheet:
    """Per table: how many of its values were measured, how they compare, and how close to this machine's floor."""
    import pandas as pd

    names = pd.Index([item.table.name for item in filled], name="Table")
    compared = _compared(every, machine).assign(metric=lambda lines: lines["metric"].map(_COMPARED))
    by_table = every[every["own"]].groupby("table").size().reindex(names, fill_value=0)
    counts = compared.groupby("table").size().reindex(names, fill_value=0)
    shown = pd.DataFrame({"Reported": by_table, "Measured": counts})
    medians = compared.pivot_table(index="table", columns="metric", values="ratio", aggfunc="median")
    medians = medians.reindex(index=names, columns=list(_COMPARED.values()))
    runs = every[(every["machine"] == machine) & (every["floor"] > 0)].drop_duplicates(["table", "run"])
    medians["Floor (%)"] = 100 * runs.groupby("table")["floor"].median().reindex(names)
    forms = dict.fromkeys(_COMPARED.values(), "x{:.3g}") | {"Floor (%)": "{:.0f}"}
    texts = {
        name: ["" if math.isnan(number) else form.format(number) for number in medians[name]]
        for name, form in forms.items()
    }
    shown = shown.astype(str).assign(**texts)
    hardware = joined(compared["hardware"])
    source = f"measured on {machine}" + (f" ({hardware})" if hardware else "") if machine else "nothing measured yet"
    remarks = [
        f"{compared['reported'].nunique()} of the {by_table.sum()} values that the papers' tables report were measured "
        "here.",
        "Memory, Throughput, Step time: the median of measured / paper. Floor: the median share of the floor.",
        "Measured counts rows that a table does not have itself (smaller models) where another paper reports them.",
    ]
    return _sheet(f"coverage-{machine or 'none'}", "Tables of the papers", source, shown, remarks)


def _ratios(every: pd.DataFrame, machine: str) -> Sheet:
    """The distribution of measured / paper by quantity; each reported value counts once."""
    by_metric = _by_quantity(every, machine).groupby("metric")["ratio"]
    spread = by_metric.quantile(list(_QUARTILES.values())).map("x{:.3g}".format).unstack()
    spread.columns = list(_QUARTILES)
    spread.insert(0, "Values", by_metric.size().astype(str))
    shown = spread.reindex([name for name in METRICS.names() if name in spread.index]).rename_axis(index="Quantity")
    remark = "Every reported value that was measured here counts once. Throughput above 1 is faster than the paper."
    return _sheet(f"ratios-{machine}", "Measured / paper", f"measured on {machine}", shown, [remark])


def _claims(filled: Sequence[Filled], machines: Sequence[str]) -> Sheet:
    """Every claim: its bound, the paper's own values, what is predicted, and what was measured on each machine."""
    import pandas as pd

    papers, predicted, measured = "The paper's own values", "Predicted", [f"Measured on {name}" for name in machines]
    lines = [
        line for item in filled for first in [item.grids[0][1]]
        for line in zip(claims.checked(item.table, first, claims.reported),
                        claims.checked(item.table, first, claims.predicted),
                        *(_measured_claims(item, machine) for machine in machines), strict=True)
    ]  # fmt: skip
    labels = [f"{item.table.name}: {claim.text}" for item in filled for claim in item.table.claims]
    checked = pd.DataFrame(lines, index=pd.Index(labels, name="Claim"), columns=[papers, predicted, *measured])
    texts = checked[[papers, predicted]].map(_verdict)
    texts = texts.join(checked[measured].map(lambda claim: _verdict(claim, " so far")))
    texts.insert(0, "Bound", checked[papers].map(lambda claim: claims.bounds(claim.claim)))
    remarks = [
        "A claim is a ratio with a bound, taken in every row (or column) that it is about; it holds if all are within.",
        "Where the paper's own values are out of bounds, its words go beyond its table.",
    ]
    counts = [f"on {machine}: {in_words(verdicts(filled, machine))}" for machine in machines]
    source = f"measured {'; '.join(counts)}" if counts else "nothing measured yet"
    foretold = checked[predicted].map(lambda claim: bool(claim.ratios))
    if foretold.any():
        texts[predicted] = texts[predicted].where(foretold, claims.UNTOLD)
        numbers = Counter(claim.verdict for claim in checked.loc[foretold, predicted])
        numbers[claims.UNTOLD] = int((~foretold).sum())
        words = in_words({word: numbers[word] for word in (*_VERDICTS, claims.UNTOLD) if numbers[word]})
        source = f"Predicted, apart from what was measured: {words}."
        remarks.append(f"{source} A ratio's range is that of two independent errors.")
    else:
        del texts[predicted]
    return _sheet("claims", "Claims of the papers", source, texts, remarks)


def in_words(counts: Mapping[str, int]) -> str:
    """``3 hold, 1 does not hold``: how many claims have each verdict."""
    return ", ".join(f"{count} {word if count == 1 else _of_many(word)}" for word, count in counts.items())


def _of_many(verdict: str) -> str:
    """The verdict in the plural."""
    return {claims.HOLDS: "hold", claims.FAILS: "do not hold"}.get(verdict, verdict)


def _verdict(verdict: claims.CheckedClaim, partly: str = "") -> str:
    """The verdict and its numbers; ``partly`` is added where a claim holds in some of its rows and others are open."""
    if not verdict.ratios:
        return claims.OPEN
    some = verdict.verdict == claims.HOLDS and len(verdict.ratios) < verdict.expected
    return f"{verdict.verdict}{partly if some else ''}: {verdict.evidence}"


def _sheet(label: str, title: str, source: str, shown: pd.DataFrame, remarks: Sequence[str]) -> Sheet:
    """A sheet of texts: the index of ``shown`` below its name, and its columns."""
    lines = zip(map(str, shown.index), shown.itertuples(index=False, name=None), strict=True)
    return of_lines(
        str(shown.index.name), map(str, shown), lines, label=f"summary-{label}", title=title, source=source,
        remarks=remarks,
    )  # fmt: skip
