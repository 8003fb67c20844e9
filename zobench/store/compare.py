"""Compares two sets of runs cell by cell: what became faster or slower, by how much, and whether that is shown."""

from __future__ import annotations

import enum
import json
import os
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from zobench.result import Outcome, Result
from zobench.runspec import RunSpec, suggestion
from zobench.store import Store, machine_of, printable, ranks

DISTURBED = "other processes kept "
"""How the warning begins of a run during which others used the machine."""
_COMMIT = re.compile(r"[0-9a-f]{7,40}")


class Verdict(enum.StrEnum):
    """How B's step times compare with A's. FASTER and SLOWER: the rank test tells them apart at 5 %. SAME: it does not,
    and the 95 % interval of the ratio lies within the tolerance. Everything else is AMBIGUOUS, with a reason."""

    SAME = "SAME"
    FASTER = "FASTER"
    SLOWER = "SLOWER"
    AMBIGUOUS = "AMBIGUOUS"


@dataclass(frozen=True, kw_only=True, slots=True)
class Judgement:
    """``ratio``: B's median step time over A's; ``interval``: see :func:`zobench.store.ranks.ratio_interval`."""

    verdict: Verdict
    ratio: float | None = None
    interval: tuple[float, float] | None = None
    reason: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    """One cell that both sides have."""

    a: Result
    b: Result
    judgement: Judgement

    @property
    def memory_ratio(self) -> float | None:
        """B's peak device memory over A's; None unless both ended ok and measured it."""
        peaks = [side.memory.get("device_peak_bytes") for side in (self.a, self.b) if side.outcome is Outcome.OK]
        before, after = peaks if len(peaks) == 2 else (None, None)
        return after / before if before and after is not None else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """Cells of both sides, in A's order, and the results whose cell the other side does not have."""

    pairs: list[Pair]
    only_a: list[Result]
    only_b: list[Result]


def side(word: str, root: Path) -> tuple[list[Result], list[str]]:
    """The runs that ``word`` names, and the problems of reading them: a results folder (or one machine's folder in
    it), or a machine or commit (7 digits or more) of the store in ``root``.

    Raises ``ValueError`` if it names nothing, nothing that was measured, or more than one thing.
    """
    named: dict[str, list[Result]] = {}
    problems: list[str] = []
    if Path(word).is_dir():
        named[f"the folder {word}"], problems = _folder(Path(word))
    machines: dict[str, list[Result]] = {}
    commits: dict[str, list[Result]] = {}
    if os.sep not in word and word not in (".", ".."):
        store = Store(root)
        for result in store.load():
            machines.setdefault(machine_of(result), []).append(result)
            if commit := commit_of(result):
                commits.setdefault(commit, []).append(result)
        problems += store.problems
        named |= {f"the machine {name}": results for name, results in machines.items() if name == word}
        if _COMMIT.fullmatch(word):
            named |= {f"the commit {name}": results for name, results in commits.items() if name.startswith(word)}
    kept = list(named.values())
    if not kept:
        known = (
            suggestion(word, [*machines, *(name[:12] for name in commits)]) if machines else f"{root} has no results"
        )
        raise ValueError(
            f"A and B must be results folders, or machines or commits (7 digits or more) in {root}, but got {word!r}; "
            f"{known}"
        )
    if any(results != kept[0] for results in kept):
        raise ValueError(f"{word!r} must name one thing, but got {', '.join(named)}; write ./{word} or more digits")
    if not kept[0]:
        raise ValueError(f"{word!r} must hold results, but has none that can be read; see zobench results")
    return kept[0], problems


def _folder(path: Path) -> tuple[list[Result], list[str]]:
    store, machine = Store(path), None
    if not store.paths() and any(path.glob("*.json")):
        store, machine = Store(path.resolve().parent), path.resolve().name
    return store.load(machine), store.problems


def commit_of(result: Result) -> str | None:
    """The commit of zobench that measured ``result``, if it ran from a checkout."""
    source = result.environment.get("source")
    commit = source.get("commit") if isinstance(source, Mapping) else None
    return commit if isinstance(commit, str) and _COMMIT.fullmatch(commit) else None


def host_of(result: Result) -> str:
    """What two results of the same hardware share; software may differ, which is often what is compared."""
    hardware = result.environment.get("hardware")
    return json.dumps(hardware, sort_keys=True) if hardware else machine_of(result)


def compare(
    a: Sequence[Result], b: Sequence[Result], *, tolerance: float = 0.02, across_machines: bool = False
) -> Comparison:
    """Pairs cells of equal resolved specs; only the device's index (cuda:0, cuda:1) may differ.

    Results of different hardware are only compared ``across_machines``. Raises ``ValueError`` if the sides share no
    hardware or no cell, or if one of them has several results of a cell.
    """
    hosts = {host_of(result) for result in a}, {host_of(result) for result in b}
    if across_machines:
        if any(len(own) > 1 for own in hosts):
            raise ValueError(
                f"`--across-machines` needs one machine on each side, but got {_machines(a)} and {_machines(b)}; "
                "name a machine with --results"
            )
    elif not hosts[0] & hosts[1]:
        raise ValueError(
            f"A and B must be of the same hardware, but got {_machines(a)} and {_machines(b)}; "
            "add --across-machines to compare them all the same"
        )
    cells_a, cells_b = _cells("A", a, across_machines), _cells("B", b, across_machines)
    pairs = [
        Pair(a=cells_a[key], b=cells_b[key], judgement=_judged(cells_a[key], cells_b[key], tolerance))
        for key in cells_a
        if key in cells_b
    ]
    if not pairs:
        raise ValueError(
            f"A and B must share a cell, but none of {len(cells_a)} and {len(cells_b)} cells is in both; "
            "run the same matrix on both sides"
        )
    return Comparison(
        pairs=pairs,
        only_a=[result for key, result in cells_a.items() if key not in cells_b],
        only_b=[result for key, result in cells_b.items() if key not in cells_a],
    )


