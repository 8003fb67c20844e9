"""``scaled`` on a CUDA device, in Triton: a program for each row of a unit, all of them in one launch.

A row is read twice, for its largest magnitude and for its quotients; the second time from the cache. e4m3 is made and
read by integer operations, which every GPU has, and with which Triton's interpreter gives the same bits.

Both kernels are given the same: ``weights``, the unit's flat buffer, as elements of its type; the slot three times, as
int8 (``values``), as float32 (``scales``) and as elements of the weights' type (``plain``, for what is not scaled);
``segments``, the table of its ``count`` tensors (see ``_table``), in which a program finds its own in ``rounds``
halvings; ``BLOCK``, elements at once; and ``ALIGNED``, 16 where all widths are multiples of it, else 1.
"""

# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call,import-untyped,import-not-found"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from zobench.kernels.base import E4M3_MAX, Packing
from zobench.kernels.gpu_base import Launcher, narrow, row_of, stream_of, to_device, widen

BLOCK = 1024
"""Elements of a row at once: eight per thread, so that 16-bit weights move in 16-byte pieces."""

_LARGEST = tl.constexpr(E4M3_MAX)
_TINY = tl.constexpr(torch.finfo(torch.float32).tiny)
_NORMAL = tl.constexpr(121 << 23)
"""The bits of 2**-6, the least normal number of e4m3."""
_SHIFT = tl.constexpr(141 << 23)
"""Those of 2**14, by whose addition a float32 is rounded to a multiple of 2**-9."""
_REBIAS = tl.constexpr((120 << 23) - 0x7FFFF)
_BEYOND = tl.constexpr(1087 << 20)
"""Those of 480, whose code, 127, is not a number."""


@triton.jit
def to_e4m3(x):
    """float32 of at most 448, or not a number -> the code as int8, rounded to nearest even."""
    bits = x.to(tl.int32, bitcast=True)
    magnitude = bits & 0x7FFFFFFF
    small = (magnitude.to(tl.float32, bitcast=True) + 16384.0).to(tl.int32, bitcast=True) - _SHIFT
    large = (magnitude - _REBIAS + ((magnitude >> 20) & 1)) >> 20
    code = tl.where(magnitude >= _BEYOND, 127, tl.where(magnitude < _NORMAL, small, large))
    return (code | ((bits >> 24) & 0x80)).to(tl.int8)


@triton.jit
def from_e4m3(code):
    """The code as int8 -> float32."""
    code = code.to(tl.int32)
    magnitude = code & 0x7F
    large = ((magnitude << 20) + (120 << 23)).to(tl.float32, bitcast=True)
    value = tl.where(magnitude < 8, magnitude.to(tl.float32) * 0.001953125, large)
    value = tl.where(magnitude == 127, float("nan"), value)
    return (value.to(tl.int32, bitcast=True) | ((code & 0x80) << 24)).to(tl.float32, bitcast=True)  # -0.0 too


@triton.jit
def _row(segments, count, rounds, ALIGNED: tl.constexpr):
    """Returns the facts of this program's row: where its weights, its values and its scale are, in elements, bytes and
    float32, the scale's below 0 if it has none; how many elements it has."""
    program = tl.program_id(0).to(tl.int64)
    segment = row_of(segments, count, rounds, program)
    row, width = program - tl.load(segment), tl.load(segment + 3)
    if ALIGNED == 16:
        width = width // 16 * 16  # tells the compiler
    weights = tl.multiple_of(tl.load(segment + 1), 16) + row * width
    scale = tl.load(segment + 4)
    return weights, tl.multiple_of(tl.load(segment + 2), 16), row, tl.where(scale < 0, scale, scale + row), width


