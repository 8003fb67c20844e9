"""What a comparison of methods can show: intervals from seeds and test examples together, groups of ties, Kendall's W.

NumPy alone computes it; the tests hold it against scipy.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from zobench.measure.statistics import LEVEL as LEVEL
from zobench.measure.statistics import quantile as quantile
from zobench.result.quantity import Interval
from zobench.store.measured import binomial_interval

POWER = 0.8
"""With which the least detectable difference would be found."""
_KNOWN = math.inf
"""Degrees of freedom of a variance that is taken to be known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Scores:
    """The share of right answers of each seed, on the same ``examples`` of the test set."""

    shares: tuple[float, ...]
    examples: int

    @property
    def mean(self) -> float:
        """Over the seeds."""
        return statistics.fmean(self.shares)

    @property
    def interval(self) -> Interval:
        """The test set's 95 % of the mean, by Wilson's score. All seeds answer the same examples, which count once."""
        return binomial_interval(self.mean, self.examples)

    @property
    def of_seeds(self) -> float:
        """The variance of the mean that comes from the seeds."""
        return statistics.variance(self.shares) / len(self.shares) if len(self.shares) > 1 else math.inf

    @property
    def of_examples(self) -> float:
        """The variance of the mean that comes from the test set: binomial."""
        return self.mean * (1 - self.mean) / self.examples


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """A difference of two means with its 95 % interval, and the p-value of there being none."""

    value: float
    low: float
    high: float
    p: float


def difference(one: Scores, other: Scores, pool: tuple[float, float] | None = None) -> Difference:
    """``one`` less ``other``: the seeds' error by Welch, the test sets' by the normal distribution, their margins added
    as independent errors are, so that either makes the interval wider (MOVER: Zou and Donner 2008).

    Both see the same examples, which only makes the truth sharper. ``pool``: the seeds' variance that all methods are
    taken to share (:func:`pooled`), in place of the two's own.
    """
    seeds = _welch(one.shares, other.shares)
    if pool is not None:
        seeds = pool[0] * (1 / len(one.shares) + 1 / len(other.shares)), pool[1]
    return _told(one.mean - other.mean, [seeds, (one.of_examples + other.of_examples, _KNOWN)])


def pooled(scores: Sequence[Scores]) -> tuple[float, float]:
    """The variance between seeds within methods, and its degrees of freedom: the residual of an analysis of variance.
    With three seeds two methods alone know theirs too badly for many comparisons at once."""
    freedom = sum(len(one.shares) - 1 for one in scores)
    if not freedom:
        return math.inf, 1.0
    known = [one.shares for one in scores if len(one.shares) > 1]
    return math.fsum(statistics.variance(own) * (len(own) - 1) for own in known) / freedom, float(freedom)


def mean_difference(one: Sequence[float], other: Sequence[float]) -> Difference:
    """The difference of two means by Welch's test; of logarithms it is that of a ratio."""
    return _told(statistics.fmean(one) - statistics.fmean(other), [_welch(one, other)])


def _welch(one: Sequence[float], other: Sequence[float]) -> tuple[float, float]:
    """The variance of the difference of two means, and its degrees of freedom (Satterthwaite); of one value alone
    nothing is known."""
    if min(len(one), len(other)) < 2:
        return math.inf, 1.0
    parts = [(statistics.variance(side) / len(side), len(side) - 1) for side in (one, other)]
    total = math.fsum(variance for variance, _ in parts)
    spare = math.fsum(variance**2 / own for variance, own in parts)
    return total, total**2 / spare if spare else 1.0


def _told(value: float, parts: Sequence[tuple[float, float]]) -> Difference:
    """``parts``: (variance, degrees of freedom) of independent errors."""
    if math.isinf(sum(variance for variance, _ in parts)):
        return Difference(value=value, low=-math.inf, high=math.inf, p=1.0)
    half, low, high = _margin(parts, LEVEL), 0.0, 1.0
    for _ in range(40):  # the level at which the interval just reaches 0
        middle = (low + high) / 2
        low, high = (middle, high) if _margin(parts, middle) >= abs(value) else (low, middle)
    return Difference(value=value, low=value - half, high=value + half, p=high)


def _margin(parts: Sequence[tuple[float, float]], level: float) -> float:
    return math.sqrt(math.fsum(variance * quantile(freedom, 1 - level) ** 2 for variance, freedom in parts))


def adjusted(values: Mapping[frozenset[str], float]) -> dict[frozenset[str], float]:
    """Holm's p-values: of so many tests together, the chance of one false finding stays below the level."""
    ordered, highest, found = sorted(values.items(), key=lambda item: item[1]), 0.0, {}
    for place, (pair, p) in enumerate(ordered):
        highest = max(highest, min(1.0, (len(ordered) - place) * p))
        found[pair] = highest
    return found


def letters(names: Sequence[str], differs: Mapping[frozenset[str], bool]) -> dict[str, str]:
    """Letters of which two names share one exactly if they do not differ (insert and absorb, Piepho 2004); ``names``
    best first, whose groups have the first letters."""
    groups = [frozenset(names)]
    for pair in (pair for pair, apart in differs.items() if apart):
        split = [group - {name} for group in groups if pair <= group for name in pair]
        kept = [group for group in groups if not pair <= group] + split
        groups = [group for group in dict.fromkeys(kept) if not any(group < other for other in kept)]
    ordered = sorted(groups, key=lambda group: [place for place, name in enumerate(names) if name in group])
    return {name: "".join(_letter(i) for i, group in enumerate(ordered) if name in group) for name in names}


def _letter(place: int) -> str:
    return chr(ord("a") + place) if place < 26 else f"[{place + 1}]"


def ranks(values: Sequence[float]) -> list[float]:
    """Places from the highest value, 1, on; equal ones share the mean of theirs."""
    return [
        sum(other > value for other in values) + (sum(other == value for other in values) + 1) / 2 for value in values
    ]


def agreement(rows: Sequence[Sequence[float]]) -> float | None:
    """Kendall's W of the orders in which each row puts the same values: 1 if all agree, 0 if they have nothing in
    common; corrected for ties. None for fewer than two rows, fewer than two values, or nothing but ties."""
    if len(rows) < 2 or len(rows[0]) < 2:
        return None
    count, size = len(rows), len(rows[0])
    placed = [ranks(row) for row in rows]
    sums = [math.fsum(column) for column in zip(*placed, strict=True)]
    middle = math.fsum(sums) / size
    spread = math.fsum((one - middle) ** 2 for one in sums)
    tied = sum(row.count(value) ** 3 - row.count(value) for row in placed for value in set(row))
    most = count**2 * (size**3 - size) - count * tied
    return 12 * spread / most if most else None


def detectable(scores: Sequence[Scores]) -> float | None:
    """The least difference between two typical methods of these that one test would find with ``POWER``; None where
    the seeds' spread is not known."""
    known = [one for one in scores if not math.isinf(one.of_seeds)]
    if not known:
        return None
    seeds = statistics.fmean(one.of_seeds for one in known)
    examples = statistics.fmean(one.of_examples for one in known)
    own = 2 * (statistics.fmean(len(one.shares) for one in known) - 1)  # as Welch has it for two of one spread
    parts = ((2 * seeds, own), (2 * examples, _KNOWN))
    wanted = ((quantile(freedom, 1 - LEVEL) + quantile(freedom, 2 * POWER - 1)) ** 2 for _, freedom in parts)
    return math.sqrt(math.fsum(variance * factor for (variance, _), factor in zip(parts, wanted, strict=True)))
