"""Directions of low rank: z = A F B in every matrix, and the small tensors that stand for it.

F comes from the counter stream of the matrix under the direction's own seed, from the stream's beginning; A and B are
made of the numbers after these under the seed of the *subspace*. So each can be drawn alone, and directions of one
subspace share A and B. Any other tensor keeps a full direction of its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from zobench import kernels
from zobench.engine.base import Entry, Point
from zobench.engine.directions.factor_rules import Basis, FactorRule, orthonormal
from zobench.engine.weights.blocks import Field, Unit
from zobench.kernels import Flat, Segment, Span, Update
from zobench.kernels.base import PADDING

FLOAT = torch.float32.itemsize


@dataclass(frozen=True, slots=True)
class LowRank:
    """Directions whose matrices are U V^T of this ``rank``: U (rows, rank) is a direction's own, V^T (rank, columns)
    that of its subspace (LOZO: Chen et al., 2024).

    An element of z then has the variance ``rank``, not 1. ``rule``: what a step makes of its estimate; None: SGD, entry
    by entry. ``by_rows``: whether some rows of a matrix have rows of F, and not the whole of it. ``is_apart``: whether
    a pass has many points, hardly two of which share a subspace (:class:`IndependentLowRank`). Raises ``ValueError`` if
    ``rank`` is below 1.
    """

    by_rows: ClassVar[bool] = True
    is_apart: ClassVar[bool] = False
    rank: int
    rule: FactorRule | None = None

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ValueError(f"`rank >= 1` must hold, but got rank={self.rank}; LOZO uses rank=2")

    def factor_shape(self, item: Field) -> tuple[torch.Size, int]:
        """The shape of F of a matrix, or of those of its rows that the field holds, and F's place in the stream."""
        return torch.Size([item.shape[0], self.rank]), item.first * self.rank

    def shared(self, item: Field, subspace: int, device: torch.device | str) -> Basis:
        """A and B of a whole matrix."""
        return Basis(right=self.basis(item, subspace, device))

    def basis(self, item: Field, subspace: int, device: torch.device | str) -> Tensor:
        """V^T of a matrix, float32 (rank, columns): a thin product is faster with V's columns in one piece each."""
        rows, columns = whole(item)
        return normals(item, subspace, rows * self.rank, (self.rank, columns), device)

    def direction(self, item: Field, seed: int, subspace: int, out: Tensor) -> None:
        """Writes z of the tensor, or of those of its rows that the field holds, into ``out``, of the field's shape."""
        if not is_matrix(item):
            out.copy_(normals(item, seed, item.start, item.shape, out.device))
            return
        shape, start = self.factor_shape(item)
        basis = self.shared(item, subspace, out.device).rows(item.first, item.shape[0])
        out.copy_(basis.whole(normals(item, seed, start, shape, out.device)))


@dataclass(frozen=True, slots=True)
class Core(LowRank):
    """Directions U Z V^T: Z (rank, rank) is a direction's own, U (rows, rank) and V (columns, rank) have orthonormal
    columns (SubZero: Yu et al., 2024). Of a matrix with fewer rows or columns than ``rank`` these are all.

    ``scaled``: times the root of (elements of the matrix / elements of Z), which makes z as long as normal numbers are.
    """

    by_rows: ClassVar[bool] = False
    scaled: bool = False

    def factor_shape(self, item: Field) -> tuple[torch.Size, int]:
        return torch.Size(min(self.rank, size) for size in whole(item)), 0

    def shared(self, item: Field, subspace: int, device: torch.device | str) -> Basis:
        (rows, columns), (left, right) = whole(item), self.factor_shape(item)[0]
        start = left * right
        u = orthonormal(normals(item, subspace, start, (rows, left), device))
        v = orthonormal(normals(item, subspace, start + rows * left, (columns, right), device))
        return Basis(u, (v * math.sqrt(rows * columns / (left * right)) if self.scaled else v).T.contiguous())


@dataclass(frozen=True, slots=True)
class Projected(LowRank):
    """Directions P Psi: Psi (rank, columns) is a direction's own, P (rows, rank) has orthonormal columns (ZO-Muon: Lang
    et al., 2026). Of a matrix with fewer rows than ``rank`` P is square."""

    by_rows: ClassVar[bool] = False

    def factor_shape(self, item: Field) -> tuple[torch.Size, int]:
        rows, columns = whole(item)
        return torch.Size([min(self.rank, rows), columns]), 0

    def shared(self, item: Field, subspace: int, device: torch.device | str) -> Basis:
        rows, (inside, columns) = whole(item)[0], self.factor_shape(item)[0]
        return Basis(left=orthonormal(normals(item, subspace, inside * columns, (rows, inside), device)))


