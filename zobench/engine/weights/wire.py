"""The wire: the format in which a unit's weights rest in their tier and cross the link, narrower than on the device.

ZO2 calls this its AMP mode (ZO-Offloading 5.4, ZO2 D.4): 32 bits on the device, 16 or 8 in the tier and on the link.
Both conversions run where the compute runs, so they need no lane of their own. :class:`FloatWire` rounds to narrower
floats; :class:`IntegerWire` keeps matrices as integers of 8 or 4 bits, with a scale for every group of values;
:class:`StoredWire` leaves a quantised checkpoint's own bytes as they are. The last two are only read.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from zobench.engine.weights import grid as integers
from zobench.engine.weights.blocks import ALIGNMENT, Field, Pieces, Unit
from zobench.engine.weights.tiers import Extent
from zobench.kernels import DTYPES, scaled
from zobench.kernels.base import Packing, WireTensor
from zobench.machine.directio import round_up
from zobench.models.stored import Stored
from zobench.models.weights import Weights
from zobench.runspec.kinds import SCALE_WIDTH, WIRES, WireKind

FORMATS = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp8": torch.float8_e4m3fn}


@dataclass(frozen=True, slots=True)
class PackedTensor:
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
    def rows(self) -> WireTensor:
        """The tensor's place as the kernels take it; without scales its shape does not matter."""
        rows, width = (1, self.field.shape.numel()) if self.scales is None else tuple(self.field.shape)
        return WireTensor(self.field.offset, self.offset, self.scales, rows, width)


@dataclass(frozen=True, slots=True)
class WireLayout:
    """A unit at rest, ``nbytes`` long, a whole number of pages: what is ``cast`` or copied tensor by tensor, and
    ``parts`` of a form of the wire's own."""

    cast: list[PackedTensor]
    parts: list[Any]
    nbytes: int


class Wire(ABC):
    """Packs and unpacks units. ``read_only``: a unit is packed once, and no update is ever written into it."""

    read_only = True

    def __init__(self) -> None:
        self._layouts: dict[int, WireLayout] = {}

    def prepare(self, device: str, dtype: torch.dtype) -> None:  # noqa: B027  torch's own operations need nothing
        """Compiles what both conversions of weights of ``dtype`` launch on the device."""

    def nbytes(self, unit: Unit) -> int:
        """Bytes of the unit at rest, a whole number of pages."""
        return self.layout(unit).nbytes

    def decode(self, unit: Unit, slot: Tensor, master: Tensor) -> None:
        """Writes the unit's weights in ``slot`` into ``master``, in the model's dtype."""
        layout = self.layout(unit)
        for item in layout.cast:
            item.field.view(master).copy_(item.values(slot))
        for part in layout.parts:
            self._unpack(part, slot, master)

    def encode(self, unit: Unit, master: Tensor, slot: Tensor) -> None:
        """The inverse of :meth:`decode`, rounding to the wire's format."""
        layout = self.layout(unit)
        for item in layout.cast:
            item.values(slot).copy_(item.field.view(master))
        for part in layout.parts:
            self._pack(part, master, slot)

    def layout(self, unit: Unit) -> WireLayout:
        """Where the unit's tensors are at rest, made once."""
        if id(unit) not in self._layouts:
            self._layouts[id(unit)] = self._laid_out(unit)
        return self._layouts[id(unit)]

    @abstractmethod
    def _laid_out(self, unit: Unit) -> WireLayout: ...
    @abstractmethod
    def _unpack(self, part: Any, slot: Tensor, master: Tensor) -> None: ...
    @abstractmethod
    def _pack(self, part: Any, master: Tensor, slot: Tensor) -> None: ...


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
        """The memory of the unit's weights, after they were unpacked into it."""
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


class FloatWire(Wire):
    """A :class:`Wire` of floating-point numbers. ``kind``: fp16, bf16, or fp8 (e4m3, a float32 scale for each row of a
    matrix).

    With fp8, vectors (biases, norms) keep their dtype: they are few, and eight bits would cost them most. What is
    scaled is packed, with all that lies beside it, in one launch for each dtype (:class:`Packing`).
    """

    read_only = False

    def __init__(self, kind: str) -> None:
        super().__init__()
        self._dtype, self._scaled = FORMATS[kind], WIRES[kind].is_scaled

    def prepare(self, device: str, dtype: torch.dtype) -> None:
        if self._scaled:
            scaled.prepare(device, dtype)

    def _unpack(self, part: Packing, slot: Tensor, master: Tensor) -> None:
        scaled.unpack(part, slot, master)

    def _pack(self, part: Packing, master: Tensor, slot: Tensor) -> None:
        scaled.pack(part, master, slot)

    def _laid_out(self, unit: Unit) -> WireLayout:
        packed, offset = [], 0
        for item in unit.fields:
            is_scaled = self._scaled and item.is_parameter and len(item.shape) == 2
            narrow = item.is_parameter and (is_scaled or not self._scaled)
            dtype = self._dtype if narrow else item.dtype
            values = aligned(item.shape.numel() * dtype.itemsize)
            packed.append(PackedTensor(item, dtype, offset, offset + values if is_scaled else None))
            offset += values + (aligned(4 * item.shape[0]) if is_scaled else 0)
        groups: dict[torch.dtype, list[WireTensor]] = {}
        cast = []
        for packed_field in packed:
            if self._scaled and packed_field.field.dtype in DTYPES:
                groups.setdefault(packed_field.field.dtype, []).append(packed_field.rows)
            else:
                cast.append(packed_field)
        return WireLayout(cast, [Packing(dtype, rows) for dtype, rows in groups.items()], round_up(offset))


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
        """The integers, uint8 (groups, bytes of a group), as :func:`zobench.engine.weights.grid.packed` has them."""
        width = self.kind.group * self.kind.bits // 8
        return slot[self.offset : self.offset + self.count * width].view(self.count, width)

    def scale(self, slot: Tensor) -> Tensor:
        """The groups' scales (groups, 1), bfloat16."""
        return slot[self.scales : self.scales + SCALE_WIDTH * self.count].view(torch.bfloat16).unsqueeze(1)


