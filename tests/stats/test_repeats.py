"""Do the intervals keep their word? Step times are drawn as machines make them, from fixed seeds, and it is counted.

A process has a speed of its own, a round may be slow, the machine drifts, one process in twelve is much slower, a step
resembles the one before it, and some steps take half as long again. Counted is how often an interval holds the truth,
with and without the rule that ends the rounds, and how often two equal cells are called different.
"""

import functools
import itertools
import math
import statistics
from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from zobench.stats import intervals
from zobench.stats.intervals import FEW, Ratio, drift, is_known, outliers, ratio_of_pairs, repeats_interval, warm_up

Draw = Callable[[np.random.Generator, int], np.ndarray]
STEADY: Draw = lambda draw, n: 0.01 * draw.standard_normal(n)  # noqa: E731
SKEWED: Draw = lambda draw, n: 0.01 * draw.exponential(size=n) + 0.2 * (draw.random(n) < 1 / 12)  # noqa: E731
PROCESSES = {"steady": STEADY, "skewed, with outliers": SKEWED}


def session(draw: np.random.Generator, rounds: int, offsets: Draw, slowdown: float = 0.0) -> list[tuple[float, float]]:
    """The medians of B and A in each round: 12 steps of a process each, in random order, while the machine drifts by
    5 % and a round is slow or fast by 2 %."""
    offset, common = offsets(draw, 2 * rounds).reshape(rounds, 2), 0.02 * draw.standard_normal(rounds)
    first = draw.random(rounds) < 0.5
    medians = []
    for number in range(rounds):
        pair = []
        for cell in (0, 1):
            steps = np.zeros(12)
            for step, shock in enumerate(0.005 * draw.standard_normal(12)):
                steps[step] = 0.7 * steps[step - 1] + shock
            turn = number + 0.5 * (cell == int(first[number]))
            level = common[number] + offset[number, cell] + 0.05 * turn / rounds + math.log1p(slowdown * (cell == 0))
            times = np.exp(level + steps) * np.where(draw.random(12) < 0.05, 1.5, 1.0)
            pair.append(float(np.median(times)))
        medians.append((pair[0], pair[1]))
    return medians


def stopped(pairs: Sequence[tuple[float, float]], until: float) -> Ratio:
    """The ratio as the rounds of a self-test end: once it is known so well."""
    ratios = (ratio_of_pairs(pairs[:count]) for count in range(1, len(pairs) + 1))
    return next((ratio for ratio in ratios if ratio.is_known(until)), ratio_of_pairs(pairs))


def swept(pairs: Sequence[tuple[float, float]], until: float) -> Ratio:
    """The ratio as the rounds of a sweep end: once the median of each side is known so well."""

    def known(count: int) -> bool:
        sides = [list(side) for side in zip(*pairs[:count], strict=True)]
        return all(is_known(repeats_interval(side), statistics.median(side), count, until) for side in sides)

    return ratio_of_pairs(pairs[: next((count for count in range(1, len(pairs)) if known(count)), len(pairs))])


@pytest.mark.parametrize("offsets", PROCESSES.values(), ids=PROCESSES)
@pytest.mark.parametrize("rounds", [3, 6, 14])
def test_a_ratio_of_equals_is_rarely_called_different(rounds: int, offsets: Draw) -> None:
    draw, count = np.random.default_rng(rounds), 400
    false = sum(ratio_of_pairs(session(draw, rounds, offsets)).differs for _ in range(count))
    assert false <= 0.05 * count + 2 * math.sqrt(0.05 * 0.95 * count)


def test_the_rule_that_ends_the_rounds_costs_little_of_the_coverage_and_finds_a_slowdown_of_a_twentieth() -> None:
    draw, count = np.random.default_rng(8), 300
    equal = [stopped(session(draw, 15, STEADY), 0.03) for _ in range(count)]
    slow = [stopped(session(draw, 15, STEADY, 0.05), 0.03) for _ in range(count)]
    assert sum(outcome.differs for outcome in equal) <= 0.065 * count
    assert sum(outcome.differs and outcome.value > 1 for outcome in slow) >= 0.98 * count
    holds = sum(outcome.interval is not None and outcome.interval[0] <= 1.05 <= outcome.interval[1] for outcome in slow)
    assert holds >= 0.935 * count
    assert FEW < statistics.fmean(outcome.pairs for outcome in slow) < 12


