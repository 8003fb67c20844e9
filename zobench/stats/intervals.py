"""95 % intervals: of a median over steps or processes, of a ratio of two cells from shared rounds, of a share; and what
the values of a process or of rounds are, in order of time: warm-up, drift, outliers.

The steps of one process have more in common than chance (where it lies in memory, its threads, the minute in which it
ran), so an interval from steps alone says how steady that process was, not whether another would take as long. The unit
of evidence is a process: one value each, the median of its steps.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from zobench.stats import LEVEL
from zobench.stats.ranks import signed_rank_critical

FEW = 6
"""Processes or pairs from which ranks alone reach the level: 2 / 2^6 is 3.1 %. Fewer are taken to be log-normal."""
_FAR = 3.5
"""Robust standard deviations from which a value is an outlier (Iglewicz and Hoaglin 1993)."""
_TREND_LEVEL = 0.01
"""The level of the test for drift: a drift that is reported should be there."""
_EXACT = 60
"""Values up to which Kendall's distribution is counted; beyond, the normal one is as good."""


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
        """The width of the interval, relative to the estimate; infinite without one."""
        return math.inf if self.interval is None else (self.interval[1] - self.interval[0]) / self.value

    def is_known(self, until: float) -> bool:
        """Whether no more rounds are needed for it: see :func:`is_known`."""
        return is_known(self.interval, self.value, self.pairs, until)


def is_known(interval: tuple[float, float] | None, value: float, count: int, until: float) -> bool:
    """The rule that ends rounds: whether the ``interval`` of ``value``, from ``count`` processes or pairs, is no wider
    than ``until``, relative to it. One from fewer than FEW rests on a guess of its spread, and one that is narrow by
    chance would end the rounds."""
    return count >= FEW and interval is not None and interval[1] - interval[0] <= until * value


def median_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """The narrowest symmetric pair of order statistics that covers the median with a probability of 95 % at least.

    Each value lies below the median with probability 1/2, whatever the distribution, so the count below is binomial.
    None if even the smallest and largest value do not reach the 95 %: of fewer than 6 values.
    """
    from scipy import special

    ordered, n = sorted(values), len(values)
    tails = special.bdtr(range(n // 2), n, 0.5)  # the probability that at most k values lie below the median
    rank = int((2 * tails <= LEVEL).sum())
    return (ordered[rank - 1], ordered[n - rank]) if rank else None


def repeats_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """The 95 % interval of the median over processes, of which ``values`` > 0 are one each. None for fewer than two.

    From FEW on it needs no distribution: between two neighbouring pairs of order statistics, one of which covers more
    than 95 % and one less, as Hettmansperger and Sheather (1986) interpolate. Fewer are taken to be log-normal.
    """
    from scipy import special

    if len(values) < FEW:
        return _few(values)
    ordered, n = sorted(values), len(values)
    covered = 1 - 2 * special.bdtr(range(n // 2 + 1), n, 0.5)
    rank = int((covered[:-1] >= 1 - LEVEL).sum())
    above, below = float(covered[rank - 1]), float(covered[rank])
    share = (above - (1 - LEVEL)) / (above - below)
    weight = (n - rank) * share / (rank + (n - 2 * rank) * share)
    return (
        (1 - weight) * ordered[rank - 1] + weight * ordered[rank],
        (1 - weight) * ordered[n - rank] + weight * ordered[n - rank - 1],
    )


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


def wilson_interval(share: float, count: int) -> tuple[float, float]:
    """The 95 % interval of a share of ``count`` examples, by Wilson's score (1927). scipy's is of whole numbers of
    examples, which a mean over seeds is not."""
    normal = statistics.NormalDist().inv_cdf(1 - LEVEL / 2)
    square = normal**2 / count
    middle = (share + square / 2) / (1 + square)
    half = normal * math.sqrt(share * (1 - share) / count + square / (4 * count)) / (1 + square)
    return max(0.0, middle - half), min(1.0, middle + half)


def warm_up(seconds: Sequence[float]) -> int:
    """How many of a process's first steps are warm-up: all before the first one that is no slower than the second half
    of the steps allows, three robust standard deviations (or 1 %) above its median. None of fewer than 6 steps."""
    if len(seconds) < FEW:
        return 0
    rest = seconds[len(seconds) // 2 :]
    limit = statistics.median(rest) + max(3 * _deviation(rest), 0.01 * statistics.median(rest))
    slow = next((index for index, value in enumerate(seconds) if value <= limit), 0)
    return min(slow, len(seconds) // 2)


def drift(values: Sequence[float]) -> float | None:
    """By which share ``values`` > 0, in order of time, grew from the first to the last; None if there is no trend.

    The slope is the median over all pairs (Theil 1950, Sen 1968) of the logarithms; that there is one at all is
    Kendall's test at 1 %, exact up to 60 values that all differ: fewer than 6 have none.
    """
    from scipy import stats

    if len(values) < FEW:
        return None
    order, logs = range(len(values)), [math.log(value) for value in values]
    exact = len(set(logs)) == len(logs) <= _EXACT
    p = stats.kendalltau(order, logs, method="exact" if exact else "asymptotic").pvalue  # no number if all are equal
    if not p <= _TREND_LEVEL:
        return None
    return math.expm1((len(logs) - 1) * float(stats.theilslopes(logs, order).slope))


def outliers(values: Sequence[float]) -> list[int]:
    """The indices of ``values`` > 0 that are far from all others: 3.5 robust standard deviations and 2 % from the
    median. None of fewer than 5. They stay in every interval, which medians and ranks keep from harm."""
    if len(values) < 5:
        return []
    logs = [math.log(value) for value in values]
    middle, limit = statistics.median(logs), max(_FAR * _deviation(logs), math.log1p(0.02))
    return [index for index, value in enumerate(logs) if abs(value - middle) > limit]


def _deviation(values: Sequence[float]) -> float:
    """The standard deviation of normal values with this median absolute deviation, which outliers do not move."""
    from scipy import stats

    return float(stats.median_abs_deviation(values, scale="normal"))
