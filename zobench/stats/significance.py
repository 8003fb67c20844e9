"""Whether two methods differ whose runs share seeds and test examples, and whether an accuracy exceeds a target.

Losses: the t test of the differences by seed. Accuracies: McNemar's test, and an analysis of variance by seed and
example. What a protocol can show is the least difference that the t test would find.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from zobench.stats import LEVEL
from zobench.stats.intervals import wilson_interval
from zobench.stats.ranks import chances_of_sums

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

POWER = 0.8
"""With which the least detectable difference would be found."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """A mean difference with its 95 % interval, and the p-value of there being none."""

    value: float
    low: float
    high: float
    p: float


def paired(differences: Sequence[float]) -> Difference:
    """The mean of differences by seed, by Student's t test; of one seed alone, or of seeds without any spread, nothing
    is known."""
    from scipy import stats

    value = statistics.fmean(differences)
    if math.isclose(min(differences), max(differences), rel_tol=1e-9):  # but for rounding
        return Difference(value=value, low=-math.inf, high=math.inf, p=1.0)
    test = stats.ttest_1samp(differences, 0.0)
    low, high = test.confidence_interval(1 - LEVEL)
    return Difference(value=value, low=float(low), high=float(high), p=float(test.pvalue))


def joint(differences: NDArray[np.float64]) -> Difference:
    """The mean of ``differences`` (seeds, examples) of two methods' right answers, each -1, 0 or 1.

    Its interval is that of radiology's studies of several readers and cases (Dorfman, Berbaum and Metz 1992), seeds for
    readers: Student's, with the variance of a two-way analysis of variance in which both are drawn, and with the
    degrees of freedom of Hillis (2007). Seeds that differ less than the chance of single answers makes them differ
    count as far apart as that, with its degrees of freedom. Where all answers differ equally, as many examples may
    differ otherwise as Wilson's interval of none allows. p is exact, of the test that gives each example's sum over
    the seeds either sign: of one seed it is McNemar's.
    """
    from scipy import stats

    seeds, count = differences.shape
    value, p = float(differences.mean()), _sign_flip(differences.sum(axis=0))
    if seeds < 2 or count < 2:
        return Difference(value=value, low=-math.inf, high=math.inf, p=p)
    of_seeds, of_examples = (differences.mean(axis=axis, keepdims=True) for axis in (1, 0))
    by_seed = count * float(of_seeds.var(ddof=1))
    by_example = seeds * float(of_examples.var(ddof=1))
    rest = float(((differences - of_seeds - of_examples + value) ** 2).sum()) / ((seeds - 1) * (count - 1))
    between, freedom = (by_seed, seeds - 1) if by_seed >= rest else (rest, (seeds - 1) * (count - 1))
    variance = between + max(by_example - rest, 0.0)
    if not variance:
        half = (1 + abs(value)) * wilson_interval(0.0, count)[1]
        return Difference(value=value, low=max(value - half, -1.0), high=min(value + half, 1.0), p=p)
    quantile = float(stats.t.ppf(1 - LEVEL / 2, freedom * (variance / between) ** 2 if between else math.inf))
    half = quantile * math.sqrt(variance / (seeds * count))
    return Difference(value=value, low=value - half, high=value + half, p=p)


def _sign_flip(each: NDArray[np.float64]) -> float:
    """The share of the 2^n choices of a sign for each whole number of ``each`` (n,) whose sum is as far from 0."""
    import numpy as np

    sizes = np.abs(each[each != 0]).astype(int)
    chances = chances_of_sums(sizes)
    sums = 2 * np.arange(len(chances)) - sizes.sum()
    return float(min(1.0, chances[np.abs(sums) >= abs(int(each.sum()))].sum()))


def holm(values: Mapping[str, float], count: int = 0) -> dict[str, float]:
    """Holm's p-values (1979): of ``count`` tests together, or of as many as there are, the chance of one false finding
    stays below the level."""
    ordered, highest, adjusted = sorted(values.items(), key=lambda item: item[1]), 0.0, {}
    for rank, (name, p) in enumerate(ordered):
        highest = max(highest, min(1.0, (max(count, len(ordered)) - rank) * p))
        adjusted[name] = highest
    return adjusted


def detectable(deviation: float, seeds: int, comparisons: int, error: float = 0.0) -> float:
    """The least mean difference that ``comparisons`` t tests of so many ``seeds`` together, by Holm's first step, find
    with :data:`POWER`. ``deviation``: of the differences by seed; ``error``: a standard error beside it that seeds do
    not lessen, as of the test examples."""
    from scipy import optimize, stats

    freedom, level = seeds - 1, LEVEL / comparisons
    limit = stats.t.ppf(1 - level / 2, freedom)

    def lacking(shift: float) -> float:
        return float(stats.nct.sf(limit, freedom, shift) - POWER)

    shift = optimize.brentq(lacking, 0.0, 4 * limit + 4)
    normal = stats.norm.ppf(1 - level / 2) + stats.norm.ppf(POWER)
    return math.hypot(shift * deviation / math.sqrt(seeds), float(normal) * error)


def exceeds(right: int, count: int, target: float) -> float:
    """The p-value of ``right`` or more of ``count`` examples if each is right with probability ``target``, in (0, 1):
    the exact one-sided binomial test of "no more accurate than the target"."""
    from scipy import stats

    return float(stats.binomtest(right, count, target, alternative="greater").pvalue)