class IntegerWire(Wire):
    """A :class:`Wire` of integers; vectors (biases, norms) stay as they are.

    They lie on a symmetric grid (:mod:`zobench.engine.weights.grid`) and are unpacked as code times scale, rounded once
    to the model's dtype. What rests is never written again (:class:`zobench.runspec.kinds.WireKind`).
    """

    def __init__(self, kind: WireKind) -> None:
        super().__init__()
        self._kind = kind

    def _unpack(self, part: Grid, slot: Tensor, master: Tensor) -> None:
        flat = part.field.view(master).view(-1)
        integers.decode(part.packed(slot), part.scale(slot), flat, self._kind.bits, self._kind.group)

    def _pack(self, part: Grid, master: Tensor, slot: Tensor) -> None:
        flat = part.field.view(master).view(-1)
        integers.encode(flat, part.packed(slot), part.scale(slot), self._kind.bits, self._kind.group)

    def _laid_out(self, unit: Unit) -> WireLayout:
        grids, plain, offset, kind = list[Grid](), list[PackedTensor](), 0, self._kind
        for item in unit.fields:
            if item.is_parameter and len(item.shape) >= 2:
                count = -(-item.shape.numel() // kind.group)
                scales = offset + aligned(count * kind.group * kind.bits // 8)
                grids.append(Grid(item, kind, offset, scales, count))
                offset = scales + aligned(SCALE_WIDTH * count)
            else:
                plain.append(PackedTensor(item, item.dtype, offset))
                offset += aligned(item.nbytes)
        return WireLayout(plain, grids, round_up(offset))


@dataclass(frozen=True, slots=True)
class Placed:
    """A tensor that rests as files have it: what they say of it, and where each of its pieces is in a slot."""

    field: Field
    stored: Stored
    targets: list[int]


class StoredWire(Wire):
    """A :class:`Wire` that decodes units whose tensors rest as files have them; they are never
    written (writeback_every=inf)."""

    def __init__(self, weights: Weights) -> None:
        super().__init__()
        self._weights = weights

    def extents(self, unit: Unit) -> list[Extent]:
        """Where the unit's bytes are in the files, and in a slot."""
        return [
            Extent(piece.file, piece.offset, piece.nbytes, target)
            for part in self.layout(unit).parts
            for piece, target in zip(part.stored.pieces, part.targets, strict=True)
        ]

    def _unpack(self, part: Placed, slot: Tensor, master: Tensor) -> None:
        pieces = zip(part.stored.pieces, part.targets, strict=True)
        part.stored.write([slot[target : target + piece.nbytes] for piece, target in pieces], part.field.view(master))

    def _pack(self, part: Placed, master: Tensor, slot: Tensor) -> None:
        raise AssertionError(f"{part.field.name} rests in a checkpoint, which is only read")

    def _laid_out(self, unit: Unit) -> WireLayout:
        placed, offset = [], 0
        for item in unit.fields:
            stored = self._stored(item)
            targets = []
            for piece in stored.pieces:
                targets.append(offset)
                offset += aligned(piece.nbytes)
            placed.append(Placed(item, stored, targets))
        return WireLayout([], placed, round_up(offset))

    def _stored(self, item: Field) -> Stored:
        if not item.is_parameter:
            raise ValueError(f"`tier=checkpoint` needs blocks without buffers, but {item.name} is one; use tier=disk")
        stored = self._weights.stored(item.name)
        assert stored is not None, f"{item.name} is in no file"
        if item.is_part:
            raise ValueError(
                f"`tier=checkpoint` of quantised weights needs whole tensors, but {item.name} is cut into tiles; use "
                "granularity=block or linear"
            )
        return stored


def aligned(nbytes: int) -> int:
    """``nbytes`` rounded up, so that a tensor can begin after them."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
