"""Repeats of a sweep's cells: rounds, each in an order of its own, until the medians are known well enough.

A round holds every cell once, so that whatever slows the machine down for a while slows all of them down, and a ratio
of two cells is taken from pairs within rounds. Each run is a fresh process: its steps share more than chance.
"""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from zobench.execute.plan import Plan
from zobench.execute.sweep import Summary
from zobench.result import Outcome, Result, Round
from zobench.result.repeats import folded
from zobench.runspec import RunSpec
from zobench.stats import intervals
from zobench.stats.intervals import repeats_interval
from zobench.stats.ranks import LEAST

MOST = 20  # rounds of a sweep that is to go on until its medians are known, unless it says how many

Again = Callable[[Sequence[RunSpec], int], Plan]
"""Plans cells for the round of that number."""
Run = Callable[[Plan, float | None], Summary]
"""Runs a plan in a budget of seconds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Repeats:
    """How often each cell is run. ``count``: rounds, at most; ``until``: the width of the median's 95 % interval,
    relative to it, at which no more are needed; ``seed`` shuffles the cells of a round; ``first``: the number of the
    first round."""

    count: int = 1
    until: float | None = None
    seed: int = field(default_factory=lambda: secrets.randbits(32))
    first: int = 0

    @property
    def description(self) -> str:
        """The line of a plan on its repeats, "" where every cell runs once; the plan's times are of one round."""
        if self.count == 1:
            return ""
        end = "" if self.until is None else f", fewer once each median is known to {100 * self.until:g} %"
        return f"each cell runs {self.count} times, in rounds of all cells{end}; times are of one"

    @property
    def caution(self) -> str:
        """A warning of what so few repeats cannot show, whatever is measured; "" of enough, and of cells that run
        once."""
        if not 1 < self.count < LEAST:
            return ""
        return (
            "warning: ratios within a round rest on a guess of the spread, and elsewhere "
            f"{self.count} against {self.count} processes cannot reach 5 %, whatever they are; "
            f"at least --repeats {LEAST}, or {intervals.FEW}, which need no guess"
        )


def run(first: Plan, repeats: Repeats, again: Again, perform: Run, budget: float | None) -> Summary:
    """Runs ``first``, the plan of the first round, and the rounds after it, of the cells that ended ok in it, while the
    rest of ``budget`` (seconds) holds the longest yet. The summary has a result for each cell, with its repeats, in the
    plan's order."""
    end = None if budget is None else time.monotonic() + budget
    total, longest = Summary(), 0.0
    for number in range(repeats.count):
        left = None if end is None else end - time.monotonic()
        good = {result.spec.hash for result in total.results if result.is_ok}
        cells = [step.spec for step in first.steps if step.spec.hash in good]
        if number and (not cells or is_known(total.results, repeats.until)):
            break
        if number and left is not None and left < longest:
            total.waiting = len(cells)
            break
        planned = again(cells, repeats.first + number) if number else first
        begin = time.monotonic()
        summary = perform(_shuffled(planned, repeats.first + number, repeats.seed), left)
        longest = max(longest, time.monotonic() - begin)
        if number:
            total.lost_repeats += sum(result.outcome is Outcome.FAILED for result in summary.results)
            total.waiting = sum(result.outcome is Outcome.SKIPPED for result in summary.results)
        total.results = folded([*total.results, *summary.results])
        total.unsaved += summary.unsaved
        total.interrupted = summary.interrupted
        if total.interrupted:
            break
    places = {step.spec.hash: index for index, step in enumerate(first.steps)}
    total.results.sort(key=lambda result: places[result.spec.hash])
    return total


def _shuffled(planned: Plan, number: int, seed: int) -> Plan:
    """The plan of round ``number``, in an order that the seed and the number make; each step knows its place."""
    steps, began = list(planned.steps), time.time()
    random.Random(f"{seed} {number}").shuffle(steps)
    return replace(planned, steps=[
        replace(step, round=Round(number=number, began=began, place=turn, cells=len(steps), seed=seed))
        for turn, step in enumerate(steps)
    ])  # fmt: skip


def is_known(results: Iterable[Result], until: float | None) -> bool:
    """Whether each cell's median step is known to ``until``; without times more rounds could tell nothing."""
    return until is not None and all(
        intervals.is_known(repeats_interval(result.run_seconds), result.step_seconds, len(result.run_seconds), until)
        for result in results if result.is_ok and result.step_seconds
    )  # fmt: skip
