"""The wire: the format in which a unit's weights rest in their tier and cross the link, narrower than on the device.

ZO2 calls this its AMP mode (ZO-Offloading 5.4, ZO2 D.4): 32 bits on the device, 16 or 8 in the tier and on the link.
Both conversions run where the compute runs, so they need no lane of their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from zobench.engine.blocks import ALIGNMENT, PAGE, Field, Unit
from zobench.runspec.kinds import WIRES

FORMATS = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp8": torch.float8_e4m3fn}
E4M3_MAX = 448.0
CHUNK_ELEMENTS = 1 << 20
"""Elements that an encoding to fp8 scales at once: its temporary."""
CUDA_CHUNK_ELEMENTS = 1 << 24
"""The same on a CUDA device, where a launch costs more than the memory."""


class Wire(Protocol):
    """Packs and unpacks units. ``read_only``: a unit is packed once, and no update is ever written into it."""

    read_only: bool

    def nbytes(self, unit: Unit) -> int:
        """Bytes of the unit at rest, a whole number of pages."""

    def decode(self, unit: Unit, slot: Tensor, master: Tensor) -> None:
        """Writes the unit's weights in ``slot`` into ``master``, in the model's dtype."""

    def encode(self, unit: Unit, master: Tensor, slot: Tensor) -> None:
        """The inverse of :meth:`decode`, rounding to the wire's format."""


@dataclass(frozen=True, slots=True)
class Packed:
    """Where one tensor of a unit is at rest: values at ``offset``, and float32 scales, one per row, at ``scales``."""

    field: Field
    dtype: torch.dtype
    offset: int
    scales: int | None = None

    def values(self, slot: Tensor) -> Tensor:
        """The tensor's values inside a slot, in the wire's dtype."""
        nbytes = self.field.shape.numel() * self.dtype.itemsize
        return slot[self.offset : self.offset + nbytes].view(self.dtype).view(self.field.shape)

    def scale(self, slot: Tensor) -> Tensor:
        """Its scales (rows, 1), float32."""
        assert self.scales is not None
        return slot[self.scales : self.scales + 4 * self.field.shape[0]].view(torch.float32).unsqueeze(1)


class FloatWire:
    """Packs and unpacks units. ``kind``: fp16, bf16, or fp8 (e4m3, a float32 scale for each row of a matrix).

    With fp8, vectors (biases, norms) keep their dtype: they are few, and eight bits would cost them most.
    """

    read_only = False

    def __init__(self, kind: str) -> None:
        self._dtype, self._scaled = FORMATS[kind], WIRES[kind].is_scaled
        self._layouts: dict[int, tuple[list[Packed], int]] = {}

    def nbytes(self, unit: Unit) -> int:
        """Bytes of the unit at rest, a whole number of pages."""
        return self._layout(unit)[1]

    def decode(self, unit: Unit, slot: Tensor, master: Tensor) -> None:
        """Writes the unit's weights in ``slot`` into ``master``, in the model's dtype."""
        for item in self._layout(unit)[0]:
            target = item.field.view(master)
            target.copy_(item.values(slot))
            if item.scales is not None:
                target.mul_(item.scale(slot))

    def encode(self, unit: Unit, master: Tensor, slot: Tensor) -> None:
        """The inverse of :meth:`decode`, rounding to the wire's dtype."""
        for item in self._layout(unit)[0]:
            source = item.field.view(master)
            if item.scales is None:
                item.values(slot).copy_(source)
                continue
            scale = item.scale(slot)
            torch.linalg.vector_norm(source, float("inf"), dim=1, keepdim=True, dtype=torch.float32, out=scale)
            scale.div_(E4M3_MAX).clamp_(min=torch.finfo(torch.float32).tiny)
            rows = max(1, (CUDA_CHUNK_ELEMENTS if source.is_cuda else CHUNK_ELEMENTS) // source.shape[1])
            values = item.values(slot)
            for first in range(0, source.shape[0], rows):
                chunk = slice(first, first + rows)
                # clamped, because casts differ in what becomes of a value beyond the range
                values[chunk].copy_((source[chunk] / scale[chunk]).clamp_(-E4M3_MAX, E4M3_MAX))

    def _layout(self, unit: Unit) -> tuple[list[Packed], int]:
        if id(unit) not in self._layouts:
            packed, offset = [], 0
            for item in unit.fields:
                scaled = self._scaled and len(item.shape) == 2
                narrow = item.is_parameter and (scaled or not self._scaled)
                dtype = self._dtype if narrow else item.dtype
                values = aligned(item.shape.numel() * dtype.itemsize)
                packed.append(Packed(item, dtype, offset, offset + values if scaled else None))
                offset += values + (aligned(4 * item.shape[0]) if scaled else 0)
            self._layouts[id(unit)] = packed, -(-offset // PAGE) * PAGE
        return self._layouts[id(unit)]


def aligned(nbytes: int) -> int:
    """``nbytes`` rounded up, so that a tensor can begin after them."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
