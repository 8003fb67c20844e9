"""Rules in factors: what a step makes of its estimate along directions of low rank, for methods other than SGD."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from zobench.engine.base import KEEPS_VECTOR_STATE, NO_STATE_YET
from zobench.engine.basis import Basis

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
"""Of the quintic iteration whose fixed points are near 1 for all singular values (Muon)."""
ITERATIONS = 5


class FactorRule(Protocol):
    """``W -= A change B + lr * weight_decay * W``, where ``change`` is what a step makes of its estimate, the sum of
    g F over its directions z = A F B (:class:`~zobench.engine.basis.Basis`); of a vector A and B are 1.

    ``has_state``: whether it keeps a tensor of the estimate's shape for each of the weights', zero before the first
    step. Then an entry's ``extra`` is the seed of the subspace that the state is in, or says that there is none yet
    (:func:`begins`).
    """

    @property
    def has_state(self) -> bool: ...

    def change(self, estimate: Tensor, state: Tensor | None, lr: float, *, is_matrix: bool, begins: bool) -> Tensor:
        """What is subtracted; ``estimate`` may be overwritten, and ``state`` becomes that after the step. ``begins``:
        the state is that of no step."""

    def carried(self, state: Tensor, old: Basis, new: Basis) -> Tensor:
        """A matrix's state in another subspace."""


def begins(extra: float, is_matrix: bool) -> bool:
    """Whether a step with this ``extra`` is the first in the state of a matrix, or of another tensor."""
    return extra == NO_STATE_YET or (is_matrix and extra == KEEPS_VECTOR_STATE)


@dataclass(frozen=True, slots=True)
class FactorMomentum:
    """``M = beta * M + (1 - beta) * estimate``; the change is ``lr * M`` (LOZO-M). In another subspace V of normal
    numbers M becomes ``M V_old^T V / columns``. ``plain_first``: the first M is the estimate itself."""

    beta: float
    plain_first: bool = False
    has_state: bool = True

    def change(self, estimate: Tensor, state: Tensor | None, lr: float, *, is_matrix: bool, begins: bool) -> Tensor:
        """See :class:`FactorRule`."""
        assert state is not None
        if begins and self.plain_first:
            state.copy_(estimate)
        elif begins:
            state.copy_(estimate.mul_(1 - self.beta))
        else:
            state.mul_(self.beta).add_(estimate.mul_(1 - self.beta))
        return state * lr

    def carried(self, state: Tensor, old: Basis, new: Basis) -> Tensor:
        """See :class:`FactorRule`."""
        assert old.right is not None
        assert new.right is not None
        return state @ (old.right @ new.right.T / old.right.shape[1])


@dataclass(frozen=True, slots=True)
class Orthogonalised:
    """The change of a matrix is ``lr`` times :func:`orthogonalised` of the estimate (Muon, in a subspace: ZO-Muon),
    that of any other tensor ``vectors * lr`` times the estimate."""

    vectors: float
    has_state: bool = False

    def change(self, estimate: Tensor, state: Tensor | None, lr: float, *, is_matrix: bool, begins: bool) -> Tensor:
        """See :class:`FactorRule`."""
        return orthogonalised(estimate) * lr if is_matrix else estimate * (self.vectors * lr)

    def carried(self, state: Tensor, old: Basis, new: Basis) -> Tensor:
        """See :class:`FactorRule`: there is no state."""
        return state


def orthogonalised(matrix: Tensor) -> Tensor:
    """The matrix with all singular values near 1 (0.7 to 1.2), by five Newton-Schulz iterations of degree five in
    float32: an approximation of U V^T of its singular value decomposition; zero where it is zero."""
    wide = matrix.shape[0] <= matrix.shape[1]
    x = matrix if wide else matrix.T
    x = x.div(x.norm() + 1e-7)
    a, b, c = NEWTON_SCHULZ
    for _ in range(ITERATIONS):
        gram = x @ x.T
        x = x * a + (gram * b + gram @ gram * c) @ x
    return x if wide else x.T
