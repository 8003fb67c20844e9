"""The integer wire: matrices rest as integers of 8 or 4 bits, a scale for every group of values, and are only read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from zobench.engine import grid as integers
from zobench.engine.blocks import PAGE, Field, Unit
from zobench.engine.wire import aligned
from zobench.runspec.kinds import SCALE_WIDTH, WireKind


@dataclass(frozen=True, slots=True)
class Grid:
    """Where a matrix rests: its integers at ``offset``, its groups' scales at ``scales``. The matrix is cut, row after
    row, into ``count`` groups of the kind's size; the last one may be short and is filled up with zeros."""

    field: Field
    kind: WireKind
    offset: int
    scales: int
    count: int

    def packed(self, slot: Tensor) -> Tensor:
        """The integers, uint8 (groups, bytes of a group), as :func:`zobench.engine.grid.packed` has them."""
        width = self.kind.group * self.kind.bits // 8
        return slot[self.offset : self.offset + self.count * width].view(self.count, width)

    def scale(self, slot: Tensor) -> Tensor:
        """The groups' scales (groups, 1), bfloat16."""
        return slot[self.scales : self.scales + SCALE_WIDTH * self.count].view(torch.bfloat16).unsqueeze(1)

    def chunks(self, flat: Tensor) -> Iterator[slice]:
        """The groups that are packed or unpacked at once, of a matrix that lies in ``flat``."""
        size = integers.chunk(flat, self.kind.group)
        return (slice(first, min(first + size, self.count)) for first in range(0, self.count, size))


class IntegerWire:
    """A :class:`~zobench.engine.wire.Wire` of integers; vectors (biases, norms) stay as they are.

    They lie on a symmetric grid (:mod:`zobench.engine.grid`) and are unpacked as code times scale, rounded once to the
    model's dtype. What rests is never written again (:class:`zobench.runspec.kinds.WireKind`).
    """

    read_only = True

    def __init__(self, kind: WireKind) -> None:
        self._kind = kind
        self._layouts: dict[int, tuple[list[Grid], list[tuple[Field, int]], int]] = {}

    def prepare(self, device: str, dtype: torch.dtype) -> None:
        """Nothing: torch's own operations do it."""

    def nbytes(self, unit: Unit) -> int:
        return self._layout(unit)[2]

    def decode(self, unit: Unit, slot: Tensor, master: Tensor) -> None:
        grids, plain, _ = self._layout(unit)
        for grid in grids:
            flat, packed, scale = grid.field.view(master).view(-1), grid.packed(slot), grid.scale(slot)
            for chunk in grid.chunks(flat):
                values = integers.unpacked(packed[chunk], self._kind.bits).mul_(scale[chunk].float()).view(-1)
                target = flat[chunk.start * self._kind.group : chunk.stop * self._kind.group]
                target.copy_(values[: target.numel()])
        for item, offset in plain:
            item.view(master).copy_(_plain(item, offset, slot))

    def encode(self, unit: Unit, master: Tensor, slot: Tensor) -> None:
        grids, plain, _ = self._layout(unit)
        for grid in grids:
            flat, packed, scale = grid.field.view(master).view(-1), grid.packed(slot), grid.scale(slot)
            for chunk in grid.chunks(flat):
                shape = chunk.stop - chunk.start, self._kind.group
                values = torch.zeros(shape, dtype=torch.float32, device=flat.device)
                source = flat[chunk.start * self._kind.group : chunk.stop * self._kind.group]
                values.view(-1)[: source.numel()].copy_(source)
                codes, scales = integers.rounded(values, self._kind.bits)
                scale[chunk].copy_(scales)
                packed[chunk].copy_(integers.packed(codes, self._kind.bits))
        for item, offset in plain:
            _plain(item, offset, slot).copy_(item.view(master))

    def _layout(self, unit: Unit) -> tuple[list[Grid], list[tuple[Field, int]], int]:
        if id(unit) not in self._layouts:
            grids: list[Grid] = []
            plain, offset, kind = [], 0, self._kind
            for item in unit.fields:
                if item.is_parameter and len(item.shape) >= 2:
                    count = -(-item.shape.numel() // kind.group)
                    scales = offset + aligned(count * kind.group * kind.bits // 8)
                    grids.append(Grid(item, kind, offset, scales, count))
                    offset = scales + aligned(SCALE_WIDTH * count)
                else:
                    plain.append((item, offset))
                    offset += aligned(item.nbytes)
            self._layouts[id(unit)] = grids, plain, -(-offset // PAGE) * PAGE
        return self._layouts[id(unit)]


def _plain(item: Field, offset: int, slot: Tensor) -> Tensor:
    """A tensor that rests as it is, inside a slot."""
    return slot[offset : offset + item.nbytes].view(item.dtype).view(item.shape)
