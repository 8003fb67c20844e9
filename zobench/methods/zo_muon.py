"""ZO-Muon: the estimate in a subspace is orthogonalised before it becomes a step (Lang et al., 2026, arXiv 2602.17155,
"Powering Up Zeroth-Order Training via Subspace Gradient Orthogonalization"). Its program: OPTML-Group/ZO-Muon."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from zobench.engine.base import Point
from zobench.methods.base import LOW_RANK, Direction, at_least_one, at_least_two
from zobench.methods.subspaces import InSubspaces
from zobench.methods.zo_sgd import OneSided
from zobench.runspec.kinds import Definition, MethodKind, Need, Structure

if TYPE_CHECKING:
    from zobench.engine.directions.factors import LowRank
    from zobench.runspec import RunSpec

VECTORS_LR = 1e-7
"""The program's learning rate of biases and norms, whatever that of the matrices is."""
rank = at_least_one("rank", "ZO-Muon's example uses options.rank=64")
interval = at_least_one("interval", "ZO-Muon's example uses options.interval=100")


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


def make(spec: RunSpec) -> ZOMuon:
    """The method of ``spec``."""
    return ZOMuon.of(spec, interval=interval(spec), mismatched=spec.definition == "as-shipped")


def directions(spec: RunSpec) -> LowRank:
    """ZO-Muon's directions, with the rule that orthogonalises. Raises ``ValueError`` if ``vectors`` is negative."""
    from zobench.engine.directions.factor_rules import Orthogonalised
    from zobench.engine.directions.factors import Projected

    share = float(spec.option("vectors"))
    if share < 0:
        raise ValueError(f"`options.vectors >= 0` must hold, but got options.vectors={share}; use options.vectors=1e-5")
    if spec.definition == "as-shipped":
        share = VECTORS_LR / spec.lr if spec.lr else 0.0
    return Projected(rank(spec), Orthogonalised(share))


def _orthogonalising(rows: int, columns: int, rank: int) -> list[tuple[int, int, int]]:
    """Five iterations of X X^T, its square, and their product with X."""
    inside = min(rank, rows)
    return [(inside, columns, inside), (inside, inside, inside), (inside, inside, columns)] * 5


WRITTEN = Definition(
    formula="w -= lr * P msign(mean(g Psi)), z = P Psi in every matrix, g one-sided; orthonormal P drawn every "
    "`interval` steps; w -= vectors * lr * ghat in vectors",
    make="zobench.methods.zo_muon:make",
)
KIND = MethodKind(
    name="zo-muon",
    as_written=WRITTEN,
    as_shipped=replace(
        WRITTEN,
        formula="w -= lr * P msign(mean(g Psi)), z = P Psi in every matrix, g one-sided; orthonormal P drawn every "
        "`interval` steps, in the first of which g is along others; w -= 1e-7 ghat in vectors",
    ),
    structure=Structure(
        make="zobench.methods.zo_muon:directions",
        rank=rank,
        lasts=interval,
        per_direction=lambda rows, columns, rank: min(rank, rows) * columns,
        shared=lambda rows, columns, rank: min(rank, rows) * rows,
        update=_orthogonalising,
        update_kernels=5
        + 5 * 5,  # a norm, a root, what it is divided by, lr, a copy; sums and multiples of an iteration
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
    options={"rank": 64, "interval": 100, "vectors": 1e-5},
)
