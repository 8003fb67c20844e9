"""The kernels on a CUDA device, in Triton: one read and one write per element, normals drawn in registers.

A program draws BLOCK counters (of normal numbers) and moves the 4 * BLOCK elements that belong to them. 64-bit words
travel as two int32, so that no value of theirs compiles a kernel anew. No call waits for the device.

A pass over a whole unit is one launch: each program finds its tensor in a table of segments on the device, whose six
columns are its first program, its place in the buffer, its first element, how many it has, its tensor, and whether
weight decay is for it. What the kernels are given, all by the same names:

- ``master``, ``base``, ``scratch``, ``mirror``, ``out``: buffers, None where a call has none (see ``kernels.advance``);
- ``rows`` and ``segments``: which elements they hold, at most one of the two: rows of one tensor (see ``Span``) of
  ``width`` elements, ``per_row`` programs each, or the table of ``pieces`` segments, found in ``rounds`` halvings; with
  neither, ``width`` elements of one tensor from the element of the words ``start0``, ``start1`` on;
- ``tensor_id``, ``key0`` and ``key1``: whose z is drawn, and under which seed's words;
- ``table``: the ``count`` updates, None without any; ``scale``: that of the point;
- ``BLOCK``; ``ALIGNED``: 16 where the width is a multiple of it and the first element of 4, 4 where the first element
  alone is, else 0.
"""

# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call,import-untyped,import-not-found"

from __future__ import annotations

import functools
import struct
from collections.abc import Sequence

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from zobench.kernels import philox
from zobench.kernels.base import Flat, Span, Update, by_seed, width_of
from zobench.kernels.gpu_base import Launcher, narrow, row_of, stream_of, to_device, widen

BLOCK = 256
"""Counters per program: two per thread, so that 16-bit weights move in 16-byte pieces too."""
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
def _sign(word):
    """-1 where the lowest bit of a word (uint32) is set, else 1."""
    return 1.0 - 2.0 * (word & 1).to(tl.int32, bitcast=True).to(tl.float32)


@triton.jit
def _draw(block, k0, k1, tensor_id):
    """z of the elements 4 * ``block`` (int64) and the three after it, side by side, under the key's words: 4 normals of
    the counter ``block``, or with the law of signs 4 bits of the counter ``block >> 5``."""
    k0, k1 = k0.to(tl.uint32, bitcast=True), k1.to(tl.uint32, bitcast=True)
    signs = (k1 >> 30) == 1
    counter = tl.where(signs, block >> 5, block)
    c0, c1 = counter.to(tl.uint32), (counter >> 32).to(tl.uint32)
    c2 = tl.zeros_like(c0) + tensor_id.to(tl.uint32, bitcast=True)
    c3 = tl.zeros_like(c0) + signs.to(tl.uint32)
    for _ in tl.static_range(_ROUNDS):
        high0, low0 = tl.umulhi(c0, _MULTIPLIER0), c0 * _MULTIPLIER0
        high1, low1 = tl.umulhi(c2, _MULTIPLIER1), c2 * _MULTIPLIER1
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = k0 + _STEP0, k1 + _STEP1
    if signs:
        part = (block >> 3).to(tl.int32) & 3
        word = tl.where(part < 2, tl.where(part == 0, c0, c1), tl.where(part == 2, c2, c3))
        word = word >> ((block & 7) << 2).to(tl.uint32)
        z0, z1, z2, z3 = _sign(word), _sign(word >> 1), _sign(word >> 2), _sign(word >> 3)
    else:
        z0, z1 = _box_muller(c0, c1)
        z2, z3 = _box_muller(c2, c3)
    return tl.interleave(tl.interleave(z0, z2), tl.interleave(z1, z3))


