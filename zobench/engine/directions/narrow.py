"""Narrow products: what directions of low rank add to a product, a few columns wide."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from contextlib import AbstractContextManager

import torch
from torch import Tensor

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
        some = slice(first, first + step)
        for column in range(narrow.shape[2]):
            y[some].addcmul_(narrow[some, :, column : column + 1], left[some, column : column + 1])
