"""The kernels' arguments: which elements of a tensor a buffer holds, which updates are to be applied to it, and where
the tensors of a unit in scaled eight bits lie among the weights and in a slot."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
E4M3_MAX = 448.0
PADDING = 64
"""Bytes of which a tensor in a flat buffer begins at a multiple."""


@dataclass(frozen=True, slots=True)
class Span:
    """Which elements of a tensor a flat buffer holds: elements start, start + 1, ...

    With ``rows`` (1-D int64 indices on the buffer's device) it holds whole rows: the buffer has the shape
    (len(rows), width), its row r is row ``rows[r]`` of the tensor, and ``start`` is 0. Rows may repeat.
    ``tensor_id``: 32 bits, the same wherever the tensor lives.
    """

    tensor_id: int
    start: int = 0
    rows: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Segment:
    """One tensor in a flat buffer: its elements start, start + 1, ... lie from the buffer's element ``offset`` on.

    ``decayed``: whether it gets weight decay.
    """

    tensor_id: int
    start: int
    offset: int
    numel: int
    decayed: bool = True


@dataclass(frozen=True, eq=False, slots=True)
class Flat:
    """Tensors of one ``dtype`` that lie one after another in flat buffers of bytes, each at a multiple of 64 bytes and
    padded to the next. ``tables``: what a back end keeps of it. ``end``: the byte at which the last one ends, with what
    pads it.
    """

    dtype: torch.dtype
    segments: Sequence[Segment]
    tables: dict[Any, Any] = field(default_factory=dict)
    end: int = field(init=False)

    def __post_init__(self) -> None:
        last = self.segments[-1]
        end = -(-(last.offset + last.numel) * self.dtype.itemsize // PADDING) * PADDING
        object.__setattr__(self, "end", end)

    def whole(self, buffer: Tensor) -> Tensor:
        """Returns all of them, and what pads them, in a buffer of bytes."""
        return buffer[self.segments[0].offset * self.dtype.itemsize : self.end].view(self.dtype)


@dataclass(frozen=True, slots=True)
class WireTensor:
    """A tensor of ``rows`` rows of ``width`` elements: where it begins among the weights, and its values in the slot,
    and the float32 scales of its rows in the slot, in bytes; without scales it lies there as it is."""

    weights: int
    values: int
    scales: int | None
    rows: int
    width: int


@dataclass(frozen=True, eq=False, slots=True)
class Packing:
    """The tensors of one ``dtype`` in a flat buffer of bytes and in a slot. ``tables``: what a back end keeps of it."""

    dtype: torch.dtype
    pieces: Sequence[WireTensor]
    tables: dict[Any, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Update:
    """``W -= lr * (g * z(seed) + weight_decay * W)``, each product and sum rounded to float32.

    ``step``: the training step it belongs to; ``extra``: see :class:`zobench.engine.base.Entry`; no kernel looks at
    either.
    """

    seed: int
    g: float
    lr: float
    weight_decay: float = 0.0
    step: int = 0
    extra: float = 0.0


def by_seed(normals: Callable[[int, Span, Tensor], None], seeds: Sequence[int], span: Span, out: Tensor) -> None:
    """``normals_each`` as one call for each seed."""
    for seed, row in zip(seeds, out, strict=True):
        normals(seed, span, row)


@dataclass(frozen=True, slots=True)
class Pass:
    """The work of one pass over ``elements`` weights of ``width`` bytes: normals ``drawn`` for each of them, and how
    many times each is ``moved``: read, or written to one of its places."""

    elements: int
    width: int
    drawn: int
    moved: int


def by_segment(
    advance: Callable[..., None], master: Tensor, flat: Flat, updates: Sequence[Update], base: Tensor | None,
    scratch: Tensor | None, seed: int, scale: float,
) -> None:  # fmt: skip
    """``advance_flat`` where a call costs little: one for each segment."""
    plain = [replace(update, weight_decay=0.0) for update in updates]
    size = flat.dtype.itemsize
    for segment in flat.segments:
        inside = slice(segment.offset * size, (segment.offset + segment.numel) * size)
        others = [None if tensor is None else tensor[inside].view(flat.dtype) for tensor in (base, scratch)]
        span, applied = Span(segment.tensor_id, segment.start), updates if segment.decayed else plain
        advance(master[inside].view(flat.dtype), span, applied, others[0], others[1], None, seed, scale)


def check(span: Span, first: Tensor, *others: Tensor | None) -> None:
    """Raises ValueError unless the tensors are contiguous, of one size, one supported dtype and one device."""
    form = first.numel(), first.dtype, first.device
    for tensor in (first, *others):
        if tensor is None:
            continue
        if not tensor.is_contiguous():
            raise ValueError(f"kernels need contiguous tensors, but got strides {tensor.stride()}")
        if tensor is not first and (tensor.numel(), tensor.dtype, tensor.device) != form:
            raise ValueError(f"kernels need tensors of one size, dtype and device, but got {_what(first, tensor)}")
    if first.dtype not in DTYPES:
        raise ValueError(f"kernels know {', '.join(map(str, DTYPES))}, but got {first.dtype}")
    if not 0 <= span.tensor_id < 1 << 32:
        raise ValueError(f"`0 <= tensor_id < 2**32` must hold, but got (tensor_id={span.tensor_id})")
    if span.rows is not None:
        _check_rows(span, span.rows, first)


def check_copies(master: Tensor, scratch: Tensor | None, mirror: Tensor | None) -> None:
    """Raises ValueError unless the copies fit the weights: as :func:`check` has it, or on a CPU both of 16 bits beside
    float32."""
    halved = scratch is not None and mirror is not None and scratch.dtype != torch.float32
    if scratch is None or not (halved and master.dtype == torch.float32 and master.device.type == "cpu"):
        check(Span(0), master, scratch, mirror)
        return
    check(Span(0), scratch, mirror)
    if scratch.numel() != master.numel() or scratch.device != master.device:
        raise ValueError(f"kernels need tensors of one size and device, but got {_what(master, scratch)}")


def check_flat(flat: Flat, *buffers: Tensor | None) -> None:
    """Raises ValueError unless the buffers are uint8, contiguous, on one device and hold all of ``flat``."""
    present = [buffer for buffer in buffers if buffer is not None]
    for buffer in present:
        if buffer.dtype != torch.uint8 or buffer.device != present[0].device or not buffer.is_contiguous():
            raise ValueError(f"flat buffers must be uint8, contiguous and on one device, but got {_what(*present)}")
        if buffer.numel() < flat.end:
            raise ValueError(f"flat buffers must hold {flat.end} bytes, but got {buffer.numel()}")


def _check_rows(span: Span, rows: Tensor, buffer: Tensor) -> None:
    if span.start or rows.dtype != torch.int64 or rows.ndim != 1 or rows.device != buffer.device:
        raise ValueError(
            f"`rows` must be 1-D, int64 and on {buffer.device}, with start 0, but got "
            f"(rows={tuple(rows.shape)}, {rows.dtype} on {rows.device}, start={span.start})"
        )
    if buffer.ndim < 2 or buffer.shape[0] != rows.numel():
        raise ValueError(f"a buffer of {rows.numel()} rows must be (rows, width), but got {tuple(buffer.shape)}")


def _what(*tensors: Tensor) -> str:
    return " and ".join(f"{t.numel()} {t.dtype} on {t.device}" for t in tensors)


def width_of(span: Span, buffer: Tensor) -> int:
    """Elements of the buffer that follow one another in the tensor."""
    return buffer.numel() if span.rows is None else buffer.numel() // max(span.rows.numel(), 1)


def is_pass(updates: Sequence[Update], *outputs: Tensor | None) -> bool:
    """Whether ``advance`` has anything to do."""
    return bool(updates) or any(tensor is not None for tensor in outputs)
