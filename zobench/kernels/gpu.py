"""The kernels on a CUDA device, in Triton: one read and one write per element, normals drawn in registers.

A program draws BLOCK counters and moves the 4 * BLOCK elements that belong to them. bfloat16 weights travel as int16
and are rounded by integer operations, so that Triton's interpreter, which truncates, gives the same bits. Nothing is
fused (``enable_fp_fusion=False``): see ``philox``. 64-bit numbers travel as two int32 words, so that no value of theirs
compiles a kernel anew. No call waits for the device.
"""

# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call,import-untyped,import-not-found"

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from zobench.kernels import philox
from zobench.kernels.base import Span, Update, width_of

BLOCK = 256
"""Counters per program: two per thread, so that 16-bit weights move in 16-byte pieces too."""
OPTIONS = {"num_warps": 4, "enable_fp_fusion": False}
FLIP_BLOCK = 2048
"""Elements per program of ``flip``."""

_ROUNDS = tl.constexpr(philox.ROUNDS)
_MULTIPLIER0, _MULTIPLIER1 = map(tl.constexpr, philox.MULTIPLIERS)
_STEP0, _STEP1 = map(tl.constexpr, philox.KEY_STEPS)
_SPLIT = tl.constexpr(philox.SQRT_HALF_BITS)
_LN2, _ANGLE, _UNIT = tl.constexpr(philox.LN2), tl.constexpr(philox.ANGLE), tl.constexpr(2.0**-31)
_L0, _L1, _L2, _L3, _L4, _L5, _L6, _L7 = map(tl.constexpr, philox.LOG)
_S0, _S1, _S2 = map(tl.constexpr, philox.SIN)
_C0, _C1, _C2 = map(tl.constexpr, philox.COS)


@triton.jit
def _log(u):
    bits = u.to(tl.int32, bitcast=True)
    exponent = (bits - _SPLIT) >> 23
    m = (bits - (exponent << 23)).to(tl.float32, bitcast=True) - 1.0
    square = m * m
    p = (((((((m * _L7 + _L6) * m + _L5) * m + _L4) * m + _L3) * m + _L2) * m + _L1) * m + _L0) * m
    return exponent.to(tl.float32) * _LN2 + (m + (p * square - square * 0.5))


@triton.jit
def _box_muller(x, y):
    """Two normals from two words (uint32)."""
    uniform = ((x >> 1).to(tl.int32, bitcast=True).to(tl.float32) + 0.5) * _UNIT
    radius = tl.sqrt_rn(_log(uniform) * -2.0)
    y = y.to(tl.int32, bitcast=True)
    angle = (y >> 2).to(tl.float32) * _ANGLE
    square = angle * angle
    sine = angle + angle * (square * ((square * _S2 + _S1) * square + _S0))
    cosine = 1.0 - (square * 0.5 - (square * square) * ((square * _C2 + _C1) * square + _C0))
    radius = tl.where((y & 2) != 0, -radius, radius)
    swap = (y & 1) != 0
    return radius * tl.where(swap, sine, cosine), radius * tl.where(swap, cosine, sine)


@triton.jit
def _draw(block, k0, k1, tensor_id):
    """z of the counters ``block`` (int64) under the key's words: 4 normals of each counter, side by side."""
    c0, c1 = block.to(tl.uint32), (block >> 32).to(tl.uint32)
    c3 = tl.zeros_like(c0)
    c2 = c3 + tensor_id.to(tl.uint32, bitcast=True)
    k0, k1 = k0.to(tl.uint32, bitcast=True), k1.to(tl.uint32, bitcast=True)
    for _ in tl.static_range(_ROUNDS):
        high0, low0 = tl.umulhi(c0, _MULTIPLIER0), c0 * _MULTIPLIER0
        high1, low1 = tl.umulhi(c2, _MULTIPLIER1), c2 * _MULTIPLIER1
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = k0 + _STEP0, k1 + _STEP1
    z0, z1 = _box_muller(c0, c1)
    z2, z3 = _box_muller(c2, c3)
    return tl.interleave(tl.interleave(z0, z2), tl.interleave(z1, z3))


