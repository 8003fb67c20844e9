"""Fitness shaping: what evolution strategies make of a population's rewards before they weigh directions by them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

Shaping = Callable[[Sequence[float], int, float], list[float]]
"""Of all rewards, those of the members that see the same examples follow each other, so many of them in a ``group``;
and what is added to a variance. A population of groups of one member is one group. Where a reward is not finite, no
fitness is."""


def raw(rewards: Sequence[float], group: int, floor: float) -> list[float]:
    """The rewards themselves."""
    return list(rewards)


def z_scores(rewards: Sequence[float], group: int, floor: float) -> list[float]:
    """Each reward less the mean of its group, over the standard deviation of all: over the square root of variance +
    ``floor``. Equal rewards become zeros."""
    center = sum(rewards) / len(rewards)
    spread = math.sqrt(sum((reward - center) ** 2 for reward in rewards) / len(rewards) + floor)
    shaped = []
    for own in _groups(rewards, group):
        mean = sum(own) / len(own)
        shaped += [(reward - mean) / spread if spread else reward - mean for reward in own]
    return shaped


def centred_ranks(rewards: Sequence[float], group: int, floor: float) -> list[float]:
    """The place of each reward in its group, the least -0.5 and the most 0.5 (Salimans et al., 2017, section 2.1);
    equal rewards share the mean of their places."""
    if not all(map(math.isfinite, rewards)):
        return [math.nan] * len(rewards)
    shaped = []
    for own in _groups(rewards, group):
        for reward in own:
            below, equal = sum(other < reward for other in own), sum(other == reward for other in own)
            shaped.append((below + (equal - 1) / 2) / max(1, len(own) - 1) - 0.5 if len(own) > 1 else 0.0)
    return shaped


def _groups(rewards: Sequence[float], group: int) -> list[Sequence[float]]:
    size = len(rewards) if group == 1 else group
    return [rewards[first : first + size] for first in range(0, len(rewards), size)]


SHAPINGS: Mapping[str, Shaping] = {"none": raw, "z-score": z_scores, "ranks": centred_ranks}
"""By their names in a spec."""
