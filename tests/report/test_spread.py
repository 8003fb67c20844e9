"""The statistics of a comparison, held against scipy and against definitions by brute force."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from zobench.report import spread
from zobench.report.spread import Scores

stats = pytest.importorskip("scipy.stats", reason="needs scipy, which the statistics are held against")


@pytest.mark.parametrize("freedom", [1, 1.3, 2, 3.7, 10, 100, 5000, 1e6])
def test_students_distribution_is_scipys(freedom: float) -> None:
    for share in (0.2, 0.5, 0.9, 0.95, 0.99):
        assert spread.quantile(freedom, share) == pytest.approx(stats.t.ppf((1 + share) / 2, freedom), rel=1e-4)


def test_a_difference_of_means_is_welchs() -> None:
    one, other = [1.0, 2.0, 3.5], [2.0, 4.0, 4.4, 5.0]
    own, theirs = spread.mean_difference(one, other), stats.ttest_ind(one, other, equal_var=False)
    interval = theirs.confidence_interval()
    assert own.p == pytest.approx(theirs.pvalue, abs=1e-5)
    assert (own.low, own.high) == pytest.approx((interval.low, interval.high), rel=1e-4)
    alone = spread.mean_difference([1.0], [2.0, 3.0])
    assert (alone.value, alone.low, alone.high, alone.p) == (-1.5, -math.inf, math.inf, 1.0)


def test_wilsons_interval_counts_the_examples_that_all_seeds_share_once() -> None:
    scores = Scores(shares=(0.7, 0.8, 0.75), examples=872)
    theirs = stats.binomtest(654, 872).proportion_ci(method="wilson")
    assert scores.interval == pytest.approx((theirs.low, theirs.high), abs=1e-6)


def test_a_difference_of_accuracies_adds_the_seeds_spread_and_the_test_sets() -> None:
    """Where the seeds agree it is the normal interval of two shares, and with endless examples it is Welch's."""
    same = [Scores(shares=(share,) * 3, examples=1000) for share in (0.8, 0.7)]
    told = spread.difference(*same)
    half = stats.norm.ppf(0.975) * math.sqrt((0.8 * 0.2 + 0.7 * 0.3) / 1000)
    assert (told.low, told.high) == pytest.approx((0.1 - half, 0.1 + half), rel=2e-3)
    shares = (0.80, 0.84, 0.79), (0.70, 0.77, 0.71)
    endless = spread.difference(*(Scores(shares=own, examples=10**12) for own in shares))
    theirs = stats.ttest_ind(*shares, equal_var=False).confidence_interval()
    assert (endless.low, endless.high) == pytest.approx((theirs.low, theirs.high), rel=1e-4)
    both = spread.difference(*(Scores(shares=own, examples=1000) for own in shares))
    assert both.p > max(endless.p, spread.difference(*same).p)
    assert both.high - both.low > max(endless.high - endless.low, told.high - told.low)  # more doubt, more width


def test_intervals_of_differences_cover_the_truth() -> None:
    """Of drawn seeds and test examples, at least 95 % with some slack for the draw."""
    rng, covered, trials = random.Random(0), 0, 600
    for _ in range(trials):
        sides = []
        for mean in (0.8, 0.75):
            shares = [min(1.0, max(0.0, rng.gauss(mean, 0.02))) for _ in range(3)]
            sides.append(Scores(shares=tuple(_drawn(rng, share, 400) for share in shares), examples=400))
        told = spread.difference(*sides)
        covered += told.low <= 0.05 <= told.high
    assert covered / trials > 0.95


def _drawn(rng: random.Random, share: float, count: int) -> float:
    return sum(rng.random() < share for _ in range(count)) / count


def test_pooled_seeds_are_the_residual_of_an_analysis_of_variance() -> None:
    """Of two methods, whose pooled t test scipy has."""
    shares = (0.80, 0.84, 0.79), (0.70, 0.77, 0.71)
    scores = [Scores(shares=own, examples=10**12) for own in shares]
    told = spread.difference(*scores, spread.pooled(scores))  # type: ignore[call-arg]
    theirs = stats.ttest_ind(*shares, equal_var=True)
    assert told.p == pytest.approx(theirs.pvalue, abs=1e-5)
    assert (told.low, told.high) == pytest.approx(tuple(theirs.confidence_interval()), rel=1e-4)
    assert spread.pooled([Scores(shares=(0.7,), examples=9)]) == (math.inf, 1.0)


@pytest.mark.parametrize("seed", range(40))
def test_two_methods_share_a_letter_exactly_if_they_do_not_differ(seed: int) -> None:
    rng = random.Random(seed)
    names = [f"m{i}" for i in range(rng.randint(1, 7))]
    differs = {frozenset(pair): rng.random() < 0.5 for pair in itertools.combinations(names, 2)}
    told = spread.letters(names, differs)
    for a, b in itertools.combinations(names, 2):
        assert bool(set(told[a]) & set(told[b])) == (not differs[frozenset((a, b))])
    used = sorted(set("".join(told.values())))
    assert used == [chr(ord("a") + i) for i in range(len(used))]
    assert told["m0"][0] == "a"
    whole = [{name for name in names if letter in told[name]} for letter in used]
    assert not any(a < b for a in whole for b in whole)  # no letter says less than another


@pytest.mark.parametrize("seed", range(10))
def test_agreement_of_the_seeds_is_kendalls(seed: int) -> None:
    rng = random.Random(seed)
    rows = [[float(rng.randint(0, 6)) for _ in range(5)] for _ in range(4)]
    assert spread.ranks(rows[0]) == list(6 - stats.rankdata(rows[0]))
    friedman = stats.friedmanchisquare(*zip(*rows, strict=True)).statistic
    assert spread.agreement(rows) == pytest.approx(friedman / (4 * (5 - 1)))


def test_agreement_of_what_cannot_disagree() -> None:
    assert spread.agreement([[3.0, 2.0, 1.0]] * 3) == 1.0
    assert spread.agreement([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]]) == 0.0
    assert [spread.agreement(rows) for rows in ([[1.0, 2.0]], [[1.0], [2.0]], [[1.0, 1.0]] * 2)] == [None] * 3


def test_adjusted_values_are_holms() -> None:
    pairs = [frozenset((str(i), "x")) for i in range(4)]
    told = spread.adjusted(dict(zip(pairs, [0.01, 0.04, 0.03, 0.005], strict=True)))
    assert [told[pair] for pair in pairs] == pytest.approx([0.03, 0.06, 0.06, 0.02])  # Holm 1979, by hand


def test_the_least_detectable_difference_is_found_as_often_as_it_says() -> None:
    """Of the test set alone, where the normal distribution knows it."""
    scores = [Scores(shares=(0.75,) * 3, examples=1000)] * 4
    known = (stats.norm.ppf(0.975) + stats.norm.ppf(0.8)) * math.sqrt(2 * 0.75 * 0.25 / 1000)
    assert spread.detectable(scores) == pytest.approx(known, rel=2e-3)
    assert spread.detectable([Scores(shares=(0.75,), examples=1000)]) is None