def test_rounds_that_end_by_the_medians_cost_the_ratio_little_of_its_coverage() -> None:
    """What `--until 10%` does on a machine whose rounds differ by 2 % and which becomes 5 % slower meanwhile."""
    draw, count = np.random.default_rng(9), 300
    slow = [swept(session(draw, 20, STEADY, 0.05), 0.1) for _ in range(count)]
    holds = sum(outcome.interval is not None and outcome.interval[0] <= 1.05 <= outcome.interval[1] for outcome in slow)
    assert holds >= 0.935 * count
    assert sum(outcome.pairs < 20 for outcome in slow) > 0.9 * count  # else nothing was tested
    assert min(outcome.pairs for outcome in slow) == FEW


@pytest.mark.parametrize("n", [FEW, 12, 15])
def test_the_ends_are_those_of_the_signed_rank_test(n: int) -> None:
    logs = np.random.default_rng(n).standard_normal(n) / 50
    low, high = ratio_of_pairs([(math.exp(value), 1.0) for value in logs]).interval or (0, 0)
    for end in (low, high):
        inside, outside = math.log(end) * 0.999, math.log(end) * 1.001
        p_values = [stats.wilcoxon(logs - shift, method="exact").pvalue for shift in (inside, outside)]
        assert min(p_values) <= 0.05 < max(p_values)


@given(st.lists(st.tuples(st.floats(0.5, 2), st.floats(0.5, 2)), min_size=1, max_size=12))
def test_exchanging_the_sides_inverts_a_ratio(pairs: list[tuple[float, float]]) -> None:
    there, back = ratio_of_pairs(pairs), ratio_of_pairs([(b, a) for a, b in pairs])
    assert there.value == pytest.approx(1 / back.value)
    if there.interval is None or back.interval is None:
        assert len(pairs) == 1
    else:
        assert there.interval == pytest.approx((1 / back.interval[1], 1 / back.interval[0]))


def test_fewer_than_six_pairs_have_students_interval_and_one_has_none() -> None:
    logs = [0.01, 0.03, -0.01, 0.02]
    low, high = ratio_of_pairs([(math.exp(value), 1.0) for value in logs]).interval or (0, 0)
    assert (math.log(low), math.log(high)) == pytest.approx(
        stats.t.interval(0.95, 3, np.mean(logs), stats.sem(logs)), rel=1e-4
    )
    assert ratio_of_pairs([(2.0, 1.0)]) == Ratio(value=2.0, interval=None, pairs=1)
    assert ratio_of_pairs([(2.0, 1.0)]).width == math.inf
    with pytest.raises(ValueError, match="a ratio needs a pair of values, but got none; measure both in one round"):
        ratio_of_pairs([])


@pytest.mark.parametrize("offsets", PROCESSES.values(), ids=PROCESSES)
@pytest.mark.parametrize("count", [6, 11])
def test_the_interval_of_the_median_holds_it(count: int, offsets: Draw) -> None:
    draw, times, held = np.random.default_rng(count), 1500, 0
    truth = math.exp(float(np.median(offsets(draw, 400_001))))
    for _ in range(times):
        low, high = repeats_interval(list(np.exp(offsets(draw, count)))) or (0, 0)
        held += low <= truth <= high
    assert held >= 0.95 * times - 2.5 * math.sqrt(0.95 * 0.05 * times)


@pytest.mark.parametrize("slow", [0, 1, 3])
def test_the_first_slow_steps_are_warm_up(slow: int) -> None:
    noise = np.random.default_rng(slow).uniform(-0.003, 0.003, 20)
    assert warm_up([1.0 + 0.5 * (n < slow) + noise[n] for n in range(20)]) == slow


