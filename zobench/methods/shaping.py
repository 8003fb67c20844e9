"""Fitness shaping: what evolution strategies make of a population's rewards before they weigh directions by them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

Shaping = Callable[[Sequence[float], int, float], list[float]]
"""A function of all rewards, in which members that see the same examples follow each other, so many in a ``group``;
and what is added to a variance. A population of groups of one member is one group. Where a reward is not finite, no
fitness is."""


def mean_and_deviation(values: Sequence[float], floor: float = 0.0, lost: int = 0) -> tuple[float, float]:
    """The mean of ``values`` and their standard deviation: the root of the variance, which has N - ``lost`` in its
    denominator, plus ``floor``."""
    mean = sum(values) / len(values)
    return mean, math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - lost) + floor)


def raw(rewards: Sequence[float], group: int, floor: float) -> list[float]:
    """The rewards themselves."""
    return list(rewards) if all(map(math.isfinite, rewards)) else [math.nan] * len(rewards)


def z_scores(rewards: Sequence[float], group: int, floor: float) -> list[float]:
    """Each reward less the mean of its group, over the standard deviation of all: over the square root of variance +
    ``floor``. Equal rewards become zeros."""
    _, spread = mean_and_deviation(rewards, floor)
    shaped = []
    for members in _groups(rewards, group):
        mean = sum(members) / len(members)
        shaped += [(reward - mean) / spread if spread else reward - mean for reward in members]
    return shaped


def centred_ranks(rewards: Sequence[float], group: int, floor: float) -> list[float]:
    """The place of each reward in its group, the least -0.5 and the most 0.5 (Salimans et al., 2017, section 2.1);
    equal rewards share the mean of their places."""
    if not all(map(math.isfinite, rewards)):
        return [math.nan] * len(rewards)
    shaped = []
    for members in _groups(rewards, group):
        for reward in members:
            below, equal = sum(other < reward for other in members), sum(other == reward for other in members)
            shaped.append((below + (equal - 1) / 2) / max(1, len(members) - 1) - 0.5 if len(members) > 1 else 0.0)
    return shaped


def _groups(rewards: Sequence[float], group: int) -> list[Sequence[float]]:
    size = len(rewards) if group == 1 else group
    return [rewards[first : first + size] for first in range(0, len(rewards), size)]


SHAPINGS: Mapping[str, Shaping] = {"none": raw, "z-score": z_scores, "ranks": centred_ranks}
"""By their names in a spec."""
