"""One loss at the weights for all directions, and one along each: FZOO's and ZO-Muon's estimate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from zobench.engine.base import BASE, Point
from zobench.methods.base import Direction
from zobench.methods.zo_sgd import ZOSGD

if TYPE_CHECKING:
    from zobench.data.batch import Batch
    from zobench.engine.interface import SteppingEngine


class OneSided(ZOSGD):
    """ZO-SGD with ``g = (L(W + eps z) - L(W)) / eps``: one point more than ``queries``, all in one pass."""

    def _points(self, directions: Sequence[Direction]) -> tuple[Point, ...]:
        return (BASE, *(Point(seed, self.eps, part) for seed, part in directions))

    def _probe(
        self, engine: SteppingEngine, batch: Batch, directions: Sequence[Direction]
    ) -> tuple[float, tuple[float, ...]]:
        """The loss at the weights; the one-sided slope of each direction."""
        base, *losses = engine.probe(batch, self._points(directions))
        return base, tuple((loss - base) / self.eps for loss in losses)