@triton.jit
def _where(
    start0, start1, tensor_id, width, per_row, rows, segments, count, rounds,
    BLOCK: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    """This program's counters, its places in the buffer, which of them it may touch and which exist; its tensor, and
    whether weight decay is for it.

    What may be touched ends at a multiple of 16, so that a warp moves wide pieces: in what pads a segment, which is
    written as it was read.
    """
    program = tl.program_id(0).to(tl.int64)
    if ALIGNED == 16:
        width = width // 16 * 16  # tells the compiler
    end = width
    decayed = 1
    if segments is not None:
        segment = row_of(segments, count, rounds, program)
        program -= tl.load(segment)
        origin, first = tl.multiple_of(tl.load(segment + 1), 16), tl.load(segment + 2)
        width, tensor_id = tl.load(segment + 3), tl.load(segment + 4).to(tl.int32)
        end = (width + 15) // 16 * 16
        decayed = tl.load(segment + 5)
    elif rows is not None:
        row = program // per_row
        program -= row * per_row
        origin, first = row * width, tl.load(rows + row) * width
    else:
        origin = program * 0
        first = (start1.to(tl.int64) << 32) | start0.to(tl.uint32, bitcast=True).to(tl.int64)
    part = program * BLOCK
    index = part * 4 + tl.arange(0, 4 * BLOCK) - (0 if ALIGNED else first & 3)
    touched, exist = (index >= 0) & (index < end), index < width
    return (first >> 2) + part + tl.arange(0, BLOCK), origin + index, touched, exist, tensor_id, decayed


@triton.jit(do_not_specialize=["tensor_id", "start0", "start1", "key0", "key1", "width", "per_row"])
def _normals(
    out, rows, tensor_id, start0, start1, key0, key1, width: tl.int64, per_row, BLOCK: tl.constexpr,
    ALIGNED: tl.constexpr,
):  # fmt: skip
    block, index, mask, _, tensor, _ = _where(
        start0, start1, tensor_id, width, per_row, rows, None, 0, 0, BLOCK, ALIGNED
    )
    tl.store(out + index, _draw(block, key0, key1, tensor), mask=mask)


@triton.jit
def _updated(w, block, tensor_id, decayed, table):
    """One update of w; ``table``: its row of five int32: the key's words, the bits of g, lr and weight decay."""
    g = tl.load(table + 2).to(tl.float32, bitcast=True)
    lr = tl.load(table + 3).to(tl.float32, bitcast=True)
    decay = tl.load(table + 4).to(tl.float32, bitcast=True)
    step = _draw(block, tl.load(table), tl.load(table + 1), tensor_id) * g
    step = tl.where((decay != 0.0) & (decayed != 0), step + w * decay, step)
    return w - step * lr


@triton.jit(
    do_not_specialize=[
        "tensor_id", "start0", "start1", "key0", "key1", "width", "per_row", "pieces", "rounds", "count", "scale",
    ]
)  # fmt: skip
def _advance(
    master, base, scratch, mirror, rows, segments, table, tensor_id, start0, start1, key0, key1, width: tl.int64,
    per_row, pieces, rounds, count, scale, BLOCK: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    """master = round(updated base or master), scratch = round(master + scale z), mirror = round(2 master - scratch)."""
    block, index, mask, exist, tensor, decayed = _where(
        start0, start1, tensor_id, width, per_row, rows, segments, pieces, rounds, BLOCK, ALIGNED
    )
    dtype = master.dtype.element_ty
    source = master if base is None else base
    w = widen(tl.load(source + index, mask=mask))
    if table is not None:
        for u in range(count):
            updated = _updated(w, block, tensor, decayed, table + 5 * u)
            w = updated if segments is None else tl.where(exist, updated, w)
    if table is not None or base is not None:
        stored = narrow(w, dtype)
        tl.store(master + index, stored, mask=mask)
        w = widen(stored)
    if scratch is not None or mirror is not None:
        moved = narrow(w + _draw(block, key0, key1, tensor) * scale, dtype)
        if scratch is not None:
            tl.store(scratch + index, moved, mask=mask)
        if mirror is not None:
            tl.store(mirror + index, narrow(w + w - widen(moved), dtype), mask=mask)


@triton.jit(do_not_specialize=["numel"])
def _flip(master, scratch, numel: tl.int64, BLOCK: tl.constexpr, ALIGNED: tl.constexpr):
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = index < numel // ALIGNED * ALIGNED  # tells the compiler
    w = widen(tl.load(master + index, mask=mask))
    s = widen(tl.load(scratch + index, mask=mask))
    tl.store(scratch + index, narrow(w + w - s, master.dtype.element_ty), mask=mask)


_draws, _advances, _flips = Launcher(_normals), Launcher(_advance), Launcher(_flip)


def _words(value: int) -> tuple[int, int]:
    """The low and the high word of 64 bits, each as an int32."""
    low, high = struct.unpack("<ii", struct.pack("<Q", value % (1 << 64)))
    return low, high


def _programs(count: int, aligned: int) -> int:
    """Returns how many programs so many elements that follow one another need; unaligned ones may begin and end inside
    a counter's four."""
    return -(-(count if aligned else count + 3) // (4 * BLOCK))


def _of_span(span: Span, buffer: Tensor) -> tuple[int, int, tuple[int, ...]]:
    """(programs, what the places are multiples of, the kernel's numbers): one program per BLOCK counters of every run
    of elements."""
    width = width_of(span, buffer)
    if span.rows is None:
        aligned = 0 if span.start % 4 else 4 if width % 16 else 16
    else:
        aligned = 16 if width % 16 == 0 else 0 if width % 4 else 4
    per_row = _programs(width, aligned)
    return per_row * (1 if span.rows is None else span.rows.numel()), aligned, (*_words(span.start), width, per_row)


def normals(seed: int, span: Span, out: Tensor) -> None:
    """See ``zobench.kernels.normals``."""
    programs, aligned, (low, high, *layout) = _of_span(span, out)
    numbers = _words(span.tensor_id)[0], low, high, *_words(seed), *layout
    _draws(programs, out.dtype, (out, span.rows), numbers, BLOCK, aligned)


normals_each = functools.partial(by_seed, normals)
"""See ``zobench.kernels.normals_each``."""


def advance(
    master: Tensor, span: Span, updates: Sequence[Update], base: Tensor | None, scratch: Tensor | None,
    mirror: Tensor | None, seed: int, scale: float,
) -> None:  # fmt: skip
    """See ``zobench.kernels.advance``."""
    programs, aligned, (low, high, *layout) = _of_span(span, master)
    tensors = master, base, scratch, mirror, span.rows, None, _table(updates, master.device)
    numbers = _words(span.tensor_id)[0], low, high, *_words(seed), *layout, 0, 0, len(updates), float(scale)
    _advances(programs, master.dtype, tensors, numbers, BLOCK, aligned)


def advance_flat(
    master: Tensor, flat: Flat, updates: Sequence[Update], base: Tensor | None, scratch: Tensor | None, seed: int,
    scale: float,
) -> None:  # fmt: skip
    """See ``zobench.kernels.advance_flat``."""
    pieces, programs, aligned = _segments(flat, master.device)
    tensors = master, base, scratch, None, None, pieces, _table(updates, master.device)
    count = len(flat.segments)
    numbers = 0, 0, 0, *_words(seed), 0, 0, count, (count - 1).bit_length(), len(updates), float(scale)
    _advances(programs, flat.dtype, tensors, numbers, BLOCK, aligned)


def flip(master: Tensor, scratch: Tensor) -> None:
    """See ``zobench.kernels.flip``."""
    numel = master.numel()
    _flips(-(-numel // FLIP_BLOCK), master.dtype, (master, scratch), (numel,), FLIP_BLOCK, 1 if numel % 16 else 16)


def _segments(flat: Flat, device: torch.device) -> tuple[Tensor, int, int]:
    """(the table of segments, programs, what the places are multiples of), for use on the current stream."""
    key = device, stream_of(device)
    table: tuple[Tensor, int, int] | None = flat.tables.get(key)
    if table is None:
        aligned = 0 if any(segment.start % 4 for segment in flat.segments) else 4
        rows, programs = [], 0
        for segment in flat.segments:
            rows.append(
                (programs, segment.offset, segment.start, segment.numel, segment.tensor_id, int(segment.decayed))
            )
            programs += _programs(segment.numel, aligned)
        flat.tables[key] = table = to_device(rows, torch.int64, device), programs, aligned
    return table


def _table(updates: Sequence[Update], device: torch.device) -> Tensor | None:
    """(updates, 5) int32 on the device, for use on the current stream: see ``_updated``.

    Kept by a tuple's identity: a step asks with the same tuple at each launch, and hashing a long one is not free.
    """
    if not updates:
        return None
    updates = tuple(updates)
    key = (id(updates), device, stream_of(device))
    if key not in _TABLES:
        if len(_TABLES) >= 64:
            _TABLES.pop(next(iter(_TABLES)))
        rows = [(*_words(u.seed), *map(_bits, (u.g, u.lr, u.weight_decay))) for u in updates]
        _TABLES[key] = updates, to_device(rows, torch.int32, device)
    return _TABLES[key][1]


_TABLES: dict[tuple[int, torch.device, int], tuple[tuple[Update, ...], Tensor]] = {}
"""With the tuple itself, so that no other can have its identity."""


def _bits(value: float) -> int:
    return int(np.float32(value).view(np.int32))
