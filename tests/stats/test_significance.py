"""The statistics of a comparison, held against formulas by hand and against what they say of drawn differences."""

import itertools
import math
import statistics

import numpy as np
import pytest
from scipy import stats

from tests.support.contest import result
from zobench.report.power import ASSUMED, spread_of
from zobench.runspec import RunSpec
from zobench.stats import significance
from zobench.stats.intervals import wilson_interval


def test_the_interval_of_a_share_is_wilsons() -> None:
    for right in (0, 3, 654, 872):
        theirs = stats.binomtest(right, 872).proportion_ci(method="wilson")
        assert wilson_interval(right / 872, 872) == pytest.approx((theirs.low, theirs.high), abs=1e-9)


def test_an_accuracy_exceeds_a_target_by_the_binomial_tail() -> None:
    assert significance.exceeds(0, 7, 0.3) == pytest.approx(1)
    assert significance.exceeds(9, 10, 0.5) == pytest.approx(11 / 1024)
    assert significance.exceeds(872, 872, 0.9) == pytest.approx(0.9**872)
    by_hand = math.fsum(math.comb(60, k) * 0.3**k * 0.7 ** (60 - k) for k in range(25, 61))
    assert significance.exceeds(25, 60, 0.3) == pytest.approx(by_hand, rel=1e-9)


def test_paired_losses_have_students_t() -> None:
    """By hand: mean 0.02, standard deviation 0.01, 3 seeds, and Student's table, 4.303 with 2 degrees of freedom."""
    judged = significance.paired([0.01, 0.02, 0.03])
    half = 4.303 * 0.01 / math.sqrt(3)
    assert (judged.value, judged.low, judged.high) == pytest.approx((0.02, 0.02 - half, 0.02 + half), rel=1e-3)
    t = 0.02 / (0.01 / math.sqrt(3))
    assert judged.p == pytest.approx(1 - t / math.sqrt(2 + t * t))  # the distribution with 2 degrees of freedom
    alone, equal = significance.paired([0.02]), significance.paired([0.02, 0.02])
    assert (alone.low, alone.high, alone.p) == (-math.inf, math.inf, 1.0)
    assert (equal.low, equal.high, equal.p) == (-math.inf, math.inf, 1.0), "without any spread nothing is known"
    assert significance.paired([0.85 - 0.7, 0.15]).p == 1.0


def test_accuracies_have_mcnemars_exact_p() -> None:
    """Of one seed: 9 examples that one method alone gets right, 2 that the other does."""
    differences = np.array([[1.0] * 9 + [-1.0] * 2 + [0.0] * 89])
    by_hand = 2 * sum(math.comb(11, k) for k in range(3)) / 2**11
    assert (significance.joint(differences).value, significance.joint(differences).p) == pytest.approx((0.07, by_hand))
    assert significance.joint(np.zeros((3, 10))).p == 1.0
    some = np.array([3, -1, 2, 0, 5, -4, 1])
    sums = [abs(sum(s * v for s, v in zip(signs, some, strict=True))) for signs in itertools.product((1, -1), repeat=7)]
    assert significance.joint(np.array([some / 1.0])).p == np.mean([total >= abs(some.sum()) for total in sums])
    against = np.array([[1.0] * 30 + [-1.0] * 10] + [[0.0] * 30 + [-1.0] * 10] * 4)  # more examples, fewer answers
    assert (significance.joint(against).value < 0, significance.joint(against).p > 0.05) == (True, True)
    split = np.array([[1.0, -1.0, 1.0], [1.0, 1.0, 1.0], [1.0, 0.0, -1.0]])  # by most seeds: better, a tie, better
    assert significance.joint(split).p == 0.5


def drawn(rng: np.random.Generator, of_seeds: float, of_examples: float, alone: float) -> np.ndarray:
    """Differences of 5 seeds on 300 examples that have these standard deviations, and 0 for their mean."""
    seed_effects, shared = rng.normal(0, of_seeds, (5, 1)), rng.normal(0, of_examples, (1, 300))
    return np.asarray(seed_effects + shared + rng.normal(0, alone, (5, 300)))


@pytest.mark.parametrize(("of_seeds", "of_examples", "alone"), [(0.0, 0.2, 0.3), (0.05, 0.0, 0.3)])
def test_the_joint_interval_is_as_wide_as_the_mean_varies(of_seeds: float, of_examples: float, alone: float) -> None:
    """The mean's variance is the sum of those of 5 seeds, 300 examples and 1500 answers. A bootstrap of seeds and
    examples counts the last three times (Owen 2007) and gives the examples as few degrees of freedom as the seeds."""
    rng, variance = np.random.default_rng(2), of_seeds**2 / 5 + of_examples**2 / 300 + alone**2 / 1500
    intervals = [significance.joint(drawn(rng, of_seeds, of_examples, alone)) for _ in range(400)]
    misses = np.mean([not interval.low <= 0 <= interval.high for interval in intervals])
    assert misses == pytest.approx(0.05, abs=2.5 * math.sqrt(0.05 * 0.95 / 400))
    widths = np.median([(interval.high - interval.low) / 2 for interval in intervals])
    assert widths < stats.t.ppf(0.975, 4) * math.sqrt(variance) * 1.02  # as if all variance had the seeds' few degrees