@triton.jit
def _widen(x):
    """A stored weight (float32, float16; int16: bfloat16) -> float32."""
    if x.dtype == tl.int16:
        return (x.to(tl.int32) << 16).to(tl.float32, bitcast=True)
    else:
        return x.to(tl.float32)


@triton.jit
def _narrow(x, dtype: tl.constexpr):
    """float32 -> a stored weight, rounded to nearest even."""
    if dtype == tl.int16:
        bits = x.to(tl.uint32, bitcast=True)
        rounded = (bits + (((bits >> 16) & 1) + 0x7FFF)) >> 16
        return tl.where(x == x, rounded, 0x7FC0).to(tl.uint16).to(tl.int16, bitcast=True)
    else:
        return x.to(dtype)


@triton.jit
def _where(start0, start1, width, rows, per_row, BLOCK: tl.constexpr, ALIGNED: tl.constexpr):  # noqa: N803
    """This program's counters, its places in the buffer, and which of them exist."""
    program = tl.program_id(0).to(tl.int64)
    row = program // per_row
    part = (program - row * per_row) * BLOCK
    first = (start1.to(tl.int64) << 32) | start0.to(tl.uint32, bitcast=True).to(tl.int64)
    if rows is not None:
        first = tl.load(rows + row) * width
    place = part * 4 + tl.arange(0, 4 * BLOCK) - (0 if ALIGNED else first & 3)
    return (first >> 2) + part + tl.arange(0, BLOCK), row * width + place, (place >= 0) & (place < width)


@triton.jit(do_not_specialize=["tensor_id", "start0", "start1", "key0", "key1", "per_row"])
def _normals(
    out,
    rows,
    tensor_id,
    start0,
    start1,
    key0,
    key1,
    width,
    per_row,
    BLOCK: tl.constexpr,  # noqa: N803
    ALIGNED: tl.constexpr,  # noqa: N803
):
    block, place, mask = _where(start0, start1, width, rows, per_row, BLOCK, ALIGNED)
    tl.store(out + place, _draw(block, key0, key1, tensor_id), mask=mask)


@triton.jit
def _updated(w, block, tensor_id, table):
    """One update of w; ``table``: its row of five int32: the key's words, the bits of g, lr and weight decay."""
    g = tl.load(table + 2).to(tl.float32, bitcast=True)
    lr = tl.load(table + 3).to(tl.float32, bitcast=True)
    decay = tl.load(table + 4).to(tl.float32, bitcast=True)
    step = _draw(block, tl.load(table), tl.load(table + 1), tensor_id) * g
    step = tl.where(decay != 0.0, step + w * decay, step)
    return w - step * lr


@triton.jit(do_not_specialize=["tensor_id", "start0", "start1", "key0", "key1", "per_row", "count", "scale"])
def _advance(
    master,
    base,
    scratch,
    mirror,
    rows,
    table,
    tensor_id,
    start0,
    start1,
    key0,
    key1,
    width,
    per_row,
    count,
    scale,
    BLOCK: tl.constexpr,  # noqa: N803
    ALIGNED: tl.constexpr,  # noqa: N803
):
    """Absent tensors are None; ``table`` is None without updates."""
    block, place, mask = _where(start0, start1, width, rows, per_row, BLOCK, ALIGNED)
    dtype = master.dtype.element_ty
    source = master if base is None else base
    stored = tl.load(source + place, mask=mask)
    w = _widen(stored)
    if table is not None:
        for u in range(count):
            w = _updated(w, block, tensor_id, table + 5 * u)
    if table is not None or base is not None:
        stored = _narrow(w, dtype)
        tl.store(master + place, stored, mask=mask)
        w = _widen(stored)
    if scratch is not None or mirror is not None:
        moved = _narrow(w + _draw(block, key0, key1, tensor_id) * scale, dtype)
        if scratch is not None:
            tl.store(scratch + place, moved, mask=mask)
        if mirror is not None:
            tl.store(mirror + place, _narrow(w + w - _widen(moved), dtype), mask=mask)


