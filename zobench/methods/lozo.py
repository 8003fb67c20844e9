"""LOZO: ZO-SGD along directions U V^T whose V stays for a while (Chen et al., 2024, "Enhancing Zeroth-order Fine-tuning
for Language Models with Low-rank Structures"); and LOZO-M, with momentum in the space of U, which follows V where that
changes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from zobench.engine.base import KEEPS_VECTOR_STATE, NO_STATE_YET, Entry
from zobench.methods.base import LOW_RANK, Direction, StepResult, at_least_one
from zobench.methods.subspaces import InSubspaces
from zobench.runspec.kinds import Definition, MethodKind, SpecFields, Structure

if TYPE_CHECKING:
    from zobench.engine.directions.factors import LowRank
    from zobench.runspec import RunSpec

REDRAWN = 10**9
"""Added to a direction's seed for another direction; seeds that are drawn are below it."""
rank = at_least_one("rank", "LOZO uses options.rank=2")
interval = at_least_one("interval", "LOZO uses options.interval=50")


class LOZO(InSubspaces):
    """ZO-SGD whose directions share V, in every matrix, for ``interval`` steps; then V is drawn anew.

    ``share``: what an update is multiplied by, 1 / rank as the paper writes it. ``mismatched``: in the first step of an
    interval the update goes along another direction than the loss was measured along, as in the published program
    (docs/design/METHODS.md, "LOZO").
    """

    def __init__(self, *, interval: int = 50, share: float = 1.0, mismatched: bool = False, **constants: Any) -> None:
        super().__init__(interval=interval, **constants)
        self.share, self.mismatched = share, mismatched

    @classmethod
    def defined(cls, spec: RunSpec) -> LOZO:
        """The method of ``spec``, in the definition that it asks for."""
        shipped = spec.definition == "as-shipped"
        share = 1.0 if shipped else 1.0 / rank(spec)
        return cls.of(spec, interval=interval(spec), share=share, mismatched=shipped)

    def _coefficient(self, g: float) -> float:
        return g * self.share

    def _entry(self, seed: int, g: float, weight_decay: float, part: int | None = None) -> Entry:
        return super()._entry(seed + REDRAWN if self.mismatched and self._begins else seed, g, weight_decay, part)


class LOZOM(LOZO):
    """``M = beta M + (1 - beta) g U``; ``W -= lr * (M V^T + weight_decay * W)``; vectors likewise, along z.

    The engine keeps M (:class:`zobench.engine.directions.factor_rules.FactorMomentum`). An entry's ``extra`` is the
    seed of the V that M belongs to, so that the engine can carry M over to the V of the entry's own step.
    """

    remembered = MappingProxyType({**LOZO.remembered, "before": "_momentum_subspace"})
    _momentum_subspace: int | None = None
    """The seed of the subspace that M is in."""

    def _entries(self, directions: Sequence[Direction], gradients: Sequence[float]) -> Iterator[Entry]:
        extra = NO_STATE_YET if self._momentum_subspace is None else float(self._momentum_subspace)
        if self.mismatched and self.interval == 1 and self._momentum_subspace is not None:
            extra = KEEPS_VECTOR_STATE  # the program keeps V in the last step of an interval that is not its first
        for entry in super()._entries(directions, gradients):
            yield replace(entry, extra=extra)

    def _finish(self, loss: float, directions: Sequence[Direction], gradients: tuple[float, ...]) -> StepResult:
        if any(map(math.isfinite, gradients)):
            self._momentum_subspace = self._subspace
        return super()._finish(loss, directions, gradients)


def directions(spec: RunSpec) -> LowRank:
    """LOZO's directions."""
    from zobench.engine.directions.factors import LowRank

    return LowRank(rank(spec))


def directions_with_momentum(spec: RunSpec) -> LowRank:
    """LOZO-M's directions. Raises ``ValueError`` if ``beta`` is not in [0, 1)."""
    from zobench.engine.directions.factor_rules import FactorMomentum
    from zobench.engine.directions.factors import LowRank

    beta = float(spec.option("beta"))
    if not 0 <= beta < 1:
        raise ValueError(
            f"`0 <= options.beta < 1` must hold, but got options.beta={beta}; LOZO-M's script uses options.beta=0.9"
        )
    return LowRank(rank(spec), FactorMomentum(beta, plain_first=spec.definition == "as-shipped"))


def moved_along(spec: SpecFields, step: int, seed: int) -> int:
    """The seed of the update of step ``step``, from 0 on, whose loss was measured along ``seed``."""
    redraws = spec.definition == "as-shipped" and step % interval(spec) == 0
    return seed + REDRAWN if redraws else seed


STRUCTURE = Structure(make="zobench.methods.lozo:directions", rank=rank, lasts=interval)
WRITTEN = Definition(
    formula="w -= lr * ghat / r, z = U V^T of rank r in every matrix, V drawn every `interval` steps",
    make="zobench.methods.lozo:LOZO.defined",
)
KIND = MethodKind(
    name="lozo",
    as_written=WRITTEN,
    as_shipped=replace(
        WRITTEN,
        formula="w -= lr * ghat, z = U V^T of rank r in every matrix, V drawn every `interval` steps, in the first of "
        "which the update has another U",
    ),
    structure=STRUCTURE,
    moved_along=moved_along,
    needs=LOW_RANK,
    options={"rank": 2, "interval": 50},
)
MOMENTUM = MethodKind(
    name="lozo-m",
    as_written=replace(
        WRITTEN,
        formula="w -= lr * M V^T / r, M = beta M + (1 - beta) g U in float32, M V_old^T V / columns where V is drawn "
        "anew",
        make="zobench.methods.lozo:LOZOM.defined",
    ),
    as_shipped=replace(
        WRITTEN,
        formula="w -= lr * M V^T, M = beta M + (1 - beta) g U, at first g U, M V_old^T V / columns where V is drawn "
        "anew; in the first step of each V another U",
        make="zobench.methods.lozo:LOZOM.defined",
    ),
    structure=replace(
        STRUCTURE, make="zobench.methods.lozo:directions_with_momentum", states=1, update_kernels=5, vector_kernels=5
    ),
    moved_along=moved_along,
    needs=LOW_RANK,
    options={"rank": 2, "interval": 50, "beta": 0.9},
)
