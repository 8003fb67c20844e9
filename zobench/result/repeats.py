"""Repeats of a cell: its runs put together as one result, and which runs of two cells were taken in the same rounds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import replace

from zobench.result.record import Result


def number_of(result: Result) -> int:
    """The number of the round that a run was taken in; 0 of one that was not repeated."""
    return 0 if result.round is None else result.round.number


def folded(results: Iterable[Result]) -> list[Result]:
    """One result for each cell of a machine, in the order of their first runs: its first run that ended ok, which has
    all of them as ``repeats``, and their warnings; without an ok run, the first."""
    cells: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        own = result.repeats or (result,)
        cells.setdefault((str(own[0].environment.get("machine")), own[0].spec.hash), []).extend(own)
    return [_one(runs) for runs in cells.values()]


def _one(runs: list[Result]) -> Result:
    ordered = sorted({number_of(run): run for run in runs}.values(), key=number_of)
    good = [run for run in ordered if run.is_ok]
    if len(ordered) == 1 or not good:
        return ordered[0]
    warnings = dict.fromkeys(text for run in good for text in run.warnings)
    return replace(good[0], repeats=tuple(good), warnings=list(warnings))


def pairs(one: Result, other: Result) -> list[tuple[Result, Result]]:
    """The runs of two cells that were taken in the same rounds, in order; without those of which one had fewer threads
    than the other, whose ratio would be that of the cores that were idle."""
    rounds = {(run.round.number, run.round.began): run for run in other.runs if run.round}
    known = ((run, rounds.get((run.round.number, run.round.began))) for run in one.runs if run.round)
    return [(run, partner) for run, partner in known if partner is not None and not differ_in_threads(run, partner)]


def differ_in_threads(one: Result, other: Result) -> bool:
    """Whether two runs computed on a CPU with other numbers of threads, as when fewer cores were idle for one of them.
    Never of ranks, which share all cores, and of a GPU's."""
    alike = one.spec.gpus == other.spec.gpus == 1 and one.spec.device == other.spec.device == "cpu"
    counts = {run.environment.get("threads") for run in (one, other)} - {None}
    return alike and len(counts) > 1


def took_turns(one: Result, other: Result) -> bool:
    """Whether two runs stepped side by side, in turns (:mod:`zobench.execute.together`)."""
    began = one.environment.get("turns")
    return began is not None and began == other.environment.get("turns")


def seconds_of_pair(one: Result, other: Result) -> tuple[float, float]:
    """Step times of two runs of a round, whose ratio is theirs: their medians.

    Of runs that took turns it is the median ratio of the steps of one turn: what slowed both for a while is in neither.
    """
    first, second = one.step_seconds, other.step_seconds
    assert first is not None
    assert second is not None
    if not took_turns(one, other):
        return first, second
    logs = [math.log(a / b) for a, b in zip(*_in_the_same_turns(one, other), strict=False)]
    return (second * math.exp(statistics.median(logs)) if logs else first), second


def _in_the_same_turns(one: Result, other: Result) -> list[list[float]]:
    """The seconds of the steps that each measured, from the first turn on that is warm-up for neither."""
    begins = [run.spec.warmup + int(run.environment.get("warm_up_detected", 0)) for run in (one, other)]
    return [run.measured_seconds[max(begins) - own :] for run, own in zip((one, other), begins, strict=True)]
