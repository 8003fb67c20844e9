"""ConMeZO: directions in a cone around the momentum of the estimates (Behric et al., 2025, arXiv 2511.02757).

Its program: LejsDeen/ConMeZO.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from zobench.engine.base import Point
from zobench.methods.base import TRAVELLING_STATE, Direction, StepResult
from zobench.methods.zo_sgd import ONE_DIRECTION, ZOSGD
from zobench.runspec.kinds import Definition, MethodKind, Need
from zobench.runspec.options import Option
from zobench.runspec.registry import resolve

if TYPE_CHECKING:
    from zobench.engine.directions.shapes import Cone
    from zobench.runspec import RunSpec

RULE = "zobench.methods.rules:cone"
WARM_BETA, WARM_STEPS, RAMP_STEPS = 0.1, 200, 1800
"""The program's beta at first, for how many steps, and in how many more it rises to the value of the option."""


class ConMeZO(ZOSGD):
    """``W -= lr * g z``, z in a cone around the momentum: :class:`zobench.engine.directions.shapes.Cone` has the
    formulas.

    Before the first applied step there is no momentum, and z is u. The cone makes ``sin(theta) u`` of that, so points
    and entries are scaled by ``1 / sin(theta)`` then.
    """

    fields = ONE_DIRECTION
    remembered = MappingProxyType({"norm": "extra"})  # the length of the momentum

    def __init__(self, *, cone: Cone, **constants: Any) -> None:
        super().__init__(**constants)
        self.cone = cone

    def _alone(self) -> float:
        """The factor of points and entries: 1 once there is a momentum, before that 1 / sin(theta)."""
        return 1.0 if self.extra else 1 / math.sin(self.cone.theta)

    def _points(self, directions: Sequence[Direction]) -> tuple[Point, ...]:
        scale = self.eps * self._alone()
        return tuple(Point(seed, c, part) for seed, part in directions for c in (scale, -scale))

    def _coefficient(self, g: float) -> float:
        return g * self._alone()

    def _finish(self, loss: float, directions: Sequence[Direction], gradients: tuple[float, ...]) -> StepResult:
        if self._applies(gradients):
            self.extra = self.cone.norm_after(self.extra, self._coefficient(gradients[0]), self._step)
        return super()._finish(loss, directions, gradients)


def warmed_up(beta: float) -> Callable[[int], float]:
    """The program's beta by step, counted from 0: 0.1 up to step 200, rising up to step 2000, ``beta`` after that."""

    def at(step: int) -> float:
        if step > WARM_STEPS + RAMP_STEPS:
            return beta
        done: float = (max(step - WARM_STEPS, 0) / RAMP_STEPS) ** 1.8
        return beta - (beta - WARM_BETA) / (1 + 8 * done) ** 3

    return at


def make(spec: RunSpec) -> ConMeZO:
    """The method of ``spec``."""
    return ConMeZO.of(spec, cone=resolve(RULE)(spec))


WRITTEN = Definition(
    formula="z = sqrt(d) cos(theta) m / |m| + sin(theta) u; w -= lr * g z; m = beta m + (1 - beta) g z, float32",
    make="zobench.methods.conmezo:make",
    rule=RULE,
    copies=3,
    piece_copies=6,
)
KIND = MethodKind(
    name="conmezo",
    as_written=WRITTEN,
    as_shipped=replace(
        WRITTEN,
        formula="z = sqrt(d) cos(theta) m / |m| + sin(theta) u; w -= lr * g z; beta warms up from 0.1 in 2000 steps",
        state_width=None,
        copies=4,
        piece_copies=7,
    ),
    states=1,
    needs=(*TRAVELLING_STATE, Need("queries", 1, "its momentum is of one direction; use queries=1")),
    options={"theta": Option(1.35, above=0, highest=math.pi / 2), "beta": Option(0.99, lowest=0, below=1)},
)
