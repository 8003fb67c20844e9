"""Low-rank directions by hand: W + c U V^T made whole, from draws of their own."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from zobench import kernels
from zobench.engine.base import Entry, Point
from zobench.testing.plain import Plain


def direction(number: int, shape: torch.Size, seed: int, subspace: int | None, rank: int) -> Tensor:
    """z of the parameter of this number in ``named_parameters()``."""
    if len(shape) != 2:
        z = torch.empty(shape)
        kernels.normals(seed, kernels.Span(number), z)
        return z
    left, right = torch.empty(shape[0], rank), torch.empty(rank, shape[1])
    kernels.normals(seed, kernels.Span(number), left)
    kernels.normals(seed if subspace is None else subspace, kernels.Span(number, start=left.numel()), right)
    return left @ right


class LowRankPlain(Plain):
    """A plain model that is moved along directions of low rank."""

    def __init__(self, rank: int, tied: bool = True) -> None:
        super().__init__("counter", tied=tied)
        self._rank, self._subspace = rank, None

    def direction(self, seed: int) -> dict[str, Tensor]:
        return {
            name: direction(number, tensor.shape, seed, self._subspace, self._rank)
            for number, (name, tensor) in enumerate(self.model.named_parameters())
        }

    def losses(self, batch: object, points: Sequence[Point]) -> list[float]:
        losses = []
        for point in points:
            self._subspace = point.subspace
            losses += super().losses(batch, [point])  # type: ignore[arg-type]
        self._subspace = None
        return losses

    def update(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            self._subspace = entry.subspace
            super().update([entry])
        self._subspace = None
