"""Points that share no subspace: directions of low rank that are drawn for many of them at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from zobench import kernels
from zobench.engine.base import Point
from zobench.engine.blocks import Field, Unit
from zobench.engine.factors import LowRank, subspace_of, whole
from zobench.kernels import Span


@dataclass(frozen=True, slots=True)
class Apart(LowRank):
    """Directions U V^T / sqrt(rank) for points of which each has its own (EGGROLL: Sarkar et al., 2025).

    An element of z has the variance 1, whatever the rank.
    """

    is_apart: ClassVar[bool] = True

    def basis(self, item: Field, subspace: int, device: torch.device | str) -> Tensor:
        """V^T / sqrt(rank), float32 (rank, columns)."""
        return LowRank.basis(self, item, subspace, device).div_(math.sqrt(self.rank))


class Ways:
    """The directions of some points, one for each run of ``each`` neighbours: antithetic pairs share theirs.

    All that it draws is float32 with one row for each direction. ``count`` directions serve the points; those that are
    W itself have the scale 0.
    """

    def __init__(self, directions: LowRank, points: Sequence[Point], device: torch.device | str) -> None:
        self._rank, self._root, self._device = directions.rank, math.sqrt(directions.rank), device
        self.points = points
        keys = [(0, 0) if point.seed is None else (point.seed, subspace_of(point)) for point in points]
        first = [place for place, key in enumerate(keys) if not place or key != keys[place - 1]]
        lengths = {after - before for before, after in zip(first, [*first[1:], len(keys)], strict=True)}
        self.each = lengths.pop() if len(lengths) == 1 else 1
        self._seeds, self._subspaces = zip(*keys[:: self.each], strict=True)
        self.count = len(self._seeds)

    def moves(self, unit: Unit) -> bool:
        """Whether a unit is another than W at one of the points."""
        return bool(unit.trained) and any(unit.own(point).scale for point in self.points)

    def scales(self, unit: Unit, rows: int = 1) -> Tensor:
        """How far each of the points' ``rows`` goes: (directions, each * rows, 1)."""
        scales = torch.tensor([unit.own(point).scale for point in self.points], device=self._device)
        return scales.repeat_interleave(rows).view(self.count, -1, 1)

    def left(self, item: Field, rows: slice) -> Tensor:
        """U^T of a matrix, (directions, rank, rows): some of the rows that are here."""
        first, last, _ = rows.indices(item.shape[0])
        drawn = self._drawn(
            self._seeds, Span(item.tensor_id, (item.first + first) * self._rank), last - first, self._rank
        )
        return drawn.transpose(1, 2).contiguous()

    def left_of(self, item: Field, rows: Tensor) -> Tensor:
        """U of a matrix's rows ``rows`` (n,), those of each direction in turn: (directions, n / directions, rank)."""
        drawn = torch.empty(self.count, len(rows) // self.count, self._rank, device=self._device)
        for seed, own, out in zip(self._seeds, rows.chunk(self.count), drawn, strict=True):
            kernels.normals(seed, Span(item.tensor_id, rows=own.contiguous()), out)
        return drawn

    def right(self, item: Field) -> Tensor:
        """V^T of a matrix, (directions, rank, columns)."""
        rows, columns = whole(item)
        drawn = self._drawn(self._subspaces, Span(item.tensor_id, rows * self._rank), self._rank, columns)
        return drawn.div_(self._root)

    def vectors(self, item: Field, rows: slice) -> Tensor:
        """z of a vector, (directions, rows): some of its elements that are here."""
        first, last, _ = rows.indices(item.shape[0])
        return self._drawn(self._seeds, Span(item.tensor_id, item.start + first), last - first)

    def _drawn(self, seeds: Sequence[int], span: Span, *shape: int) -> Tensor:
        out = torch.empty(len(seeds), *shape, device=self._device)
        kernels.normals_each(seeds, span, out)
        return out
