"""ZO-SGD-Cons: a step is taken only where it lowers the loss of its own batch (ZO-Bench, appendix A)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from zobench.engine.base import Entry, PassRecord, Point
from zobench.methods.base import StepResult, Taken
from zobench.methods.zo_sgd import ONE_DIRECTION, ZOSGD
from zobench.runspec.kinds import Definition, MethodKind, Need, UpdateSize

if TYPE_CHECKING:
    from zobench.data.batch import Batch
    from zobench.engine.interface import SteppingEngine


class ZOSGDCons(ZOSGD):
    """ZO-SGD-Cons: the best of x, x - lr ghat and x + lr ghat by their loss on the same batch (ZO-Bench, appendix A).

    One direction. The three candidates share a second pass over the model; at a tie x stays. The candidates are without
    weight decay, which goes with the one that is taken; x itself stays as it is.
    """

    fields = ONE_DIRECTION

    def step(self, engine: SteppingEngine, batch: Batch) -> StepResult:
        """One step on ``batch``, which may leave the weights as they are; ``lr`` may be changed between steps."""
        directions = self._directions(engine)
        loss, gradients = self._probe(engine, batch, directions)
        if math.isfinite(gradients[0]):
            engine.commit(self._best(engine, batch, directions[0][0], gradients[0]))
        return self._finish(loss, directions, gradients)

    def _best(self, engine: SteppingEngine, batch: Batch, seed: int, g: float) -> list[Entry]:
        """The entry of the best candidate; none where that is x. A loss that is not finite is the worst."""
        candidates = _candidates(g)
        losses = engine.probe(batch, self._at(seed, candidates))
        worst_last = [loss if math.isfinite(loss) else math.inf for loss in losses]
        best = candidates[worst_last.index(min(worst_last))]
        return [self._entry(seed, best, self.weight_decay)] if best else []

    def _at(self, seed: int, candidates: Sequence[float]) -> tuple[Point, ...]:
        return tuple(Point(seed, -self.lr * candidate) for candidate in candidates)

    def _moments(self, taken: Taken) -> list[PassRecord]:
        (seed, _), g = taken.directions[0], taken.gradients[0]
        first = PassRecord(points=self._points(taken.directions))
        second = PassRecord(points=self._at(seed, _candidates(g)), entries=taken.entries) if math.isfinite(g) else None
        return [first] if second is None else [first, second]


def _candidates(g: float) -> tuple[float, ...]:
    """What ghat may be multiplied by: x itself comes first, so that it stays at a tie."""
    return 0.0, g, -g


KIND = MethodKind(
    name="zo-sgd-cons",
    as_written=Definition(
        formula="the best of w, w - lr * ghat and w + lr * ghat by the batch's loss",
        make="zobench.methods.zo_sgd_cons:ZOSGDCons.of",
        update=UpdateSize.SCALED,
    ),
    candidates=3,
    draws=7,
    counter_draws=2,
    uploads=2,
    needs=(Need("queries", 1, "it has one direction, or none; use queries=1"),),
)
