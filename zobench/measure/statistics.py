"""Intervals for medians and ratios of times, from steps and from repeats; what steps are warm-up, drift and outliers.

The steps of one process have more in common than chance (its place in memory, its threads, the minute in which it
ran), so an interval from steps alone says how steady that process was, not whether another would take as long. The unit
of evidence is a process: one value each, the median of its steps.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

LEVEL = 0.05
"""Of every interval here: 1 - LEVEL is the coverage."""
FEW = 6
"""Processes or pairs from which ranks alone reach the level: 2 / 2^6 is 3.1 %. Fewer are taken to be log-normal."""
_TO_DEVIATION = 1.4826
"""What the median absolute deviation is multiplied by to be the standard deviation of normal values."""
_APART = 3.5
"""Robust standard deviations from which a value is an outlier (Iglewicz and Hoaglin 1993)."""
_TREND_LEVEL = 0.01
"""Of the test for drift: what is told should be there."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ratio:
    """A ratio from ``pairs`` of values: its estimate, and the ends of its 95 % interval, None for one pair alone."""

    value: float
    interval: tuple[float, float] | None
    pairs: int

    @property
    def differs(self) -> bool:
        """Whether the interval says that it is not 1."""
        return self.interval is not None and not self.interval[0] <= 1 <= self.interval[1]

    @property
    def width(self) -> float:
        """Of the interval, relative to the estimate; infinite without one."""
        return math.inf if self.interval is None else (self.interval[1] - self.interval[0]) / self.value

    def is_known(self, until: float) -> bool:
        """Whether no more rounds are needed for it: see :func:`is_known`."""
        return is_known(self.interval, self.value, self.pairs, until)


def is_known(interval: tuple[float, float] | None, value: float, count: int, until: float) -> bool:
    """The rule that ends rounds: whether the ``interval`` of ``value``, from ``count`` processes or pairs, is no wider
    than ``until``, relative to it. One from fewer than FEW rests on a guess of its spread, and one that is narrow by
    chance would end the rounds."""
    return count >= FEW and interval is not None and interval[1] - interval[0] <= until * value


