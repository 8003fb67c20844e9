"""The wire: the format in which a unit's weights rest in their tier and cross the link, narrower than on the device.

ZO2 calls this its AMP mode (ZO-Offloading 5.4, ZO2 D.4): 32 bits on the device, 16 or 8 in the tier and on the link.
Both conversions run where the compute runs, so they need no lane of their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from zobench.engine.blocks import ALIGNMENT, PAGE, Field, Pieces, Unit
from zobench.kernels import DTYPES, scaled
from zobench.kernels.packing import Packing, Rows
from zobench.runspec.kinds import WIRES

FORMATS = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp8": torch.float8_e4m3fn}


class Wire(Protocol):
    """Packs and unpacks units. ``read_only``: a unit is packed once, and no update is ever written into it."""

    read_only: bool

    def prepare(self, device: str, dtype: torch.dtype) -> None:
        """Compiles what both conversions of weights of ``dtype`` launch on the device."""

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

    @property
    def rows(self) -> Rows:
        """The same as the kernels have it; without scales its shape does not matter."""
        rows, width = (1, self.field.shape.numel()) if self.scales is None else tuple(self.field.shape)
        return Rows(self.field.offset, self.offset, self.scales, rows, width)


@dataclass(frozen=True, slots=True)
class Layout:
    """A unit at rest, ``nbytes`` long, a whole number of pages: what is ``cast`` or copied tensor by tensor, and what
    is scaled, with all that lies beside it, in one launch for each dtype."""

    cast: list[Packed]
    packings: list[Packing]
    nbytes: int


def is_read_only(unit: Unit, wire: Wire | None) -> bool:
    """Whether the unit's weights at rest are never written, so that all its updates stay pending."""
    return unit.streamed and wire is not None and wire.read_only


class DeviceWeights:
    """Where the weights of a unit on the device are in the model's dtype: in its buffer or, where it is streamed in the
    format of ``wire``, unpacked in ``master``, a uint8 buffer that all such units use in turn."""

    def __init__(self, wire: Wire | None, master: Tensor | None) -> None:
        self.wire, self.master = wire, master

    def of(self, unit: Unit) -> Tensor | Pieces:
        """The memory of the unit's weights."""
        assert unit.buffer is not None, f"{unit.name} is not on the device"
        if self.wire is None or not unit.streamed:
            return unit.buffer
        assert self.master is not None
        return self.master

    def unpacked(self, unit: Unit) -> Tensor | Pieces:
        """The same, with the weights in it."""
        if self.wire is not None and unit.streamed:
            assert self.master is not None
            assert isinstance(unit.buffer, Tensor)
            self.wire.decode(unit, unit.buffer, self.master)
        return self.of(unit)

    def pack(self, unit: Unit) -> None:
        """Puts what was unpacked back into the unit's buffer, in the wire's format."""
        if self.wire is not None and unit.streamed:
            assert self.master is not None
            assert isinstance(unit.buffer, Tensor)
            self.wire.encode(unit, self.master, unit.buffer)


class FloatWire:
    """A :class:`Wire` of floating-point numbers. ``kind``: fp16, bf16, or fp8 (e4m3, a float32 scale for each row of a
    matrix).

    With fp8, vectors (biases, norms) keep their dtype: they are few, and eight bits would cost them most.
    """

    read_only = False

    def __init__(self, kind: str) -> None:
        self._dtype, self._scaled = FORMATS[kind], WIRES[kind].is_scaled
        self._layouts: dict[int, Layout] = {}

    def prepare(self, device: str, dtype: torch.dtype) -> None:
        if self._scaled:
            scaled.prepare(device, dtype)

    def nbytes(self, unit: Unit) -> int:
        return self._layout(unit).nbytes

    def decode(self, unit: Unit, slot: Tensor, master: Tensor) -> None:
        layout = self._layout(unit)
        for item in layout.cast:
            item.field.view(master).copy_(item.values(slot))
        for packing in layout.packings:
            scaled.unpack(packing, slot, master)

    def encode(self, unit: Unit, master: Tensor, slot: Tensor) -> None:
        layout = self._layout(unit)
        for item in layout.cast:
            item.values(slot).copy_(item.field.view(master))
        for packing in layout.packings:
            scaled.pack(packing, master, slot)

    def _layout(self, unit: Unit) -> Layout:
        if id(unit) not in self._layouts:
            packed, offset = [], 0
            for item in unit.fields:
                is_scaled = self._scaled and item.is_parameter and len(item.shape) == 2
                narrow = item.is_parameter and (is_scaled or not self._scaled)
                dtype = self._dtype if narrow else item.dtype
                values = aligned(item.shape.numel() * dtype.itemsize)
                packed.append(Packed(item, dtype, offset, offset + values if is_scaled else None))
                offset += values + (aligned(4 * item.shape[0]) if is_scaled else 0)
            self._layouts[id(unit)] = self._grouped(packed, -(-offset // PAGE) * PAGE)
        return self._layouts[id(unit)]

    def _grouped(self, packed: list[Packed], nbytes: int) -> Layout:
        groups: dict[torch.dtype, list[Rows]] = {}
        cast = []
        for item in packed:
            if self._scaled and item.field.dtype in DTYPES:
                groups.setdefault(item.field.dtype, []).append(item.rows)
            else:
                cast.append(item)
        return Layout(cast, [Packing(dtype, rows) for dtype, rows in groups.items()], nbytes)


def aligned(nbytes: int) -> int:
    """``nbytes`` rounded up, so that a tensor can begin after them."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
