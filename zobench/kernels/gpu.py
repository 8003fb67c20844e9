"""The kernels on a CUDA device, in Triton: one read and one write per element, normals drawn in registers.

A program draws BLOCK counters and moves the 4 * BLOCK elements that belong to them. bfloat16 weights travel as int16
and are rounded by integer operations, so that Triton's interpreter, which truncates, gives the same bits. Nothing is
fused (``enable_fp_fusion=False``): see ``philox``. 64-bit words travel as two int32, so that no value of theirs
compiles a kernel anew. No call waits for the device.

A pass over a whole unit is one launch: each program finds its tensor in a table of segments on the device.
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
from zobench.kernels.base import Flat, Span, Update, width_of
from zobench.machine.accelerator import Accelerator

BLOCK = 256
"""Counters per program: two per thread, so that 16-bit weights move in 16-byte pieces too."""
OPTIONS = {"num_warps": 4, "enable_fp_fusion": False}
FLIP_BLOCK = 2048
"""Elements per program of ``flip``."""

KNOWN_TRITON = triton.__version__.startswith("3.7.")
"""Whether a compiled kernel is called as ``Launcher`` does; others may want other arguments."""

_COLUMNS = tl.constexpr(6)
"""Of a table of segments, int64: its first program, its place in the buffer, its first element, how many it has, its
tensor, whether weight decay is for it."""
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
def _segment(segments, count, rounds, program):
    """The row of the table of ``count`` segments that a program works on: the last that begins no later."""
    low, high = count * 0, count
    for _ in range(rounds):
        middle = (low + high) // 2
        below = tl.load(segments + middle * _COLUMNS) <= program
        low, high = tl.where(below, middle, low), tl.where(below, high, middle)
    return segments + low * _COLUMNS


@triton.jit
def _where(
    start0, start1, tensor_id, width, per_row, rows, segments, count, rounds,
    BLOCK: tl.constexpr, ALIGNED: tl.constexpr,  # noqa: N803
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
        segment = _segment(segments, count, rounds, program)
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
    place = part * 4 + tl.arange(0, 4 * BLOCK) - (0 if ALIGNED else first & 3)
    touched, exist = (place >= 0) & (place < end), place < width
    return (first >> 2) + part + tl.arange(0, BLOCK), origin + place, touched, exist, tensor_id, decayed


@triton.jit(do_not_specialize=["tensor_id", "start0", "start1", "key0", "key1", "width", "per_row"])
def _normals(
    out,
    rows,
    tensor_id,
    start0,
    start1,
    key0,
    key1,
    width: tl.int64,
    per_row,
    BLOCK: tl.constexpr,  # noqa: N803
    ALIGNED: tl.constexpr,  # noqa: N803
):
    block, place, mask, _, tensor, _ = _where(
        start0, start1, tensor_id, width, per_row, rows, None, 0, 0, BLOCK, ALIGNED
    )
    tl.store(out + place, _draw(block, key0, key1, tensor), mask=mask)


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
    master,
    base,
    scratch,
    mirror,
    rows,
    segments,
    table,
    tensor_id,
    start0,
    start1,
    key0,
    key1,
    width: tl.int64,
    per_row,
    pieces,
    rounds,
    count,
    scale,
    BLOCK: tl.constexpr,  # noqa: N803
    ALIGNED: tl.constexpr,  # noqa: N803
):
    """Absent tensors are None; ``table`` is None without updates. ``pieces``: how many segments there are."""
    block, place, mask, exist, tensor, decayed = _where(
        start0, start1, tensor_id, width, per_row, rows, segments, pieces, rounds, BLOCK, ALIGNED
    )
    dtype = master.dtype.element_ty
    source = master if base is None else base
    stored = tl.load(source + place, mask=mask)
    w = _widen(stored)
    if table is not None:
        for u in range(count):
            w = _updated(w, block, tensor, decayed, table + 5 * u)
    if table is not None or base is not None:
        kept = _narrow(w, dtype)
        if segments is not None:
            kept = tl.where(exist, kept, stored)
        stored = kept
        tl.store(master + place, stored, mask=mask)
        w = _widen(stored)
    if scratch is not None or mirror is not None:
        moved = _narrow(w + _draw(block, key0, key1, tensor) * scale, dtype)
        if scratch is not None:
            tl.store(scratch + place, moved, mask=mask)
        if mirror is not None:
            tl.store(mirror + place, _narrow(w + w - _widen(moved), dtype), mask=mask)


@triton.jit(do_not_specialize=["numel"])
def _flip(master, scratch, numel: tl.int64, BLOCK: tl.constexpr, ALIGNED: tl.constexpr):  # noqa: N803
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = place < numel // ALIGNED * ALIGNED  # tells the compiler
    w = _widen(tl.load(master + place, mask=mask))
    s = _widen(tl.load(scratch + place, mask=mask))
    tl.store(scratch + place, _narrow(w + w - s, master.dtype.element_ty), mask=mask)


class Launcher:
    """Launches a kernel. Triton looks at every argument of every call, some 50 us of Python, to find the compiled form;
    here that is kept by what forms differ in, and called as it is.

    Triton's own way is taken the first time, and always where what it gives back is not the form (its interpreter) or
    its way to call one is not known here.
    """

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        self._forms: dict[tuple[Any, ...], Any] = {}

    def __call__(
        self, programs: int, dtype: torch.dtype, tensors: Sequence[Tensor | None], numbers: Sequence[Any], *known: Any
    ) -> None:
        """``tensors`` come first among the kernel's arguments, weights with elements of ``dtype``, however they are
        typed; then ``numbers``, of which no value compiles anew, and what is ``known`` when compiling."""
        first = tensors[0]
        assert first is not None
        if first.device.type != "cuda":  # Triton's interpreter
            self._first(programs, dtype, tensors, numbers, known)
            return
        index, driver = first.device.index, _active()
        if index != driver.get_current_device():
            with Accelerator(first.device).current():
                self(programs, dtype, tensors, numbers, *known)
            return
        form = (index, dtype, *known, *[None if tensor is None else tensor.data_ptr() & 15 for tensor in tensors])
        compiled = self._forms.get(form)
        if compiled is None:
            compiled = self._first(programs, dtype, tensors, numbers, known)
            if KNOWN_TRITON:
                self._forms[form] = compiled
            return
        stream = driver.get_current_stream(index)
        if _hooks.launch_enter_hook.calls or _hooks.launch_exit_hook.calls:  # a profiler's
            compiled[programs, 1, 1](*tensors, *numbers, *known, stream=stream)
            return
        compiled.run(
            programs, 1, 1, stream, compiled.function, compiled.packed_metadata, None, None, None,
            *tensors, *numbers, *known,
        )  # fmt: skip

    def _first(
        self, programs: int, dtype: torch.dtype, tensors: Sequence[Tensor | None], numbers: Sequence[Any],
        known: Sequence[Any],
    ) -> Any:  # fmt: skip
        typed = [tensor if tensor is None else _typed(tensor, dtype) for tensor in tensors]
        return self._kernel[programs,](*typed, *numbers, *known, **OPTIONS)


_hooks: Any = triton.knobs.runtime if KNOWN_TRITON else None
_draws, _advances, _flips = Launcher(_normals), Launcher(_advance), Launcher(_flip)


def _active() -> Any:
    return triton.runtime.driver.active


def _typed(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Weights in a flat buffer as elements of ``dtype``, bfloat16 as it travels; a table as it is."""
    if tensor.dtype not in (torch.uint8, torch.bfloat16):
        return tensor
    return tensor.detach().view(torch.int16 if dtype == torch.bfloat16 else dtype)