def median_interval(values: Sequence[float], level: float = 0.95) -> tuple[float, float] | None:
    """The narrowest symmetric pair of order statistics that covers the median with probability >= ``level``.

    Each value lies below the median with probability 1/2, whatever the distribution, so the count below is binomial.
    None if even the smallest and largest value do not reach the level: at 95 % that is fewer than 6 values.
    """
    ordered = sorted(values)
    n = len(ordered)
    tail, rank = 0, 0
    for k in range(n // 2):
        tail += math.comb(n, k)  # ways that at most k values lie below the median
        if 1 - 2 * tail / 2**n < level:
            break
        rank = k + 1
    return (ordered[rank - 1], ordered[n - rank]) if rank else None


def repeats_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """The 95 % interval of the median over processes, of which ``values`` > 0 are one each. None for fewer than two.

    From FEW on it needs no distribution: between two neighbouring pairs of order statistics, one of which covers more
    than 95 % and one less, as Hettmansperger and Sheather (1986) interpolate. Fewer are taken to be log-normal.
    """
    if len(values) < FEW:
        return _few(values)
    ordered, n = sorted(values), len(values)
    tails = _halves(n)
    rank = max(rank for rank in range(1, n // 2 + 1) if 2 * tails[rank - 1] <= LEVEL)
    above, below = 1 - 2 * tails[rank - 1], 1 - 2 * tails[rank]
    share = (above - (1 - LEVEL)) / (above - below)
    weight = (n - rank) * share / (rank + (n - 2 * rank) * share)
    return (
        (1 - weight) * ordered[rank - 1] + weight * ordered[rank],
        (1 - weight) * ordered[n - rank] + weight * ordered[n - rank - 1],
    )


def _halves(n: int) -> list[float]:
    """The probability that at most k of n fair coins show heads, for k from 0 to n // 2."""
    total, tails = 0, []
    for k in range(n // 2 + 1):
        total += math.comb(n, k)
        tails.append(total / 2**n)
    return tails


def _few(values: Sequence[float]) -> tuple[float, float] | None:
    """Student's interval of the mean logarithm: wide, as it must be where so little is known of the spread."""
    from scipy import special

    n, logs = len(values), [math.log(value) for value in values]
    if n < 2:
        return None
    half = float(special.stdtrit(n - 1, 1 - LEVEL / 2)) * statistics.stdev(logs) / math.sqrt(n)
    middle = statistics.fmean(logs)
    return math.exp(middle - half), math.exp(middle + half)


def ratio_of_pairs(pairs: Sequence[tuple[float, float]]) -> Ratio:
    """The ratio first / second of ``pairs`` of values > 0, each of two processes that ran in the same round.

    What slows a whole round down is in both and cancels. The estimate is the median over all pairs of rounds of their
    mean log ratio (Hodges and Lehmann 1963). From FEW on the interval is the one that belongs to Wilcoxon's signed-rank
    test, which needs no more than that a ratio's error is as often and as far above as below: in random order it is.
    Fewer are taken to be log-normal. ``ValueError`` for none.
    """
    logs = [math.log(first) - math.log(second) for first, second in pairs]
    if not logs:
        raise ValueError("a ratio needs a pair of values, but got none; measure both in one round")
    averages = sorted((logs[i] + logs[j]) / 2 for i in range(len(logs)) for j in range(i + 1))
    value = math.exp(statistics.median(averages))
    if len(logs) < FEW:
        interval = _few([first / second for first, second in pairs])
    else:
        out = signed_rank_critical(len(logs))
        interval = math.exp(averages[out - 1]), math.exp(averages[-out])
    return Ratio(value=value, interval=interval, pairs=len(logs))


@functools.cache
def signed_rank_critical(n: int) -> int:
    """The place, from either end, of the mean of two log ratios at which the signed-rank test reaches the level; n >=
    FEW. Counted over all 2^n signs: in how many of them the ranks of the positive ones sum up to each number."""
    ways = [1]
    for rank in range(1, n + 1):
        longer = ways + [0] * rank
        for total, count in enumerate(ways):
            longer[total + rank] += count
        ways = longer
    tail = 0
    for total, count in enumerate(ways):
        tail += count
        if 2 * tail > LEVEL * 2**n:
            return total
    raise AssertionError("half of all signs are beyond any level")


def warm_up(seconds: Sequence[float]) -> int:
    """How many of a process's first steps are warm-up: all before the first one that is no slower than the second half
    of the steps allows, three robust standard deviations (or 1 %) above its median. None of fewer than 6 steps."""
    if len(seconds) < FEW:
        return 0
    rest = seconds[len(seconds) // 2 :]
    limit = statistics.median(rest) + max(3 * _deviation(rest), 0.01 * statistics.median(rest))
    slow = next((place for place, value in enumerate(seconds) if value <= limit), 0)
    return min(slow, len(seconds) // 2)


def drift(values: Sequence[float]) -> float | None:
    """By which share ``values`` > 0, in order of time, grew from the first to the last; None if there is no trend.

    The slope is the median over all pairs (Theil 1950, Sen 1968) of the logarithms; that there is one at all is
    Kendall's test at 1 %, exact up to 60 values: fewer than 6 have none.
    """
    n, logs = len(values), [math.log(value) for value in values]
    pairs = [(i, j) for j in range(n) for i in range(j)]
    score = sum((logs[j] > logs[i]) - (logs[j] < logs[i]) for i, j in pairs)
    if not pairs or 2 * _kendall_tail(n, abs(score)) > _TREND_LEVEL:
        return None
    return math.expm1((n - 1) * statistics.median((logs[j] - logs[i]) / (j - i) for i, j in pairs))


def _kendall_tail(n: int, score: int) -> float:
    """The probability that, of n values in random order, so many more pairs are in order than out of it, or more."""
    if n > 60:
        return 1 - statistics.NormalDist().cdf((score - 1) / math.sqrt(n * (n - 1) * (2 * n + 5) / 18))
    ways = [1]  # orders by their number of pairs out of order
    for size in range(2, n + 1):
        ways = [sum(ways[max(0, k - size + 1) : k + 1]) for k in range(len(ways) + size - 1)]
    most = (n * (n - 1) // 2 - score) // 2
    return sum(ways[: most + 1]) / math.factorial(n)


def outliers(values: Sequence[float], least: float = 0.02) -> list[int]:
    """The places of ``values`` > 0 that are far from all others: 3.5 robust standard deviations and the share ``least``
    from the median. None of fewer than 5. They stay in every interval, which medians and ranks keep from harm."""
    if len(values) < 5:
        return []
    logs = [math.log(value) for value in values]
    middle, limit = statistics.median(logs), max(_APART * _deviation(logs), math.log1p(least))
    return [place for place, value in enumerate(logs) if abs(value - middle) > limit]


def _deviation(values: Sequence[float]) -> float:
    """A standard deviation that outliers do not move."""
    middle = statistics.median(values)
    return _TO_DEVIATION * statistics.median(abs(value - middle) for value in values)