def test_the_joint_interval_is_that_of_radiologys_readers_and_cases() -> None:
    """By hand, of two seeds and three examples: sums of squares 2/3, 7/3, 1/3 with 1, 2 and 2 degrees of freedom."""
    judged = significance.joint(np.array([[1.0, 0.0, -1.0], [1.0, 1.0, 0.0]]))
    by_seed, by_example, rest = (2 / 3) / 1, (7 / 3) / 2, (1 / 3) / 2
    variance = by_seed + by_example - rest
    half = stats.t.ppf(0.975, (variance / by_seed) ** 2) * math.sqrt(variance / 6)
    assert (judged.value, judged.low, judged.high) == pytest.approx((1 / 3, 1 / 3 - half, 1 / 3 + half))


@pytest.mark.parametrize("value", [-1.0, 0.0, 1.0])
def test_equal_answers_to_all_examples_leave_those_that_were_not_asked(value: float) -> None:
    """A share of examples answers otherwise that Wilson's interval does not exclude: each by 1, or at an end by 2."""
    judged, most = significance.joint(np.full((3, 100), value)), stats.binomtest(0, 100).proportion_ci(method="wilson")
    ends = (max(-1.0, value - most.high * (1 + abs(value))), min(1.0, value + most.high * (1 + abs(value))))
    assert (judged.value, judged.low, judged.high) == pytest.approx((value, *ends))


@pytest.mark.parametrize("of_seeds", [0.0, 0.15])
def test_intervals_and_tests_raise_no_more_false_alarms_than_they_say(of_seeds: float) -> None:
    """Of two equal methods, with seeds, examples, and a chance of their own in each answer. McNemar's p is that of the
    examples alone, so it says what it says where seeds make no difference."""
    rng, trials, alarms, misses, errors = np.random.default_rng(0), 200, 0, 0, 0
    slack = 2 * math.sqrt(0.05 * 0.95 / trials)
    for _ in range(trials):
        easy = rng.normal(1, 1, 200)
        right = [easy + rng.normal(0, of_seeds, (5, 1)) + rng.normal(0, 0.7, (5, 200)) > 0 for _ in range(2)]
        judged = significance.joint(1.0 * right[0] - right[1])
        alarms += judged.p < 0.05
        misses += not judged.low <= 0 <= judged.high
        values = {str(i): significance.paired(list(rng.normal(0, 1, 5))).p for i in range(4)}
        errors += min(significance.holm(values).values()) < 0.05
    assert misses / trials == pytest.approx(0.05, abs=slack)
    assert errors / trials < 0.05 + slack
    assert of_seeds or alarms / trials < 0.05 + slack


def test_adjusted_values_are_holms() -> None:
    judged = significance.holm({"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.005})
    assert [judged[name] for name in "abcd"] == pytest.approx([0.03, 0.06, 0.06, 0.02])  # Holm 1979, by hand


@pytest.mark.parametrize(("seeds", "others"), [(3, 1), (5, 4)])
def test_the_least_detectable_difference_is_found_as_often_as_it_says(seeds: int, others: int) -> None:
    shift = significance.detectable(0.02, seeds, others)
    drawn = np.random.default_rng(0).normal(shift, 0.02, (20_000, seeds))
    rejected = stats.ttest_1samp(drawn, 0, axis=1).pvalue < 0.05 / others
    assert rejected.mean() == pytest.approx(0.8, abs=0.01)
    examples = significance.detectable(0.0, 5, 1, error=0.01)
    assert examples == pytest.approx(0.01 * (1.959964 + 0.841621), rel=1e-4)  # the normal distribution's


def test_the_planned_spread_is_of_runs_that_differ_in_their_seed_alone() -> None:
    spec = RunSpec(model="opt-tiny", task="sst2", warmup=0, steps=4, eval_every=1)
    runs = [
        result(spec.replace(seed=seed, lr=lr), dev=[0.5, 0.6], test=test)
        for (lr, seed), test in zip(itertools.product((1e-3, 1e-2), (0, 1)), (0.7, 0.72, 0.6, 0.66), strict=True)
    ]
    alone = result(spec.replace(lr=0.1), dev=[0.5, 0.6], test=0.1)  # one seed says nothing
    known = spread_of(spec, [*runs, alone])
    by_hand = statistics.stdev([0.72 - 0.66, 0.7 - 0.6])  # of the differences by seed
    assert (known.loss, known.accuracy, known.examples) == pytest.approx((by_hand, by_hand, 1000))
    single = spread_of(spec, runs[:2])
    assert single.loss == pytest.approx(math.sqrt(2) * statistics.stdev([0.7, 0.72]))  # two such, independent
    assert "of 4 stored runs of opt-tiny" in known.source
    assert spread_of(spec.replace(task="rte"), runs) is ASSUMED
