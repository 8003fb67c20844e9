"""The report's page of machines: each ranked by a few stated cells, within one and the same run and never across."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from zobench.machine.reader import checked
from zobench.machine.texts import toml_of
from zobench.report import frames
from zobench.report.cells import meets
from zobench.report.contents import Artifact
from zobench.report.sheet import WARNING, CellText, Sheet, of_lines, rounded
from zobench.report.table import USUAL, Case
from zobench.result import Result
from zobench.result.quantity import Interval
from zobench.runspec.registries import METRICS
from zobench.store import Store, evidence, machine_of, place_of
from zobench.store.compare import cell_of, commit_of
from zobench.store.pack import implausible

if TYPE_CHECKING:
    import pandas as pd

NAME, TITLE = "leaderboard", "Machines, ranked by a few cells"
CELLS = Path(__file__).with_name("leaderboard.toml")
_SPEED = "throughput"
_SHOWN = {_SPEED: ".0f", "gpu_memory": ".0f", "floor": ".0f", "energy_per_token": ".3g"}
"""Metric -> its format."""
_HEADERS = ("Machine", "tokens/s ↑", "Memory (MB) ↓", "Floor (%) ↑", "J/token ↓", "Commit", "Date", "Runs", "Run")
_COLUMNS = ("cell", "spec", "rank", "machine", "metric", "unit", "value", "low", "high", "commit", "date", "run")
_NOTHING = CellText(text="—", tone="blank")
_RULES = (
    "Ranked by tokens/s, within runs of one and the same spec: a rank is one more than the number of machines whose "
    "95 % interval of tokens/s lies above the machine's own.",
    "Memory: the device's peak; on a CPU what the process grew by. Floor: the least time that the machine's own rates "
    "allow a step, over the time it took. J/token: where a counter of energy can be read. 1 MB is 1048576 bytes.",
    "Date: of the last round, in UTC; runs outside of rounds have none. —: not available.",
)


class RankedResult(NamedTuple):
    """A machine's result and its ``rank`` among those of the same spec, None where it is alone."""

    result: Result
    rank: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class MachineRanking:
    """A cell's results of one and the same spec, the fastest first."""

    cell: Case
    entries: tuple[RankedResult, ...]

    @property
    def label(self) -> str:
        """The cell that was run, in words."""
        spec = self.entries[0].result.spec
        device = spec.device.partition(":")[0]
        return f"{spec.label}, {spec.steps} steps after {spec.warmup}, on {device}"


def stated() -> tuple[Case, ...]:
    """The cells of the file, of whose runs each different one is ranked for itself."""
    body = checked(toml_of(CELLS), {"cells": tuple[Case, ...]}, CELLS.name)
    return tuple(replace(cell, where={**USUAL, **cell.where}) for cell in body["cells"])


def rankings(results: Sequence[Result], cells: Sequence[Case]) -> list[MachineRanking]:
    """The results that are whole, ended ok and can be believed, by cell and spec."""
    ranked = []
    for cell in cells:
        alike: dict[object, list[Result]] = {}
        for result in (result for result in results if meets(result.spec, cell.where) and not result.partial):
            if _speed(result) and not any(map(implausible, (result, *result.repeats))):
                alike.setdefault(cell_of(result), []).append(result)
        groups = sorted(alike.values(), key=lambda group: (group[0].spec.device, group[0].spec.hash))
        ranked += [MachineRanking(cell=cell, entries=_ranked(group)) for group in groups]
    return ranked


def _ranked(alike: Sequence[Result]) -> tuple[RankedResult, ...]:
    """A machine's rank is one more than the number of machines that are shown to be faster."""
    ordered = sorted(alike, key=lambda result: (-_speed(result), place_of(result)))
    if len({place_of(result) for result in ordered}) == 1:
        return tuple(RankedResult(result, None) for result in ordered)
    faster = [{place_of(other) for other in ordered if _is_faster(other, result)} for result in ordered]
    return tuple(RankedResult(result, 1 + len(places)) for result, places in zip(ordered, faster, strict=True))


def _is_faster(result: Result, other: Result) -> bool:
    """Whether ``result``, of another machine than ``other``, is shown to be faster."""
    first, second = (METRICS.get(_SPEED).interval(each) for each in (result, other))
    elsewhere = place_of(result) != place_of(other)
    return elsewhere and first is not None and second is not None and first[0] > second[1]


def _speed(result: Result) -> float:
    """Tokens per second; 0 of a result that did not end ok."""
    return METRICS.get(_SPEED).of(result) or 0.0