def test_a_slow_step_in_the_middle_is_no_warm_up_and_half_of_the_steps_stay() -> None:
    assert warm_up([1.0, 1.0, 5.0, 1.0, 1.0, 1.0, 1.0]) == 0
    assert warm_up([9.0, 9.0, 9.0, 9.0, 9.0, 1.0, 1.0, 1.0]) == 4
    assert warm_up([3.0, 1.0, 1.0, 1.0, 1.0]) == 0  # too few to know


def test_drift_is_found_with_its_size_and_chance_is_not_called_so() -> None:
    draw = np.random.default_rng(2)
    slope = [float(np.exp(0.1 * n / 19 + 0.005 * draw.standard_normal())) for n in range(20)]
    assert drift(slope) == pytest.approx(math.expm1(0.1), abs=0.02)
    assert drift(slope[::-1]) == pytest.approx(math.expm1(-0.1), abs=0.02)
    false = sum(drift(list(np.exp(0.01 * draw.standard_normal(9)))) is not None for _ in range(1000))
    assert false <= 0.01 * 1000 + 2.5 * math.sqrt(0.01 * 1000)
    assert drift([1.0, 2.0, 3.0, 4.0]) is None  # four in order are no evidence
    assert drift([]) is None


@pytest.mark.parametrize("n", [5, 8, 30])
def test_the_test_for_drift_is_kendalls(n: int) -> None:
    """Orders of n values by their inversions are counted by multiplying (1 + x + ... + x^(k - 1)) for k up to n."""
    ways = functools.reduce(np.convolve, (np.ones(k, dtype=object) for k in range(1, n + 1)))
    values = list(np.exp(np.random.default_rng(n).standard_normal(n) + 0.5 * np.arange(n) / n))
    for sample in (values, sorted(values), sorted(values[: n // 2]) + values[n // 2 :]):
        out_of_order = sum(a > b for a, b in itertools.combinations(sample, 2))
        rarer = min(out_of_order, n * (n - 1) // 2 - out_of_order)
        p_value = min(1, 2 * int(sum(ways[: rarer + 1])) / math.factorial(n))
        assert (drift(sample) is not None) == (p_value <= 0.01)


def test_outliers_are_told_and_nothing_else_is() -> None:
    assert outliers([1.0, 1.01, 0.99, 1.3, 1.0, 1.02]) == [3]
    assert outliers([1.0, 1.0, 1.0, 1.01, 1.0]) == []  # less than 2 % away
    assert outliers([1.0, 9.0, 1.0, 1.0]) == []  # too few to know


@pytest.mark.parametrize(("n", "low", "high"), [(6, 1, 6), (10, 2, 9), (20, 6, 15), (30, 10, 21), (100, 40, 61)])
def test_ranks_match_the_published_table_for_the_sign_test(n, low, high):
    assert intervals.median_interval([float(i) for i in range(1, n + 1)]) == (low, high)


def test_the_interval_of_few_processes_is_students_of_the_logarithms():
    values = [1.0, 1.1, 1.3]
    logs = [math.log(value) for value in values]
    low, high = stats.t.interval(0.95, 2, loc=statistics.fmean(logs), scale=statistics.stdev(logs) / math.sqrt(3))
    assert repeats_interval(values) == pytest.approx((math.exp(low), math.exp(high)), rel=1e-6)


@pytest.mark.parametrize("n", [1, 5, 6, 9, 20, 40])
def test_coverage_is_counted_from_all_ways_of_lying_below_the_median(n):
    """The binomial coefficients themselves, which the library's distribution must agree with at every count."""
    tails = [Fraction(sum(math.comb(n, j) for j in range(k + 1)), 2**n) for k in range(n // 2 + 1)]
    rank = sum(2 * tail <= Fraction(5, 100) for tail in tails[: n // 2])
    values = [float(i) for i in range(1, n + 1)]
    assert intervals.median_interval(values) == ((rank, n + 1 - rank) if rank else None)
    if n >= FEW:
        above, below = (float(1 - 2 * tails[k]) for k in (rank - 1, rank))
        share = (above - 0.95) / (above - below)
        weight = (n - rank) * share / (rank + (n - 2 * rank) * share)
        assert repeats_interval(values) == pytest.approx((rank + weight, n + 1 - rank - weight), rel=1e-9)