def _words(value: int) -> tuple[int, int]:
    """The low and the high word of 64 bits, each as an int32."""
    low, high = struct.unpack("<ii", struct.pack("<Q", value % (1 << 64)))
    return low, high


def _programs(count: int, aligned: int) -> int:
    """For so many elements that follow one another; unaligned ones may begin and end inside a counter's four."""
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
    programs, aligned, (low, high, *place) = _of_span(span, out)
    numbers = _words(span.tensor_id)[0], low, high, *_words(seed), *place
    _draws(programs, out.dtype, (out, span.rows), numbers, BLOCK, aligned)


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
    programs, aligned, (low, high, *place) = _of_span(span, master)
    tensors = master, base, scratch, mirror, span.rows, None, _table(updates, master.device)
    numbers = _words(span.tensor_id)[0], low, high, *_words(seed), *place, 0, 0, len(updates), float(scale)
    _advances(programs, master.dtype, tensors, numbers, BLOCK, aligned)


def advance_flat(
    master: Tensor,
    flat: Flat,
    updates: Sequence[Update],
    base: Tensor | None,
    scratch: Tensor | None,
    seed: int,
    scale: float,
) -> None:
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


def _stream(device: torch.device) -> int:
    return int(_active().get_current_stream(device.index)) if device.type == "cuda" else 0


def _segments(flat: Flat, device: torch.device) -> tuple[Tensor, int, int]:
    """(the table of ``_segment``, programs, what the places are multiples of), for use on the current stream."""
    key = device, _stream(device)
    found: tuple[Tensor, int, int] | None = flat.tables.get(key)
    if found is None:
        aligned = 0 if any(segment.start % 4 for segment in flat.segments) else 4
        rows, programs = [], 0
        for own in flat.segments:
            rows.append((programs, own.offset, own.start, own.numel, own.tensor_id, int(own.decayed)))
            programs += _programs(own.numel, aligned)
        flat.tables[key] = found = _to_device(rows, torch.int64, device), programs, aligned
    return found


def _table(updates: Sequence[Update], device: torch.device) -> Tensor | None:
    """(updates, 5) int32 on the device, for use on the current stream: see ``_updated``.

    Kept by a tuple's identity: a step asks with the same tuple at each launch, and hashing a long one is not free.
    """
    if not updates:
        return None
    updates = tuple(updates)
    key = (id(updates), device, _stream(device))
    if key not in _TABLES:
        if len(_TABLES) >= 64:
            _TABLES.pop(next(iter(_TABLES)))
        rows = [(*_words(u.seed), *map(_bits, (u.g, u.lr, u.weight_decay))) for u in updates]
        _TABLES[key] = updates, _to_device(rows, torch.int32, device)
    return _TABLES[key][1]


_TABLES: dict[tuple[int, torch.device, int], tuple[tuple[Update, ...], Tensor]] = {}
"""With the tuple itself, so that no other can have its identity."""


def _to_device(rows: Sequence[Sequence[int]], dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.tensor(rows, dtype=dtype, pin_memory=device.type == "cuda").to(device, non_blocking=True)


def _bits(value: float) -> int:
    return int(np.float32(value).view(np.int32))