def artifact(results: Sequence[Result]) -> Artifact:
    """The page: a sheet for each ranking, and all numbers as CSV."""
    ranked = rankings(results, stated())
    return Artifact(
        name=NAME, kind="table", title=TITLE, paper="", runner="", command="zobench campaign",
        sheets=tuple(_sheet(ranking, () if i else _RULES) for i, ranking in enumerate(ranked)) or (_empty(),),
        frame=_numbers(ranked),
    )  # fmt: skip


def _empty() -> Sheet:
    text = f"None of the cells was measured yet: {', '.join(cell.title for cell in stated())}."
    more = "`zobench campaign small-cpu` or `zobench campaign one-gpu` measures them (docs/campaigns.md)."
    return Sheet(label=NAME, title=TITLE, source="nothing measured yet", row_header="Rank", rows=(), groups=(),
                 remarks=(text, more))  # fmt: skip


def _sheet(ranking: MachineRanking, rules: Sequence[str]) -> Sheet:
    """``rules``: what is said of all rankings, once, below the first."""
    count = len({place_of(entry.result) for entry in ranking.entries})
    source = f"measured on {count} machines" if count > 1 else "measured on one machine: nothing is ranked"
    return of_lines(
        "Rank", _HEADERS, [(str(entry.rank or "-"), _line(entry.result)) for entry in ranking.entries],
        label=f"{NAME}-{ranking.entries[0].result.spec.hash}", title=ranking.cell.title, source=source,
        remarks=(f"The run: {ranking.label}.", *rules),
    )  # fmt: skip


def _line(result: Result) -> list[CellText]:
    about = result.environment.description
    return [
        CellText(text=place_of(result), detail=f"({about})" if about else "", tone="label"),
        *(_number(result, name, form, _slowed_by(result) if name == _SPEED else ()) for name, form in _SHOWN.items()),
        *(CellText(text=text, tone="label") if text else _NOTHING for text in (_commit(result), _date(result))),
        CellText(text=str(len(result.runs)), tone="label"),
        CellText(text=path_of(result), tone="label"),
    ]


def _slowed_by(result: Result) -> tuple[str, ...]:
    """Returns what makes the cell's steps longer than they would be alone."""
    turns = evidence.in_turns(result)
    turned = (f"{turns[0].upper()}{turns[1:]}.",) if turns else ()
    return *turned, *(f"{WARNING}{text}" for text in result.disturbances)


def _number(result: Result, metric: str, form: str, notes: tuple[str, ...] = ()) -> CellText:
    quantity = METRICS.get(metric)
    value, scale = quantity.of(result), next(iter(quantity.units.values()))
    if value is None:
        return _NOTHING
    interval: Interval | None = quantity.interval(result) if quantity.timed or quantity.per_run else None
    ends = () if interval is None else tuple(rounded(end / scale, form) for end in interval)
    return CellText(text=rounded(value / scale, form), detail=f"[{', '.join(ends)}]" if ends else "", notes=notes)


def path_of(result: Result) -> str:
    """Where a store keeps the result, or its first run: ``MACHINE/NAME-HASH.json``."""
    first = result.runs[0]
    number_of_round = first.round.number if first.round else 0
    return f"{machine_of(result)}/{Store(Path()).path(result.spec, 'any', number_of_round).name}"


def _commit(result: Result) -> str:
    commit = commit_of(result)
    changed = (result.environment.source or {}).get("dirty")
    return f"{commit[:10]}{' and changes' if changed else ''}" if commit else ""


def _date(result: Result) -> str:
    began = [run.round.began for run in result.runs if run.round]
    return datetime.datetime.fromtimestamp(max(began), datetime.UTC).date().isoformat() if began else ""


def _numbers(ranked: Sequence[MachineRanking]) -> pd.DataFrame:
    """Every value in base units, a line each."""
    lines = [
        {"cell": ranking.cell.title, "spec": ranking.label, "rank": entry.rank or "", "commit": commit_of(result) or "",
         "date": _date(result), "machine": place_of(result), "run": path_of(result), "metric": metric,
         "unit": quantity.base_unit, "value": value, "low": interval[0], "high": interval[1]}
        for ranking in ranked for entry in ranking.entries for metric in _SHOWN
        for result, quantity in ((entry.result, METRICS.get(metric)),) if (value := quantity.of(result)) is not None
        for interval in (quantity.interval(result) or (None, None),)
    ]  # fmt: skip
    return frames.made(lines, _COLUMNS)