def _machines(results: Sequence[Result]) -> str:
    return ", ".join(sorted({machine_of(result) for result in results}))


def _cells(name: str, results: Sequence[Result], across: bool) -> dict[tuple[str, RunSpec], Result]:
    cells: dict[tuple[str, RunSpec], Result] = {}
    for result in results:
        spec = result.spec.replace(device=result.spec.device.partition(":")[0])
        other = cells.setdefault(("" if across else host_of(result), spec), result)
        if other is not result:
            told = "; ".join(f"{machine_of(one)} on {one.spec.device}" for one in (other, result))
            raise ValueError(
                f"{name} must have one result of each cell, but has two of {printable(spec.label)}: {told}; "
                "name one machine with --results"
            )
    return cells


def _judged(a: Result, b: Result, tolerance: float) -> Judgement:
    if a.outcome is not Outcome.OK or b.outcome is not Outcome.OK:
        return Judgement(verdict=Verdict.AMBIGUOUS, reason=f"A ended {a.outcome} and B {b.outcome}")
    return judge(a.measured_seconds, b.measured_seconds, tolerance)


def judge(a: Sequence[float], b: Sequence[float], tolerance: float) -> Judgement:
    """The verdict on step times ``b``, seen from ``a``. ``tolerance``: SAME needs an interval between 1 / (1 +
    tolerance) and 1 + tolerance, so that exchanging the sides changes nothing."""
    if not a or not b or min(*a, *b) <= 0:
        return Judgement(verdict=Verdict.AMBIGUOUS, reason="a side has no step times above 0")
    ratio, interval = statistics.median(b) / statistics.median(a), ranks.ratio_interval(a, b)
    if interval is None:
        reason = (
            f"{len(a)} against {len(b)} step times cannot reach 5 %, whatever they are; measure at least "
            f"{ranks.LEAST} on each side (--set steps={ranks.LEAST})"
        )
        return Judgement(verdict=Verdict.AMBIGUOUS, ratio=ratio, reason=reason)
    probability, larger = ranks.rank_test(a, b)
    verdict, reason = _verdict(probability, larger, ratio, interval, tolerance)
    return Judgement(verdict=verdict, ratio=ratio, interval=interval, reason=reason)


def _verdict(
    probability: float, larger: float, ratio: float, interval: tuple[float, float], tolerance: float
) -> tuple[Verdict, str]:
    if probability <= ranks.LEVEL:
        if larger < 0.5 and ratio < 1:
            return Verdict.FASTER, ""
        if larger > 0.5 and ratio > 1:
            return Verdict.SLOWER, ""
        return Verdict.AMBIGUOUS, "the ranks differ, but the medians do not agree; look at the step times"
    if 1 / (1 + tolerance) <= interval[0] and interval[1] <= 1 + tolerance:
        return Verdict.SAME, ""
    within = f"{100 * tolerance:.3g} %"
    return Verdict.AMBIGUOUS, f"no difference is shown, nor that it is within {within}; measure more steps"


def regressions(comparison: Comparison, limit: float) -> list[str]:
    """What is worse in B by more than ``limit`` (a share): steps shown to be slower, memory, cells that end no more."""
    worse = []
    for pair in comparison.pairs:
        label, ratio, memory = pair.a.spec.label, pair.judgement.ratio, pair.memory_ratio
        if pair.a.outcome is Outcome.OK and pair.b.outcome is not Outcome.OK:
            worse.append(f"{label}: ended ok in A and {pair.b.outcome} in B: {pair.b.reason}")
        if pair.judgement.verdict is Verdict.SLOWER and ratio is not None and ratio > 1 + limit:
            worse.append(f"{label}: steps take {ratio:.3f} times as long")
        if memory is not None and memory > 1 + limit:
            worse.append(f"{label}: {memory:.3f} times the device memory")
    return worse


def cautions(comparison: Comparison) -> list[str]:
    """What a reader of the verdicts should know about how the runs were measured."""
    told = []
    for name, results in (("A", [pair.a for pair in comparison.pairs]), ("B", [pair.b for pair in comparison.pairs])):
        disturbed = [one.spec.label for one in results if any(text.startswith(DISTURBED) for text in one.warnings)]
        if disturbed:
            told.append(
                f"{_count(len(disturbed), 'cell')} of {name} ran while others used the machine: " + "; ".join(disturbed)
            )
        dirty = sum(bool((one.environment.get("source") or {}).get("dirty")) for one in results if commit_of(one))
        if dirty:
            told.append(f"{_count(dirty, 'cell')} of {name} ran with uncommitted changes")
    return told


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
