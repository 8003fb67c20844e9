"""Tests by ranks, with the intervals that belong to them: of two sets of step times (Mann and Whitney), and of paired
ratios (Wilcoxon). No distribution is assumed; scipy and numpy are imported where they are used."""

from __future__ import annotations

import functools
import itertools
import math
import statistics
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from zobench.stats import LEVEL

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

LEAST = 4
"""Step times on each side from which the test can reach the level at all: 2 / C(8, 4) is 2.9 %, 2 / C(6, 3) is 10 %."""
_EXACT = 2500
"""Pairs up to which the exact distribution is counted; beyond, the normal one is as good."""


def rank_test(a: Sequence[float], b: Sequence[float]) -> tuple[float, float]:
    """The p-value of the two-sided Mann-Whitney test, and the share of pairs in which ``b`` is the larger.

    Exact without ties and up to 2500 pairs, as Mann and Whitney (1947) counted it; else by the normal distribution
    with the correction for ties.
    """
    from scipy import stats

    values = [*a, *b]
    if len(set(values)) == 1:
        return 1.0, 0.5
    exact = len(set(values)) == len(values) and len(a) * len(b) <= _EXACT
    test = stats.mannwhitneyu(b, a, alternative="two-sided", method="exact" if exact else "asymptotic")
    return float(test.pvalue), float(test.statistic) / (len(a) * len(b))


def ratio_interval(a: Sequence[float], b: Sequence[float]) -> tuple[float, float] | None:
    """The 95 % interval of b / a that belongs to the rank test: the ratios by which ``a`` could be scaled so that the
    test would not tell it from ``b``. None if the test cannot reach its level with so few.

    If ``b`` is distributed as ``a`` times a factor, it covers that factor with at least 95 %. Its ends are two order
    statistics of all pairs' ratios (Hodges and Lehmann 1963), so it is the same on every run, and exchanging ``a`` and
    ``b`` inverts it. All values must be > 0.
    """
    import numpy as np

    rank = critical(len(a), len(b))
    if rank == 0:
        return None
    logs_a, logs_b = np.sort(np.log(a)), np.sort(np.log(b))
    lowest, highest = float(logs_b[0] - logs_a[-1]), float(logs_b[-1] - logs_a[0])

    def difference(wanted: int) -> float:
        """The ``wanted``-th smallest of all differences of logarithms, found by bisection: pairs can be too many."""
        low, high = lowest, highest
        for _ in range(64):
            middle = (low + high) / 2
            below = int(np.searchsorted(logs_b, logs_a + middle, side="right").sum())
            low, high = (low, middle) if below >= wanted else (middle, high)
        return high

    return math.exp(difference(rank)), math.exp(difference(len(a) * len(b) + 1 - rank))


@functools.cache
def critical(n: int, m: int) -> int:
    """How many of the n * m ordered pairs' values the interval leaves out at each end; 0 if there are too few."""
    if n * m > _EXACT:
        spread = math.sqrt(n * m * (n + m + 1) / 12)
        return max(0, int(n * m / 2 - statistics.NormalDist().inv_cdf(1 - LEVEL / 2) * spread))
    total, tails = math.comb(n + m, n), itertools.accumulate(_orders(n, m))
    return next(rank for rank, tail in enumerate(tails) if 2 * tail > LEVEL * total)


def _orders(n: int, m: int) -> list[int]:
    """In how many of the C(n + m, n) orders the statistic U is 0, 1, ..., n * m: the Gaussian binomial coefficients."""
    counts = [1] + [0] * (n * m)
    for i in range(1, n + 1):
        for u in range(n * m, m + i - 1, -1):
            counts[u] -= counts[u - m - i]
        for u in range(i, n * m + 1):
            counts[u] += counts[u - i]
    return counts


@functools.cache
def signed_rank_critical(n: int) -> int:
    """The rank, from either end, of the mean of two log ratios at which the signed-rank test of ``n`` >= 6 ratios
    reaches the level: how many sums of the ranks of the positive ones, from the least on, have half of it."""
    import numpy as np

    return int(np.searchsorted(np.cumsum(chances_of_sums(range(1, n + 1))), LEVEL / 2, side="right"))


def chances_of_sums(sizes: Iterable[int]) -> NDArray[np.float64]:
    """The probabilities of the sums of ``sizes``, each with a random sign: of -total to total, by twos."""
    import numpy as np

    chances = np.ones(1)
    for size in sizes:
        chances = 0.5 * (np.pad(chances, (size, 0)) + np.pad(chances, (0, size)))
    return chances
