"""Populations: what is made of many members' losses, and two methods of full directions, ES at Scale and FZOO.

ES at Scale: evolution strategies along directions that are not mirrored (Qiu et al., 2025, arXiv 2509.24372, algorithm
2; its program: VsonicV/es-fine-tuning-paper). FZOO: one-sided differences along many random signs, and a step as large
as the spread of their losses is small (Dang et al., 2025, arXiv 2506.09034; DKmiyan/FZOO).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from zobench.engine.base import Entry, Point
from zobench.methods.base import Direction, at_least_two
from zobench.methods.zo_sgd import ZOSGD, OneSided
from zobench.runspec.kinds import Definition, MethodKind, Need

if TYPE_CHECKING:
    from zobench.data.batch import Batch
    from zobench.engine.interface import SteppingEngine
    from zobench.runspec import RunSpec


Shaping = Callable[[Sequence[float], int, float], list[float]]
"""A function of all rewards, in which members that see the same examples follow each other, so many in a ``group``;
and what is added to a variance. A population of groups of one member is one group. Where a reward is not finite, no
fitness is."""


def mean_and_deviation(values: Sequence[float], floor: float = 0.0, lost: int = 0) -> tuple[float, float]:
    """The mean of ``values`` and their standard deviation: the root of the variance, which has N - ``lost`` in its
    denominator, plus ``floor``. Equal values deviate by nothing, whatever their sum is rounded to."""
    mean = values[0] if all(value == values[0] for value in values) else sum(values) / len(values)
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
        mean, _ = mean_and_deviation(members)
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
"""The shapings of rewards, by their names in a spec."""


FLOOR = 1e-8
"""The number that the authors' program adds to a standard deviation before it divides by it."""


class ES(ZOSGD):
    """``W += lr / P * (Z_1 z_1 + ... + Z_P z_P)``: Z_i is the z-score of the reward at W + eps z_i, P the ``queries``.

    The reward is the negative loss, the deviation that of all P rewards; eps, sigma in the paper, is in no denominator,
    because lr, its alpha, holds it. All members of the population share a pass and a batch. A step's g are -Z_i; one
    with a loss that is not finite changes nothing.
    """

    def _points(self, directions: Sequence[Direction]) -> tuple[Point, ...]:
        return tuple(Point(seed, self.eps, part) for seed, part in directions)

    def _probe(
        self, engine: SteppingEngine, batch: Batch, directions: Sequence[Direction]
    ) -> tuple[float, tuple[float, ...]]:
        """The mean loss of the population; how many deviations each member's loss is above it."""
        losses = engine.probe(batch, self._points(directions))
        mean, deviation = mean_and_deviation(losses)
        spread = deviation + FLOOR
        return mean, tuple((loss - mean) / spread if math.isfinite(spread) else math.nan for loss in losses)


ES_KIND = MethodKind(
    name="es",
    known_as=("es-at-scale",),
    as_written=Definition(
        formula="w += lr * mean(Z z), Z the z-scores of the rewards -L(w + eps z) of a population, not mirrored",
        make="zobench.methods.populations:ES.of",
    ),
    pairs=lambda spec, layers: 0,
    singles=lambda spec: spec.queries,
    draws=3,
    grid="es",
    needs=(Need("queries", at_least_two(30), "a member's z-score is beside others': use queries=30, or 2 and more"),),
)


class FZOO(OneSided):
    """``W -= lr * ((L_1 - L_0) z_1 + ... + (L_N - L_0) z_N) / (N sigma)``, z_i of random signs.

    L_0 is the loss at W, L_i that at W + eps z_i, sigma the standard deviation of the L_i: N + 1 points of one pass,
    N the ``queries``. ``shipped``: sigma has N in its denominator, not N - 1. ``lr`` is the program's: the paper's is
    ``eps * lr``. A step's result has the slopes g_i = (L_i - L_0) / eps. A step whose sigma is 0 or not finite changes
    nothing, and is counted as skipped.
    """

    def __init__(self, *, queries: int = 8, shipped: bool = False, **constants: Any) -> None:
        super().__init__(queries=queries, **constants)
        if queries < 2:
            raise ValueError(f"`queries >= 2` must hold, but got queries={queries}; FZOO's program uses queries=8")
        self.shipped = shipped

    def sigma(self, gradients: Sequence[float]) -> float:
        """The standard deviation of the N losses whose slopes are ``gradients``."""
        return self.eps * mean_and_deviation(gradients, lost=not self.shipped)[1]

    def _applies(self, gradients: Sequence[float]) -> bool:
        return 0 < self.sigma(gradients) < math.inf

    def _entries(self, directions: Sequence[Direction], gradients: Sequence[float]) -> Iterator[Entry]:
        if self._applies(gradients):
            scale = self.eps / self.sigma(gradients)
            yield from super()._entries(directions, [g * scale for g in gradients])


def fzoo(spec: RunSpec) -> FZOO:
    """The method of ``spec``."""
    return FZOO.of(spec, shipped=spec.definition == "as-shipped")


_FZOO = Definition(
    formula="w -= lr * mean((L(w + eps z) - L(w)) z) / sigma, z random signs; sigma of the losses, over N - 1",
    make="zobench.methods.populations:fzoo",
    rule="zobench.engine.directions.shapes:Rademacher.of",
    copies=1,
    piece_copies=4,
)
FZOO_KIND = MethodKind(
    name="fzoo",
    as_written=_FZOO,
    as_shipped=replace(
        _FZOO,
        formula="w -= lr * mean((L(w + eps z) - L(w)) z) / sigma, z random signs; sigma of the losses, over N",
    ),
    pairs=lambda spec, layers: 0,
    singles=lambda spec: spec.queries + 1,
    draws=3,
    grid="fzoo",
    needs=(Need("queries", at_least_two(8), "sigma is of several losses: use queries=8, or 2 and more"),),
)
