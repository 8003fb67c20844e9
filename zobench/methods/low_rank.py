"""Methods along directions of low rank in a subspace that stays for some steps: LOZO, LOZO-M, SubZero and ZO-Muon.

LOZO's directions are U V^T whose V stays (Chen et al., 2024, "Enhancing Zeroth-order Fine-tuning for Language Models
with Low-rank Structures"); LOZO-M has momentum in the space of U, which follows V where that changes. SubZero's are
U Z V^T, Z random, of orthonormal U and V that stay (Yu et al., 2024, arXiv 2410.08989, "Zeroth-Order Fine-Tuning of
LLMs in Random Subspaces"; its program: zimingyy/SubZero). ZO-Muon's estimate in a subspace is orthogonalised before it
becomes a step (Lang et al., 2026, arXiv 2602.17155, "Powering Up Zeroth-Order Training via Subspace Gradient
Orthogonalization"; its program: OPTML-Group/ZO-Muon).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from zobench.engine.base import KEEPS_VECTOR_STATE, NO_STATE_YET, Entry, PassRecord, Point
from zobench.methods.base import LOW_RANK, Direction, StepResult, Taken, at_least_two, rank
from zobench.methods.zo_sgd import ZOSGD, OneSided
from zobench.runspec.kinds import Definition, MethodKind, Need, SpecFields, Structure
from zobench.runspec.options import Option

if TYPE_CHECKING:
    from zobench.engine.directions.factors import LowRank
    from zobench.engine.interface import SteppingEngine
    from zobench.runspec import RunSpec

REDRAWN = 10**9
"""Added to a direction's seed for another direction of LOZO; seeds that are drawn are below it."""
VECTORS_LR = 1e-7
"""The learning rate of biases and norms in ZO-Muon's program, whatever that of the matrices is."""


def interval(spec: SpecFields) -> int:
    """The option ``interval``: the steps that share a subspace."""
    return int(spec.option("interval"))


class InSubspaces(ZOSGD):
    """ZO-SGD whose directions share a subspace for ``interval`` steps; then it is drawn anew.

    The subspace's seed is that of the first direction in it.
    """

    spec_options = MappingProxyType({"interval": int})
    remembered: ClassVar[Mapping[str, str]] = MappingProxyType({"subspace": "_subspace"})

    def __init__(self, *, interval: int, **constants: Any) -> None:
        super().__init__(**constants)
        self.interval = interval
        self._subspace: int | None = None

    def retrace(self, engine: SteppingEngine, taken: Taken) -> list[PassRecord]:
        self._enter(taken.directions)
        return super().retrace(engine, taken)

    def _directions(self, engine: SteppingEngine) -> list[Direction]:
        directions = super()._directions(engine)
        self._enter(directions)
        return directions

    def _enter(self, directions: Sequence[Direction]) -> None:
        """Draws the subspace anew where an interval begins."""
        if self._begins:
            self._subspace = directions[0][0]

    @property
    def _begins(self) -> bool:
        return self._step % self.interval == 0

    def _points(self, directions: Sequence[Direction]) -> tuple[Point, ...]:
        points = super()._points(directions)
        return tuple(point if point.seed is None else replace(point, subspace=self._subspace) for point in points)

    def _entry(self, seed: int, g: float, weight_decay: float, part: int | None = None) -> Entry:
        return replace(super()._entry(seed, g, weight_decay, part), subspace=self._subspace)


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
        return cls.of(spec, share=share, mismatched=shipped)

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


class ZOMuon(InSubspaces, OneSided):
    """``W -= lr * P msign(mean of g_i Psi_i)`` from the points W and W + eps P Psi_i: N + 1 in one pass, N the
    ``queries``. P is the subspace's, with orthonormal columns (:class:`zobench.engine.directions.factors.Projected`);
    msign sets all singular values to about 1 (:func:`zobench.engine.directions.factor_rules.orthogonalised`).

    ``mismatched``: in the first step of an interval each direction is measured along a P of its own, and the update
    goes along the last one's, as in the published program (docs/design/METHODS.md, "ZO-Muon").
    """

    def __init__(self, *, mismatched: bool = False, **constants: Any) -> None:
        super().__init__(**constants)
        self.mismatched = mismatched

    def _enter(self, directions: Sequence[Direction]) -> None:
        super()._enter(directions[-1:] if self.mismatched else directions)

    def _points(self, directions: Sequence[Direction]) -> tuple[Point, ...]:
        points = super()._points(directions)
        separate = self.mismatched and self._begins
        return tuple(replace(point, subspace=point.seed) for point in points) if separate else points


def zo_muon(spec: RunSpec) -> ZOMuon:
    """ZO-Muon of ``spec``."""
    return ZOMuon.of(spec, mismatched=spec.definition == "as-shipped")


def lozo_directions(spec: RunSpec) -> LowRank:
    """LOZO's directions."""
    from zobench.engine.directions.factors import LowRank

    return LowRank(rank(spec))


def lozo_m_directions(spec: RunSpec) -> LowRank:
    """LOZO-M's directions."""
    from zobench.engine.directions.factor_rules import FactorMomentum

    beta, is_shipped = float(spec.option("beta")), spec.definition == "as-shipped"
    return replace(lozo_directions(spec), rule=FactorMomentum(beta, plain_first=is_shipped))


def moved_along(spec: SpecFields, step: int, seed: int) -> int:
    """The seed of the update of step ``step``, from 0 on, whose loss was measured along ``seed``."""
    redraws = spec.definition == "as-shipped" and step % interval(spec) == 0
    return seed + REDRAWN if redraws else seed