@dataclass(frozen=True, slots=True)
class IndependentLowRank(LowRank):
    """Directions U V^T / sqrt(rank) for points of which each has its own subspace (EGGROLL: Sarkar et al., 2025).

    An element of z has the variance 1, whatever the rank.
    """

    is_apart: ClassVar[bool] = True

    def basis(self, item: Field, subspace: int, device: torch.device | str) -> Tensor:
        """V^T / sqrt(rank), float32 (rank, columns)."""
        return LowRank.basis(self, item, subspace, device).div_(math.sqrt(self.rank))


def normals(item: Field, seed: int, start: int, shape: tuple[int, ...], device: torch.device | str) -> Tensor:
    """Normal numbers of a tensor's stream from ``start`` on, float32."""
    drawn = torch.empty(shape, dtype=torch.float32, device=device)
    kernels.normals(seed, Span(item.tensor_id, start), drawn)
    return drawn


def whole(item: Field) -> torch.Size:
    """The shape of the whole tensor, of which a field may hold some rows."""
    return item.shape if item.whole is None else item.whole


def is_matrix(item: Field) -> bool:
    """Whether a tensor's directions have low rank; experts in one tensor of three dimensions keep full ones."""
    return len(item.shape) == 2


def subspace_of(direction: Point | Entry) -> int:
    """The seed of A and B: the direction's own where it shares none with others."""
    assert direction.seed is not None
    return direction.seed if direction.subspace is None else direction.subspace


class Factors:
    """Where the factors of a unit's trainable tensors lie in a flat float32 buffer: F of a matrix, z of any other
    tensor. To the kernels they are a small unit, which is moved and updated as weights are.

    ``fields``: the factors as fields of such a buffer, in the order of the unit's trainable tensors.
    """

    def __init__(self, unit: Unit, directions: LowRank) -> None:
        self.directions = directions
        segments, self.fields, offset = list[Segment](), list[Field](), 0
        for item, decayed in zip(unit.trainable, unit.decayed, strict=True):
            shape, start = directions.factor_shape(item) if is_matrix(item) else (item.shape, item.start)
            segments.append(Segment(item.tensor_id, start, offset, shape.numel(), decayed))
            self.fields.append(_field(item, shape, start, offset * FLOAT, directions.by_rows or not is_matrix(item)))
            offset += -(-shape.numel() * FLOAT // PADDING) * PADDING // FLOAT
        self._by_tensor = {factor.tensor_id: factor for factor in self.fields}
        self.flat, self.nbytes = Flat(torch.float32, segments), offset * FLOAT

    def empty(self, device: torch.device | str) -> Tensor:
        """Factors that are all zero."""
        return torch.zeros(self.nbytes, dtype=torch.uint8, device=device)

    def of(self, item: Field, buffer: Tensor) -> Tensor:
        """The factor of one of the unit's trainable tensors in a buffer."""
        return self._by_tensor[item.tensor_id].view(buffer)

    def update(self, buffer: Tensor, entry: Entry) -> None:
        """``F -= lr * (g * z + weight_decay * F)``: what an update does to factors that are pending."""
        update = Update(entry.seed, entry.g, entry.lr, entry.weight_decay, entry.step)
        kernels.advance_flat(buffer, self.flat, (update,))

    def add(self, buffer: Tensor, seed: int, scale: float) -> None:
        """``F += scale * z``."""
        kernels.advance_flat(buffer, self.flat, (Update(seed, scale, -1.0),))

    def moved(self, buffer: Tensor, seed: int, scale: float) -> Tensor:
        """``F + scale * z``, in a buffer of its own."""
        moved = torch.empty_like(buffer)
        kernels.advance_flat(buffer, self.flat, (), scratch=moved, seed=seed, scale=scale)
        return moved

    def flipped(self, buffer: Tensor, moved: Tensor) -> Tensor:
        """``F - scale * z`` from F and ``F + scale * z``, without another draw."""
        opposite = moved.clone()
        kernels.flip(self.flat.whole(buffer), self.flat.whole(opposite))
        return opposite

    def decay(self, buffer: Tensor, kept: float) -> Tensor:
        """The factors times what later weight decay leaves of them; the buffer itself where that is all."""
        if kept == 1.0:
            return buffer
        decayed = buffer.clone()
        for segment in self.flat.segments:
            if segment.decayed:
                decayed.view(torch.float32)[segment.offset : segment.offset + segment.numel].mul_(kept)
        return decayed


def _field(item: Field, shape: torch.Size, start: int, offset: int, by_rows: bool) -> Field:
    """A factor as a field of its buffer, called as a rule's state of it is."""
    rows = torch.Size([whole(item)[0], *shape[1:]]) if item.is_part and by_rows else None
    return replace(
        item, shape=shape, offset=offset, dtype=torch.float32, is_parameter=False, trainable=False, homes=(),
        first=start // shape[1:].numel(), whole=rows, state="m",
    )  # fmt: skip
