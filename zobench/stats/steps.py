"""What the values of a process or of rounds are, in order of time: warm-up, drift, outliers."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from zobench.stats.intervals import FEW

_FAR = 3.5
"""Robust standard deviations from which a value is an outlier (Iglewicz and Hoaglin 1993)."""
_TREND_LEVEL = 0.01
"""Of the test for drift: a drift that is reported should be there."""
_EXACT = 60
"""Values up to which Kendall's distribution is counted; beyond, the normal one is as good."""


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
