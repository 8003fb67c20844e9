"""How small a difference this machine can show: a cell compared with itself, and with itself made slower on purpose.

A comparison is rounds of three fresh processes, side by side in turns where the cell can: the cell, again, and with
steps lengthened by a share. It ends once both ratios are known to UNTIL (zobench.stats.intervals.is_known), or after
MOST rounds. Equal cells that are called different are false alarms; the slowdown should be found.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from zobench.execute import together
from zobench.execute.process import run_in_process
from zobench.result import Result
from zobench.result.repeats import differ_in_threads, seconds_of_pair
from zobench.runspec import RunSpec
from zobench.stats import LEVEL
from zobench.stats.intervals import FEW, Ratio, ratio_of_pairs

UNTIL = 0.03  # width of a ratio's 95 % interval, relative to it, from which on no more rounds are needed
MOST = 15  # rounds of a comparison
COMPARISONS = 20
SLOWDOWN = 0.05
ALARMS, MISSES = 0.1, 0.1
"""The share of comparisons of equals that may say a difference, and of slowdowns that may be missed."""
_NINE_OF_TEN = (statistics.NormalDist().inv_cdf(1 - LEVEL / 2) + statistics.NormalDist().inv_cdf(0.9)) / (
    statistics.NormalDist().inv_cdf(1 - LEVEL / 2)
)
"""The difference that nine of ten comparisons find, over half the width of their intervals."""

RunCells = Callable[[RunSpec, Sequence[float], random.Random], Sequence[Result]]
"""Measures a spec in fresh processes, the steps of each lengthened by the share that is its own."""


def in_turns(spec: RunSpec, shares: Sequence[float], order: random.Random) -> list[Result]:
    """The processes side by side, which step in turns."""
    return together.run_together([spec] * len(shares), order=order, slowdowns=shares)


def one_by_one(spec: RunSpec, shares: Sequence[float], order: random.Random) -> list[Result]:
    """The processes one after the other, of a cell that cannot take turns."""
    return [run_in_process(spec, slowdown=share) for share in shares]


@dataclass(frozen=True, kw_only=True, slots=True)
class SlowdownCheck:
    """The cell again over the cell, and the slowed cell over the cell, from the same rounds."""

    equal: Ratio
    slowed: Ratio

    @property
    def is_found(self) -> bool:
        return self.slowed.differs and self.slowed.value > 1

    @property
    def line(self) -> str:
        """Both ratios with their 95 % intervals, what is said of them, and the rounds."""
        equal, slowed = (
            "x{:.3f}, {:.3f} to {:.3f}".format(ratio.value, *ratio.interval or ())
            for ratio in (self.equal, self.slowed)
        )
        alarm = "false alarm" if self.equal.differs else "no difference"
        slowdown = "found" if self.is_found else "missed"
        return f"equal {equal}: {alarm}; slowed {slowed}: {slowdown}; {self.equal.pairs} rounds"


@dataclass(kw_only=True)
class SelfTest:
    """The verdict on a machine's comparisons of itself with itself. ``slowdown``: the planted one."""

    spec: RunSpec
    slowdown: float
    seed: int
    comparisons: list[SlowdownCheck] = field(default_factory=list)

    @property
    def alarms(self) -> int:
        return sum(comparison.equal.differs for comparison in self.comparisons)

    @property
    def detected(self) -> int:
        return sum(comparison.is_found for comparison in self.comparisons)

    @property
    def least(self) -> float:
        """The difference, a share, that nine of ten such comparisons should find, from how wide their intervals are."""
        return _NINE_OF_TEN * statistics.median(comparison.equal.width / 2 for comparison in self.comparisons)

    @property
    def is_passed(self) -> bool:
        """Whether there were few enough false alarms, and few enough misses."""
        count = len(self.comparisons)
        return count > 0 and self.alarms <= ALARMS * count and count - self.detected <= MISSES * count

    def page(self) -> str:
        """The comparisons in three lines, and a verdict."""
        count, rounds = len(self.comparisons), sorted(comparison.equal.pairs for comparison in self.comparisons)
        share = f"{100 * self.slowdown:g} %"
        span = f"{rounds[0]}" if rounds[0] == rounds[-1] else f"{rounds[0]} to {rounds[-1]}"
        verdict = "can be trusted with" if self.is_passed else "is too unsteady, or busy, for"
        caution = f"; {count} comparisons are few to say so, {COMPARISONS} are usual" if count < COMPARISONS else ""
        return "\n".join([
            f"{self.alarms} of {count} comparisons of equals say a difference (at most {int(ALARMS * count)} may)",
            f"a slowdown of {share} is found in {self.detected} of {count} "
            f"(at least {count - int(MISSES * count)} should)",
            f"from about {100 * self.least:.1f} % on, nine of ten differences are found; {span} rounds each",
            f"this machine {verdict} a difference of {share}{caution}",
        ])  # fmt: skip


def self_test(
    spec: RunSpec, run: RunCells, *, seed: int, count: int = COMPARISONS, slowdown: float = SLOWDOWN,
    budget: float | None = None, say: Callable[[int, SlowdownCheck], None] = lambda number, comparison: None,
) -> SelfTest:  # fmt: skip
    """``count`` comparisons of ``spec`` with itself, as many as ``budget`` seconds hold. ``seed`` orders the processes
    of each round; ``say`` gets each comparison, numbered from 1. Raises ``ValueError`` for a run that is not ok."""
    end = None if budget is None else time.monotonic() + budget
    order, done, longest = random.Random(seed), SelfTest(spec=spec, slowdown=slowdown, seed=seed), 0.0
    for number in range(1, count + 1):
        begin = time.monotonic()
        if end is not None and number > 1 and end - begin < longest:
            break
        done.comparisons.append(_compared(spec, run, slowdown, order))
        longest = max(longest, time.monotonic() - begin)
        say(number, done.comparisons[-1])
    return done


def _compared(spec: RunSpec, run: RunCells, slowdown: float, order: random.Random) -> SlowdownCheck:
    """A comparison from rounds in which all three had as many threads; others can have a core for a while."""
    equal: list[tuple[float, float]] = []
    slowed: list[tuple[float, float]] = []
    for _ in range(MOST):
        shares = {"cell": 0.0, "again": 0.0, "slowed": slowdown}
        names = list(shares)
        order.shuffle(names)
        done = dict(zip(names, run(spec, [shares[name] for name in names], order), strict=True))
        for result in done.values():
            if not result.is_ok or not result.step_seconds:
                raise ValueError(f"a self-test needs runs that end ok, but one ended {result.outcome}: {result.reason}")
        if any(differ_in_threads(done["cell"], result) for result in done.values()):
            continue
        equal.append(seconds_of_pair(done["again"], done["cell"]))
        slowed.append(seconds_of_pair(done["slowed"], done["cell"]))
        comparison = SlowdownCheck(equal=ratio_of_pairs(equal), slowed=ratio_of_pairs(slowed))
        if comparison.equal.is_known(UNTIL) and comparison.slowed.is_known(UNTIL):
            break
    if len(equal) < FEW:
        raise ValueError(
            f"a self-test needs {FEW} rounds of {MOST} whose processes have as many threads, but had {len(equal)}, "
            "because others used the cores; wait for them, or set OMP_NUM_THREADS"
        )
    return comparison
