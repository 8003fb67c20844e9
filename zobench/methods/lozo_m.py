"""LOZO-M: LOZO with momentum in the space of U, which follows V where that changes (Chen et al., 2024)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from zobench.engine.base import MATRICES_ANEW, NOTHING_YET, Entry
from zobench.methods.base import Direction, StepResult
from zobench.methods.lozo import KIND as LOZO_KIND
from zobench.methods.lozo import LOZO, STRUCTURE, rank
from zobench.runspec.kinds import MethodKind

if TYPE_CHECKING:
    from zobench.engine.factors import LowRank
    from zobench.runspec import RunSpec


class LOZOM(LOZO):
    """``M = beta M + (1 - beta) g U``; ``W -= lr * (M V^T + weight_decay * W)``; vectors likewise, along z.

    M is the engine's (:class:`zobench.engine.factor_rules.FactorMomentum`). An entry tells the V that it belongs to, so
    that it can be carried over to the V of its own step.
    """

    def __init__(self, **constants: Any) -> None:
        super().__init__(**constants)
        self._before: int | None = None

    def state(self) -> dict[str, Any]:
        """As of LOZO, with the seed of the subspace that M is in."""
        return {**super().state(), "before": self._before}

    def restore(self, state: Mapping[str, Any]) -> None:
        """The inverse of :meth:`state`."""
        super().restore(state)
        self._before = state["before"]

    def _entries(self, directions: Sequence[Direction], gradients: Sequence[float]) -> Iterator[Entry]:
        known = NOTHING_YET if self._before is None else float(self._before)
        if self.mismatched and self.interval == 1 and self._before is not None:
            known = MATRICES_ANEW  # the program keeps V in the last step of an interval that is not its first
        for entry in super()._entries(directions, gradients):
            yield replace(entry, extra=known)

    def _finish(self, loss: float, directions: Sequence[Direction], gradients: tuple[float, ...]) -> StepResult:
        if any(map(math.isfinite, gradients)):
            self._before = self._subspace
        return super()._finish(loss, directions, gradients)


def directions(spec: RunSpec) -> LowRank:
    """Those of ``spec``, with their momentum. Raises ``ValueError`` if ``beta`` is not in [0, 1)."""
    from zobench.engine.factor_rules import FactorMomentum
    from zobench.engine.factors import LowRank

    beta = float(spec.option("beta"))
    if not 0 <= beta < 1:
        raise ValueError(
            f"`0 <= options.beta < 1` must hold, but got options.beta={beta}; LOZO-M's script uses options.beta=0.9"
        )
    return LowRank(rank(spec), FactorMomentum(beta, plain_first=spec.definition == "as-shipped"))


WRITTEN = replace(
    LOZO_KIND.as_written,
    formula="w -= lr * M V^T / r, M = beta M + (1 - beta) g U in float32, M V_old^T V / columns where V is drawn anew",
    make="zobench.methods.lozo_m:LOZOM.defined",
)
KIND = MethodKind(
    name="lozo-m",
    as_written=WRITTEN,
    as_shipped=replace(
        WRITTEN,
        formula="w -= lr * M V^T, M = beta M + (1 - beta) g U, at first g U, M V_old^T V / columns where V is drawn "
        "anew; in the first step of each V another U",
    ),
    structure=replace(
        STRUCTURE, make="zobench.methods.lozo_m:directions", states=1, update_kernels=5, vector_kernels=5
    ),
    needs=LOZO_KIND.needs,
    options={"rank": 2, "interval": 50, "beta": 0.9},
)
