"""The interval of the median, against published order-statistic tables and against counts of all ways."""

import math
from fractions import Fraction
from statistics import fmean, stdev

import pytest
from scipy import stats

from zobench.stats.intervals import FEW, median_interval, repeats_interval


@pytest.mark.parametrize(("n", "low", "high"), [(6, 1, 6), (10, 2, 9), (20, 6, 15), (30, 10, 21), (100, 40, 61)])
def test_ranks_match_the_published_table_for_the_sign_test(n, low, high):
    assert median_interval([float(i) for i in range(1, n + 1)]) == (low, high)


def test_the_interval_of_few_processes_is_students_of_the_logarithms():
    values = [1.0, 1.1, 1.3]
    logs = [math.log(value) for value in values]
    low, high = stats.t.interval(0.95, 2, loc=fmean(logs), scale=stdev(logs) / math.sqrt(3))
    assert repeats_interval(values) == pytest.approx((math.exp(low), math.exp(high)), rel=1e-6)


@pytest.mark.parametrize("n", [1, 5, 6, 9, 20, 40])
def test_coverage_is_counted_from_all_ways_of_lying_below_the_median(n):
    """The binomial coefficients themselves, which the library's distribution must agree with at every count."""
    tails = [Fraction(sum(math.comb(n, j) for j in range(k + 1)), 2**n) for k in range(n // 2 + 1)]
    rank = sum(2 * tail <= Fraction(5, 100) for tail in tails[: n // 2])
    values = [float(i) for i in range(1, n + 1)]
    assert median_interval(values) == ((rank, n + 1 - rank) if rank else None)
    if n >= FEW:
        above, below = (float(1 - 2 * tails[k]) for k in (rank - 1, rank))
        share = (above - 0.95) / (above - below)
        weight = (n - rank) * share / (rank + (n - 2 * rank) * share)
        assert repeats_interval(values) == pytest.approx((rank + weight, n + 1 - rank - weight), rel=1e-9)
