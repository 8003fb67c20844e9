"""MEAZO: ZO-SGD whose step is divided by the root of a running mean of g squared (Dbouk et al., arXiv 2605.03869)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from zobench.methods.base import Direction, StepResult
from zobench.methods.zo_sgd import ZOSGD
from zobench.runspec.kinds import Definition, MethodKind
from zobench.runspec.options import Option

if TYPE_CHECKING:
    from zobench.engine.base import Entry


class MEAZO(ZOSGD):
    """``v = beta v + (1 - beta) g^2``; ``W -= lr / (sqrt(v / (1 - beta^t)) + zeta) * ghat``: one number of state.

    g is the mean over the ``queries``, t the number of steps that were applied, this one included. A step with a g that
    is not finite changes neither W nor v.
    """

    spec_options = MappingProxyType({"beta": float, "zeta": float})
    remembered = MappingProxyType({"v": "_v", "count": "_count"})  # v, and the number of steps that are in it

    def __init__(self, *, beta: float = 0.99, zeta: float = 1e-8, **constants: Any) -> None:
        super().__init__(**constants)
        self.beta, self.zeta = beta, zeta
        self._v, self._count = 0.0, 0

    def _next(self, gradients: Sequence[float]) -> float:
        """v after a step."""
        g = sum(gradients) / len(gradients)
        return self.beta * self._v + (1 - self.beta) * g * g

    def _entries(self, directions: Sequence[Direction], gradients: Sequence[float]) -> Iterator[Entry]:
        if self._applies(gradients):
            unbiased = self._next(gradients) / (1 - self.beta ** (self._count + 1))
            size = math.sqrt(unbiased) + self.zeta
            yield from super()._entries(directions, [g / size for g in gradients])

    def _finish(self, loss: float, directions: Sequence[Direction], gradients: tuple[float, ...]) -> StepResult:
        if self._applies(gradients):
            self._v, self._count = self._next(gradients), self._count + 1
        return super()._finish(loss, directions, gradients)


KIND = MethodKind(
    name="meazo",
    as_written=Definition(
        formula="v = beta v + (1 - beta) g^2, one number; w -= lr / (sqrt(v / (1 - beta^t)) + zeta) * ghat",
        make="zobench.methods.meazo:MEAZO.of",
    ),
    options={"beta": Option(0.99, lowest=0, below=1), "zeta": Option(1e-8, above=0)},
    grid="meazo",
)