@triton.jit
def _flip(master, scratch, numel, BLOCK: tl.constexpr):  # noqa: N803
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = place < numel
    w = _widen(tl.load(master + place, mask=mask))
    s = _widen(tl.load(scratch + place, mask=mask))
    tl.store(scratch + place, _narrow(w + w - s, master.dtype.element_ty), mask=mask)


def _view(tensor: Tensor | None) -> Tensor | None:
    if tensor is not None and tensor.dtype == torch.bfloat16:
        return tensor.detach().view(torch.int16)
    return tensor


def _words(value: int) -> tuple[int, int]:
    """The low and the high word of 64 bits, each as an int32."""
    low, high = struct.unpack("<ii", struct.pack("<Q", value % (1 << 64)))
    return low, high


def _launch(kernel: Any, buffer: Tensor, span: Span, seed: int, tensors: Sequence[Any], *rest: Any) -> None:
    """One program per BLOCK counters of every run of elements."""
    width = width_of(span, buffer)
    aligned = width % 4 == 0 if span.rows is not None else span.start % 4 == 0
    per_row = triton.cdiv(width if aligned else width + 3, 4 * BLOCK)
    grid = (per_row * (1 if span.rows is None else span.rows.numel()),)
    place = _words(span.tensor_id)[0], *_words(span.start), *_words(seed), width, per_row
    with torch.cuda.device_of(buffer):
        kernel[grid](*tensors, *place, *rest, BLOCK=BLOCK, ALIGNED=aligned, **OPTIONS)


def normals(seed: int, span: Span, out: Tensor) -> None:
    """See ``zobench.kernels.normals``."""
    _launch(_normals, out, span, seed, (out, span.rows))


def advance(
    master: Tensor,
    span: Span,
    updates: Sequence[Update],
    base: Tensor | None,
    scratch: Tensor | None,
    mirror: Tensor | None,
    seed: int,
    scale: float,
) -> None:
    """See ``zobench.kernels.advance``."""
    tensors = [_view(tensor) for tensor in (master, base, scratch, mirror)]
    table = _table(tuple(updates), master.device, _stream(master.device)) if updates else None
    _launch(_advance, master, span, seed, (*tensors, span.rows, table), len(updates), philox.f32(scale))


def flip(master: Tensor, scratch: Tensor) -> None:
    """See ``zobench.kernels.flip``."""
    grid = (triton.cdiv(master.numel(), FLIP_BLOCK),)
    with torch.cuda.device_of(master):
        _flip[grid](_view(master), _view(scratch), master.numel(), BLOCK=FLIP_BLOCK, **OPTIONS)


def _stream(device: torch.device) -> int:
    return int(torch.cuda.current_stream(device).cuda_stream) if device.type == "cuda" else 0


def _table(updates: tuple[Update, ...], device: torch.device, stream: int) -> Tensor:
    """(updates, 5) int32 on the device, for use on ``stream``: see ``_updated``.

    Kept by the tuple's identity: a step asks with the same tuple at each launch, and hashing a long one is not free.
    """
    key = (id(updates), device, stream)
    if key not in _TABLES:
        if len(_TABLES) >= 64:
            _TABLES.pop(next(iter(_TABLES)))
        _TABLES[key] = updates, _make_table(updates, device)
    return _TABLES[key][1]


_TABLES: dict[tuple[int, torch.device, int], tuple[tuple[Update, ...], Tensor]] = {}
"""With the tuple itself, so that no other can have its identity."""


def _make_table(updates: tuple[Update, ...], device: torch.device) -> Tensor:
    rows = [(*_words(u.seed), *map(_bits, (u.g, u.lr, u.weight_decay))) for u in updates]
    host = torch.tensor(rows, dtype=torch.int32, pin_memory=device.type == "cuda")
    return host.to(device, non_blocking=True)


def _bits(value: float) -> int:
    return int(np.float32(value).view(np.int32))
