"""Directions of low rank in a matrix, z = A F B, where only F is a direction's own; and the rules that make of a step's
estimate, a sum of g F, the change of the weights, for methods other than SGD."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from zobench.engine.base import KEEPS_VECTOR_STATE, NO_STATE_YET

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
"""Coefficients of the quintic iteration whose fixed points are near 1 for all singular values (Muon)."""
ITERATIONS = 5


ALL = slice(None)


@dataclass(frozen=True, eq=False, slots=True)
class Basis:
    """A, ``left`` (rows, a), and B, ``right`` (b, columns), of z = A F B, float32; None stands for the identity.

    F is (a, b), with ``rows`` in the place of a, and ``columns`` in that of b, where A or B is None.
    """

    left: Tensor | None = None
    right: Tensor | None = None

    def rows(self, first: int, count: int) -> Basis:
        """A and B of ``count`` rows of the matrix from ``first`` on."""
        if self.left is None or len(self.left) == count:
            return self
        return Basis(self.left[first : first + count], self.right)

    def outer(self, factor: Tensor, rows: Tensor | slice = ALL) -> Tensor:
        """L (rows, k) of z = L R, of these ``rows``: F, or A where B is None, or A F."""
        if self.left is None:
            return factor[rows]
        return self.left[rows] if self.right is None else self.left[rows] @ factor

    def inner(self, factor: Tensor) -> Tensor:
        """R (k, columns) of z = L R: B, or F where B is None."""
        return factor if self.right is None else self.right

    def whole(self, factor: Tensor) -> Tensor:
        """z."""
        return self.outer(factor) @ self.inner(factor)


def orthonormal(matrix: Tensor) -> Tensor:
    """Q of ``matrix`` = Q R (rows, k), k no larger than rows, with a diagonal of R that is not negative: there is one
    such Q, whatever computes it. Of normal numbers it is uniform over all orthonormal columns (Haar)."""
    q, r = torch.linalg.qr(matrix)
    signs = torch.sign(torch.diagonal(r))
    return torch.mul(q, torch.where(signs == 0, torch.ones_like(signs), signs))


class FactorRule(Protocol):
    """``W -= A change B + lr * weight_decay * W``, where ``change`` is what a step makes of its estimate, the sum of
    g F over its directions z = A F B (:class:`Basis`); of a vector A and B are 1.

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
    """A :class:`FactorRule` with momentum: ``M = beta * M + (1 - beta) * estimate``; the change is ``lr * M`` (LOZO-M).
    In another subspace V of normal numbers M becomes ``M V_old^T V / columns``. ``plain_first``: the first M is the
    estimate itself."""

    beta: float
    plain_first: bool = False
    has_state: bool = True

    def change(self, estimate: Tensor, state: Tensor | None, lr: float, *, is_matrix: bool, begins: bool) -> Tensor:
        assert state is not None
        if begins and self.plain_first:
            state.copy_(estimate)
        elif begins:
            state.copy_(estimate.mul_(1 - self.beta))
        else:
            state.mul_(self.beta).add_(estimate.mul_(1 - self.beta))
        return state * lr

    def carried(self, state: Tensor, old: Basis, new: Basis) -> Tensor:
        assert old.right is not None
        assert new.right is not None
        return state @ (old.right @ new.right.T / old.right.shape[1])


@dataclass(frozen=True, slots=True)
class Orthogonalised:
    """A :class:`FactorRule` without state: the change of a matrix is ``lr`` times :func:`orthogonalised` of the
    estimate (Muon, in a subspace: ZO-Muon), that of any other tensor ``vectors * lr`` times the estimate."""

    vectors: float
    has_state: bool = False

    def change(self, estimate: Tensor, state: Tensor | None, lr: float, *, is_matrix: bool, begins: bool) -> Tensor:
        return orthogonalised(estimate) * lr if is_matrix else estimate * (self.vectors * lr)

    def carried(self, state: Tensor, old: Basis, new: Basis) -> Tensor:
        raise AssertionError("this rule keeps no state that could be carried over")


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
