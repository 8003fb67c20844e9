"""What directions of low rank share in a matrix: z = A F B, where only F is a direction's own."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

ALL = slice(None)


@dataclass(frozen=True, eq=False, slots=True)
class Basis:
    """A, ``left`` (rows, a), and B, ``right`` (b, columns), of z = A F B, float32; None stands for the identity.

    F is (a, b), with ``rows`` in the place of a, and ``columns`` in that of b, where A or B is None.
    """

    left: Tensor | None = None
    right: Tensor | None = None

    def rows(self, first: int, count: int) -> Basis:
        """The same of ``count`` rows of the matrix from ``first`` on."""
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
