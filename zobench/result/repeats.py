"""Repeats of a cell: its runs put together as one result, and which runs of two cells were taken in the same rounds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
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
        runs = result.repeats or (result,)
        cells.setdefault((runs[0].environment.machine, runs[0].spec.hash), []).extend(runs)
    return [_merged(runs) for runs in cells.values()]


def _merged(runs: list[Result]) -> Result:
    ordered = sorted({number_of(run): run for run in runs}.values(), key=number_of)
    good = [run for run in ordered if run.is_ok]
    if len(ordered) == 1 or not good:
        return ordered[0]
    warnings = dict.fromkeys(text for run in good for text in run.warnings)
    return replace(good[0], repeats=tuple(good), warnings=list(warnings))


def renewed(stored: Iterable[Result], fresh: Sequence[Result]) -> list[Result]:
    """One result for each cell, of ``stored`` runs and ``fresh`` ones, which replace those of the same round."""
    taken = {(run.spec.hash, number_of(run)) for result in fresh for run in result.runs}
    return folded([*(run for run in stored if (run.spec.hash, number_of(run)) not in taken), *fresh])


def pairs(first: Result, second: Result) -> list[tuple[Result, Result]]:
    """The runs of two cells that were taken in the same rounds, in order; without those of which one had fewer threads
    than the other, whose ratio would be that of the cores that were idle."""
    rounds = {(run.round.number, run.round.began): run for run in second.runs if run.round}
    candidates = ((run, rounds.get((run.round.number, run.round.began))) for run in first.runs if run.round)
    return [
        (run, partner) for run, partner in candidates if partner is not None and not differ_in_threads(run, partner)
    ]


def differ_in_threads(first: Result, second: Result) -> bool:
    """Whether two runs on a CPU had other numbers of threads, as fewer cores were idle; ranks share all."""
    alike = first.spec.gpus == second.spec.gpus == 1 and first.spec.device == second.spec.device == "cpu"
    counts = {run.environment.threads for run in (first, second)} - {None}
    return alike and len(counts) > 1


def took_turns(first: Result, second: Result) -> bool:
    """Whether two runs stepped side by side, in turns (:mod:`zobench.execute.together`)."""
    began = first.environment.turns
    return began is not None and began == second.environment.turns


def seconds_of_pair(first_run: Result, second_run: Result) -> tuple[float, float]:
    """Step times of two runs of a round, whose ratio is theirs: their medians.

    Of runs that took turns it is the median ratio of the steps of one turn, from the first turn on that is warm-up for
    neither: what slowed both for a while is in neither.
    """
    first, second = first_run.step_seconds, second_run.step_seconds
    assert first is not None
    assert second is not None
    if not took_turns(first_run, second_run):
        return first, second
    runs = (first_run, second_run)
    begins = [run.spec.warmup + (run.environment.warm_up_detected or 0) for run in runs]
    seconds = [run.measured_seconds[max(begins) - begin :] for run, begin in zip(runs, begins, strict=True)]
    logs = [math.log(a / b) for a, b in zip(*seconds, strict=False)]
    return (second * math.exp(statistics.median(logs)) if logs else first), second
