"""ES at Scale: evolution strategies along full directions that are not mirrored (Qiu et al., 2025, arXiv 2509.24372,
algorithm 2), and its program, VsonicV/es-fine-tuning-paper."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from zobench.engine.base import Point
from zobench.methods.base import Direction, at_least_two
from zobench.methods.shaping import mean_and_deviation
from zobench.methods.zo_sgd import ZOSGD
from zobench.runspec.kinds import Definition, MethodKind, Need

if TYPE_CHECKING:
    from zobench.data.batch import Batch
    from zobench.engine.interface import SteppingEngine

FLOOR = 1e-8
"""What the program adds to a standard deviation before it divides by it."""


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


KIND = MethodKind(
    name="es",
    known_as=("es-at-scale",),
    as_written=Definition(
        formula="w += lr * mean(Z z), Z the z-scores of the rewards -L(w + eps z) of a population, not mirrored",
        make="zobench.methods.es:ES.of",
    ),
    pairs=lambda spec, layers: 0,
    singles=lambda spec: spec.queries,
    draws=3,
    grid="es",
    needs=(Need("queries", at_least_two(30), "a member's z-score is beside others': use queries=30, or 2 and more"),),
)
