"""HiZOO: directions and steps scaled by an estimate of the Hessian's diagonal, which a third loss gives.

Zhao et al., ICLR 2025 (arXiv 2402.15173), and its program, Yanjun-Zhao/HiZOO.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from zobench.engine.base import BASE, Point
from zobench.methods.base import TRAVELLING_STATE, Direction
from zobench.methods.zo_sgd import ONE_DIRECTION, ZOSGD, projected_gradient
from zobench.runspec.kinds import Definition, MethodKind, Need
from zobench.runspec.options import Option

if TYPE_CHECKING:
    from zobench.data.batch import Batch
    from zobench.engine.interface import SteppingEngine


class HiZOO(ZOSGD):
    """``W -= lr * g u / sqrt(H)`` from the points W and W +- eps u / sqrt(H), all three in one pass.

    H and its update: :class:`zobench.engine.directions.shapes.DiagonalHessian`. Where the curvature is not finite,
    neither is g.
    """

    fields = ONE_DIRECTION

    def _points(self, directions: Sequence[Direction]) -> tuple[Point, ...]:
        return (BASE, *super()._points(directions))

    def _probe(
        self, engine: SteppingEngine, batch: Batch, directions: Sequence[Direction]
    ) -> tuple[float, tuple[float, ...]]:
        """The loss at the weights, and g; the curvature along z is kept for the step's entry."""
        base, plus, minus = engine.probe(batch, self._points(directions))
        self.extra = abs(plus + minus - 2 * base) / (2 * self.eps**2)
        g = projected_gradient(plus, minus, self.eps, engine.config.device)
        return base, (g if math.isfinite(self.extra) else math.nan,)


WRITTEN = Definition(
    formula="H = (1 - a) H + a |L+ + L- - 2 L| / (2 eps^2) H u^2; w -= lr * g u / sqrt(H); H in float32",
    make="zobench.methods.hizoo:HiZOO.of",
    rule="zobench.methods.rules:diagonal_hessian",
    copies=3,
    piece_copies=5,
)
KIND = MethodKind(
    name="hizoo",
    as_written=WRITTEN,
    as_shipped=replace(
        WRITTEN,
        formula="H = (1 - a) H + a |L+ + L- - 2 L| / (2 eps^2) H u^2; w -= lr * g u / sqrt(H); H in the weights' dtype",
        state_width=None,
        copies=4,
        piece_copies=6,
    ),
    singles=lambda spec: 1,
    states=1,
    needs=(
        *TRAVELLING_STATE,
        Need("queries", 1, "its curvature is of one direction; use queries=1"),
        Need("law", "normal", "its curvature is of the squares of z, which are all 1 for signs; use law=normal"),
    ),
    options={"smooth": Option(1e-8, lowest=0, below=1)},
)
