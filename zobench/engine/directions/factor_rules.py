"""Directions of low rank in a matrix, z = A F B, where only F is a direction's own; and the rules that make of a step's
estimate, a sum of g F, the change of the weights, for methods other than SGD; and the narrow products that add z."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from contextlib import AbstractContextManager
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
        """Returns the matrix that is subtracted; ``estimate`` may be overwritten, and ``state`` becomes that after the
        step. ``begins``: the state is that of no step."""

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


ELEMENTWISE = 4
"""Columns that a CPU adds one by one in float32: its matrix product of so few waits for its own copies of the operands,
and takes two to five times as long (OPT's widths, one core of an AMD EPYC)."""
PIECE = 1 << 19
"""Elements of the sum that stay in the cache meanwhile."""


def uncast(device: torch.device | str) -> AbstractContextManager[object]:
    """Inside, products are of their operands' dtypes, whatever autocast a forward pass has around it: updates reach
    float32 weights in float32, and in a replay, which has no forward, with the same bits."""
    kind = torch.device(device).type
    return contextlib.nullcontext() if kind == "meta" else torch.autocast(kind, enabled=False)


def add_narrow(y: Tensor, narrow: Tensor | None, left: Tensor | None, shift: Tensor | None, kept: float = 1.0) -> None:
    """``y = kept * y + narrow left^T + shift`` in place: ``y`` (n, outputs), ``narrow`` (n, k) and ``left``
    (outputs, k) in the dtype of ``y`` or both absent, ``shift`` (outputs,) or absent."""
    columns = 0 if left is None else left.shape[1]
    if y.device.type == "cpu" and y.dtype == torch.float32 and columns <= ELEMENTWISE:
        rows = [] if left is None else list(left.T.contiguous())
        step = max(1, PIECE // y.shape[1])
        for first in range(0, len(y), step):
            part = y[first : first + step]
            if kept != 1.0:
                part.mul_(kept)
            for number, row in enumerate(rows):
                assert narrow is not None
                part.addcmul_(narrow[first : first + step, number : number + 1], row)
            if shift is not None:
                part.add_(shift)
        return
    lefts, narrows = ([left], [narrow]) if left is not None and narrow is not None else ([], [])
    if shift is not None:
        lefts, narrows = [*lefts, shift.unsqueeze(1)], [*narrows, y.new_ones(len(y), 1)]
    if lefts:
        y.addmm_(joined(narrows, 1), joined(lefts, 1).T, beta=kept)


def joined(tensors: Sequence[Tensor], dim: int) -> Tensor:
    """All ``tensors`` along a dimension; one alone is not copied."""
    return tensors[0] if len(tensors) == 1 else torch.cat(list(tensors), dim)


def add_product(weights: Tensor, left: Tensor, basis: Tensor, kept: float) -> None:
    """``weights = kept * weights + left basis`` in place, in float32, rounded once: ``left`` (rows, k), ``basis``
    (k, columns), float32."""
    step = max(1, PIECE // weights.shape[1])
    for first in range(0, len(weights), step):
        rows = slice(first, first + step)
        piece = weights[rows]
        piece.copy_(torch.addmm(piece.float(), left[rows], basis, beta=kept))


def add_each(y: Tensor, narrow: Tensor, left: Tensor) -> None:
    """``y[i] += narrow[i] left[i]`` in place for each i: ``y`` (g, n, outputs), ``narrow`` (g, n, k), ``left``
    (g, k, outputs), all of one dtype."""
    if y.device.type != "cpu" or y.dtype != torch.float32 or narrow.shape[2] > ELEMENTWISE:
        y.baddbmm_(narrow, left)
        return
    step = max(1, PIECE // (y.shape[1] * y.shape[2]))
    for first in range(0, len(y), step):
        rows = slice(first, first + step)
        for column in range(narrow.shape[2]):
            y[rows].addcmul_(narrow[rows, :, column : column + 1], left[rows, column : column + 1])