@triton.jit(do_not_specialize=["count", "rounds"])
def _pack(weights, values, scales, plain, segments, count, rounds, BLOCK: tl.constexpr, ALIGNED: tl.constexpr):
    """One row of the weights into the slot: its scale and its codes, or its elements as they are."""
    source, target, row, at, width = _row(segments, count, rounds, ALIGNED)
    lane = tl.arange(0, BLOCK)
    if at < 0:
        for first in range(0, width, BLOCK):
            index = first + lane
            mask = index < width
            loaded = tl.load(weights + source + index, mask=mask)
            tl.store(plain + target // (weights.dtype.element_ty.primitive_bitwidth // 8) + index, loaded, mask=mask)
    else:
        most = tl.zeros([BLOCK], tl.float32)
        unknown = tl.zeros([BLOCK], tl.int32)
        for first in range(0, width, BLOCK):
            index = first + lane
            x = tl.abs(widen(tl.load(weights + source + index, mask=index < width, other=0)))
            unknown = unknown | (x != x).to(tl.int32)
            most = tl.maximum(most, x)
        largest = tl.max(most, 0)
        scale = tl.div_rn(largest, _LARGEST)
        scale = tl.where(scale < _TINY, _TINY, scale)
        scale = tl.where(tl.max(unknown, 0) != 0, float("nan"), scale)
        tl.store(scales + at, scale)
        for first in range(0, width, BLOCK):
            index = first + lane
            mask = index < width
            x = tl.div_rn(widen(tl.load(weights + source + index, mask=mask, other=0)), scale)
            x = tl.where(x > _LARGEST, _LARGEST, tl.where(x < -_LARGEST, -_LARGEST, x))
            tl.store(values + target + row * width + index, to_e4m3(x), mask=mask)


@triton.jit(do_not_specialize=["count", "rounds"])
def _unpack(weights, values, scales, plain, segments, count, rounds, BLOCK: tl.constexpr, ALIGNED: tl.constexpr):
    """One row of the slot back into the weights."""
    target, source, row, at, width = _row(segments, count, rounds, ALIGNED)
    lane = tl.arange(0, BLOCK)
    if at < 0:
        for first in range(0, width, BLOCK):
            index = first + lane
            mask = index < width
            origin = plain + source // (weights.dtype.element_ty.primitive_bitwidth // 8)
            tl.store(weights + target + index, tl.load(origin + index, mask=mask), mask=mask)
    else:
        scale = tl.load(scales + at)
        for first in range(0, width, BLOCK):
            index = first + lane
            mask = index < width
            x = from_e4m3(tl.load(values + source + row * width + index, mask=mask)) * scale
            tl.store(weights + target + index, narrow(x, weights.dtype.element_ty), mask=mask)


_packs, _unpacks = Launcher(_pack), Launcher(_unpack)


def pack(packing: Packing, weights: Tensor, slot: Tensor) -> None:
    """See ``zobench.kernels.scaled.pack``."""
    _launch(_packs, packing, weights, slot)


def unpack(packing: Packing, slot: Tensor, weights: Tensor) -> None:
    """See ``zobench.kernels.scaled.unpack``."""
    _launch(_unpacks, packing, weights, slot)


def _launch(kernel: Launcher, packing: Packing, weights: Tensor, slot: Tensor) -> None:
    table, programs, aligned = _table(packing, weights.device)
    count = len(packing.pieces)
    tensors = weights, slot.view(torch.int8), slot.view(torch.float32), slot, table
    kernel(programs, packing.dtype, tensors, (count, (count - 1).bit_length()), BLOCK, aligned)


def _table(packing: Packing, device: torch.device) -> tuple[Tensor, int, int]:
    """(the table of segments, programs, what all widths are multiples of), for use on the current stream: of each
    tensor its first program, its place among the weights, that of its values, its width, the place of its scales."""
    key = device, stream_of(device)
    if key not in packing.tables:
        rows, programs = [], 0
        for piece in packing.pieces:
            scales = -1 if piece.scales is None else piece.scales // 4
            rows.append((programs, piece.weights // packing.dtype.itemsize, piece.values, piece.width, scales, 0))
            programs += piece.rows
        aligned = 16 if all(piece.width % 16 == 0 for piece in packing.pieces) else 1
        packing.tables[key] = to_device(rows, torch.int64, device), programs, aligned
    table: tuple[Tensor, int, int] = packing.tables[key]
    return table