def subzero_directions(spec: RunSpec) -> LowRank:
    """SubZero's directions; its program's are as long as normal numbers."""
    from zobench.engine.directions.factors import Core

    return Core(rank(spec), scaled=spec.definition == "as-shipped")


def zo_muon_directions(spec: RunSpec) -> LowRank:
    """ZO-Muon's directions, with the rule that orthogonalises."""
    from zobench.engine.directions.factor_rules import Orthogonalised
    from zobench.engine.directions.factors import Projected

    share = float(spec.option("vectors"))
    if spec.definition == "as-shipped":
        share = VECTORS_LR / spec.lr if spec.lr else 0.0
    return Projected(rank(spec), Orthogonalised(share))


def _orthogonalising(rows: int, columns: int, rank: int) -> list[tuple[int, int, int]]:
    """Five iterations of X X^T, its square, and their product with X."""
    inside = min(rank, rows)
    return [(inside, columns, inside), (inside, inside, inside), (inside, inside, columns)] * 5


_LOZO_OPTIONS = {"rank": Option(2, lowest=1), "interval": Option(50, lowest=1)}
_LOZO_STRUCTURE = Structure(make="zobench.methods.low_rank:lozo_directions", rank=rank, lasts=interval)
_LOZO = Definition(
    formula="w -= lr * ghat / r, z = U V^T of rank r in every matrix, V drawn every `interval` steps",
    make="zobench.methods.low_rank:LOZO.defined",
)
LOZO_KIND = MethodKind(
    name="lozo",
    as_written=_LOZO,
    as_shipped=replace(
        _LOZO,
        formula="w -= lr * ghat, z = U V^T of rank r in every matrix, V drawn every `interval` steps, in the first of "
        "which the update has another U",
    ),
    structure=_LOZO_STRUCTURE,
    moved_along=moved_along,
    needs=LOW_RANK,
    options=_LOZO_OPTIONS,
)
LOZO_M_KIND = MethodKind(
    name="lozo-m",
    as_written=replace(
        _LOZO,
        formula="w -= lr * M V^T / r, M = beta M + (1 - beta) g U in float32, M V_old^T V / columns where V is drawn "
        "anew",
        make="zobench.methods.low_rank:LOZOM.defined",
    ),
    as_shipped=replace(
        _LOZO,
        formula="w -= lr * M V^T, M = beta M + (1 - beta) g U, at first g U, M V_old^T V / columns where V is drawn "
        "anew; in the first step of each V another U",
        make="zobench.methods.low_rank:LOZOM.defined",
    ),
    structure=replace(
        _LOZO_STRUCTURE, make="zobench.methods.low_rank:lozo_m_directions", states=1, update_kernels=5, vector_kernels=5
    ),
    moved_along=moved_along,
    needs=LOW_RANK,
    options={**_LOZO_OPTIONS, "beta": Option(0.9, lowest=0, below=1)},
)
_SUBZERO = Definition(
    formula="w -= lr * ghat, z = U Z V^T in every matrix, Z r x r; orthonormal U and V drawn every `interval` steps",
    make="zobench.methods.low_rank:InSubspaces.of",
)
SUBZERO_KIND = MethodKind(
    name="subzero",
    as_written=_SUBZERO,
    as_shipped=replace(
        _SUBZERO,
        formula="w -= lr * ghat, z = sqrt(rows columns) / r U Z V^T in every matrix, Z r x r; orthonormal U and V "
        "drawn every `interval` steps",
    ),
    structure=Structure(
        make="zobench.methods.low_rank:subzero_directions",
        rank=rank,
        lasts=interval,
        per_direction=lambda rows, columns, rank: min(rank, rows) * min(rank, columns),
        shared=lambda rows, columns, rank: rank * (rows + columns),
        has_core=True,
        orthonormal=2,
    ),
    needs=LOW_RANK,
    options={"rank": Option(24, lowest=1), "interval": Option(1000, lowest=1)},
)
_ZO_MUON = Definition(
    formula="w -= lr * P msign(mean(g Psi)), z = P Psi in every matrix, g one-sided; orthonormal P drawn every "
    "`interval` steps; w -= vectors * lr * ghat in vectors",
    make="zobench.methods.low_rank:zo_muon",
)
ZO_MUON_KIND = MethodKind(
    name="zo-muon",
    as_written=_ZO_MUON,
    as_shipped=replace(
        _ZO_MUON,
        formula="w -= lr * P msign(mean(g Psi)), z = P Psi in every matrix, g one-sided; orthonormal P drawn every "
        "`interval` steps, in the first of which g is along others; w -= 1e-7 ghat in vectors",
    ),
    structure=Structure(
        make="zobench.methods.low_rank:zo_muon_directions",
        rank=rank,
        lasts=interval,
        per_direction=lambda rows, columns, rank: min(rank, rows) * columns,
        shared=lambda rows, columns, rank: min(rank, rows) * rows,
        update=_orthogonalising,
        update_kernels=30,  # a norm, a root, what it is divided by, lr, a copy; five in each of five iterations
        vector_kernels=2,
        shares_inner=False,
        orthonormal=1,
    ),
    pairs=lambda spec, layers: 0,
    singles=lambda spec: spec.queries + 1,
    grid="zo-muon",
    needs=(
        *LOW_RANK,
        Need("queries", at_least_two(4), "its estimate is of several directions: use queries=4, or 2 and more"),
    ),
    options={
        "rank": Option(64, lowest=1),
        "interval": Option(100, lowest=1),
        "vectors": Option(1e-5, lowest=0),
    },
)
