"""FZOO: one-sided differences along many random signs, and a step as large as the spread of their losses is small.

Dang et al., 2025 (arXiv 2506.09034), and its program, DKmiyan/FZOO.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from zobench.engine.base import Entry
from zobench.methods.base import Direction, at_least_two
from zobench.methods.shaping import mean_and_deviation
from zobench.methods.zo_sgd import OneSided
from zobench.runspec.kinds import Definition, MethodKind, Need

if TYPE_CHECKING:
    from zobench.runspec import RunSpec


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


def make(spec: RunSpec) -> FZOO:
    """The method of ``spec``."""
    return FZOO.of(spec, shipped=spec.definition == "as-shipped")


WRITTEN = Definition(
    formula="w -= lr * mean((L(w + eps z) - L(w)) z) / sigma, z random signs; sigma of the losses, over N - 1",
    make="zobench.methods.fzoo:make",
    rule="zobench.engine.directions.shapes:Rademacher.of",
    copies=1,
    piece_copies=4,
)
KIND = MethodKind(
    name="fzoo",
    as_written=WRITTEN,
    as_shipped=replace(
        WRITTEN,
        formula="w -= lr * mean((L(w + eps z) - L(w)) z) / sigma, z random signs; sigma of the losses, over N",
    ),
    pairs=lambda spec, layers: 0,
    singles=lambda spec: spec.queries + 1,
    draws=3,
    grid="fzoo",
    needs=(Need("queries", at_least_two(8), "sigma is of several losses: use queries=8, or 2 and more"),),
)
