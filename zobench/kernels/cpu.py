"""The kernels on the CPU: numba loops over cache-sized tiles, spread over threads that hold no lock.

16-bit weights travel as integers, since numba has no such floats: uint16 is bfloat16, int16 is float16.
numba's cache follows this file's time stamp alone: touch it after changing ``TILE`` or the constants in ``philox``.
"""

# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call,import-untyped,import-not-found"

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from llvmlite import ir
from numba import extending, njit, types
from torch import Tensor

from zobench.kernels import philox
from zobench.kernels.base import Span, Update, by_segment, width_of
from zobench.kernels.cpu_threads import TILE, spread

BLOCKS = TILE // 4

_VIEWS = {torch.float32: torch.float32, torch.float16: torch.int16, torch.bfloat16: torch.uint16}

_intrinsic: Any = extending.intrinsic
_compiled = njit(nogil=True, cache=True, error_model="numpy")
_inlined = njit(nogil=True, cache=True, error_model="numpy", inline="always")

_MULTIPLIER0, _MULTIPLIER1 = map(np.uint64, philox.MULTIPLIERS)
_STEP0, _STEP1 = map(np.uint64, philox.KEY_STEPS)
_WORD = np.uint64(philox.WORD)
_SHIFT = np.uint64(32)
_ROUNDS = philox.ROUNDS
_SPLIT = np.int32(philox.SQRT_HALF_BITS)
_LN2, _ANGLE = np.float32(philox.LN2), np.float32(philox.ANGLE)
_L0, _L1, _L2, _L3, _L4, _L5, _L6, _L7 = map(np.float32, philox.LOG)
_S0, _S1, _S2 = map(np.float32, philox.SIN)
_C0, _C1, _C2 = map(np.float32, philox.COS)
_ONE_BITS = np.int32(0x3F800000)
_HALF, _UNITY, _TWO, _UNIT = np.float32(0.5), np.float32(1), np.float32(2), np.float32(2.0**-31)


def _bitcast(result: Any, argument: Any, kind: ir.Type) -> tuple[Any, Any]:
    return result(argument), lambda context, builder, signature, args: builder.bitcast(args[0], kind)


@_intrinsic
def _to_bits(typing, x):
    """float32 -> the int32 of the same bits."""
    return _bitcast(types.int32, x, ir.IntType(32))


@_intrinsic
def _from_bits(typing, x):
    """int32 -> the float32 of the same bits."""
    return _bitcast(types.float32, x, ir.FloatType())


@_intrinsic
def _widen(typing, x):
    """A stored weight (float32; uint16: bfloat16; int16: float16) -> float32."""

    def generate(context, builder, signature, args):
        if x == types.float32:
            return args[0]
        if x == types.int16:
            return builder.fpext(builder.bitcast(args[0], ir.HalfType()), ir.FloatType())
        word = builder.zext(args[0], ir.IntType(32))
        return builder.bitcast(builder.shl(word, ir.Constant(ir.IntType(32), 16)), ir.FloatType())

    return types.float32(x), generate


@_intrinsic
def _narrow(typing, x, array):
    """float32 -> what ``array`` stores, rounded to nearest even."""

    def generate(context, builder, signature, args):
        if array.dtype == types.float32:
            return args[0]
        if array.dtype == types.int16:
            return builder.bitcast(builder.fptrunc(args[0], ir.HalfType()), ir.IntType(16))
        return _round_to_bfloat16(builder, args[0])

    return array.dtype(x, array), generate


@_intrinsic
def _write_signs(typing, word, piece):
    """The 32 bits of ``word`` (int32) as 32 floats, 1 or -1, to the beginning of ``piece`` (float32). It asks for
    vectors, since compilers unroll such a loop into scalars."""

    def generate(context, builder, signature, args):
        lane, lanes = ir.IntType(32), ir.VectorType(ir.IntType(32), 32)
        undefined = ir.Constant(lanes, ir.Undefined)

        def vector(values):
            return ir.Constant(lanes, [ir.Constant(lane, value) for value in values])

        first = builder.insert_element(undefined, args[0], ir.Constant(lane, 0))
        everywhere = builder.shuffle_vector(first, undefined, vector([0] * 32))
        signs = builder.shl(builder.lshr(everywhere, vector(range(32))), vector([31] * 32))
        begin = builder.bitcast(context.make_array(piece)(context, builder, args[1]).data, lanes.as_pointer())
        builder.store(builder.or_(signs, vector([int(_ONE_BITS)] * 32)), begin, align=4)
        return context.get_dummy_value()

    return types.none(types.int32, piece), generate


def _round_to_bfloat16(builder: Any, value: Any) -> Any:
    word = ir.IntType(32)
    bits = builder.bitcast(value, word)
    even = builder.and_(builder.lshr(bits, ir.Constant(word, 16)), ir.Constant(word, 1))
    rounded = builder.lshr(builder.add(bits, builder.add(even, ir.Constant(word, 0x7FFF))), ir.Constant(word, 16))
    is_nan = builder.fcmp_unordered("uno", value, value)
    return builder.trunc(builder.select(is_nan, ir.Constant(word, 0x7FC0), rounded), ir.IntType(16))


@_inlined
def _log(u):
    """log of a float32 in (0, 1]."""
    bits = _to_bits(u)
    exponent = np.int32(bits - _SPLIT) >> np.int32(23)
    m = _from_bits(np.int32(bits - (exponent << np.int32(23)))) - _UNITY
    square = m * m
    p = (((((((_L7 * m + _L6) * m + _L5) * m + _L4) * m + _L3) * m + _L2) * m + _L1) * m + _L0) * m
    return np.float32(exponent) * _LN2 + (m + (p * square - square * _HALF))


@_inlined
def _box_muller(x, y):
    """Two normals from two words (int32)."""
    uniform = (np.float32((x >> np.int32(1)) & np.int32(0x7FFFFFFF)) + _HALF) * _UNIT
    radius = math.sqrt(_log(uniform) * -_TWO)
    angle = np.float32(y >> np.int32(2)) * _ANGLE
    square = angle * angle
    sine = angle + angle * (square * ((_S2 * square + _S1) * square + _S0))
    cosine = _UNITY - (square * _HALF - (square * square) * ((_C2 * square + _C1) * square + _C0))
    if y & np.int32(2):
        radius = -radius
    if y & np.int32(1):
        sine, cosine = cosine, sine
    return radius * cosine, radius * sine


@_inlined
def _philox(key, tensor_id, block, law):
    """The four words of a counter, in the low halves of uint64."""
    c0, c1, c2, c3 = block, block >> _SHIFT, tensor_id, law
    k0, k1 = key & _WORD, key >> _SHIFT
    for _ in range(_ROUNDS):
        p0 = (c0 & _WORD) * _MULTIPLIER0
        p1 = (c2 & _WORD) * _MULTIPLIER1
        c0, c1, c2, c3 = (p1 >> _SHIFT) ^ c1 ^ k0, p1, (p0 >> _SHIFT) ^ c3 ^ k1, p0
        k0, k1 = (k0 + _STEP0) & _WORD, (k1 + _STEP1) & _WORD
    return c0, c1, c2, c3


@_inlined
def _words(key, tensor_id, first, count, law, words):
    """words[:, : count]: the four words of the counters first, first + 1, ..., int32."""
    w0, w1, w2, w3 = words[0], words[1], words[2], words[3]
    for j in range(count):
        c0, c1, c2, c3 = _philox(key, tensor_id, first + np.uint64(j), law)
        w0[j], w1[j], w2[j], w3[j] = np.int32(c0), np.int32(c1), np.int32(c2), np.int32(c3)


@_compiled
def _signs(key, tensor_id, first, blocks, words, z):
    """z[: 4 * blocks] of a law of signs, from the element 4 * first on: a bit each, 128 of a counter."""
    count, lead = 4 * blocks, np.int64(first & np.uint64(31)) * 4
    counters = (lead + count + 127) // 128
    _words(key, tensor_id, first >> np.uint64(5), (counters + 7) // 8 * 8, np.uint64(1), words)
    for number in range(counters):
        for word_index in range(4):
            word, begin = words[word_index, number], 128 * number + 32 * word_index - lead
            if begin >= 0 and begin + 32 <= count:
                _write_signs(word, z[begin : begin + 32])
            else:
                for bit in range(-begin if begin < 0 else 0, 32 if count - begin > 32 else count - begin):
                    z[begin + bit] = _from_bits(np.int32(_ONE_BITS | ((word >> np.int32(bit)) << np.int32(31))))


@_compiled
def _draw(key, tensor_id, first, blocks, words, z):
    """z[: 4 * blocks] of the counters first, first + 1, ...; ``words``: room for (4, BLOCKS) int32.

    Two loops, integers then floats, and 64-bit lanes in the first: the form that compilers vectorize best.
    """
    if key >> np.uint64(62) == np.uint64(1):
        _signs(key, tensor_id, first, blocks, words, z)
        return
    _words(key, tensor_id, first, blocks, np.uint64(0), words)
    w0, w1, w2, w3 = words[0], words[1], words[2], words[3]
    for j in range(blocks):
        z[4 * j], z[4 * j + 1] = _box_muller(w0[j], w1[j])
        z[4 * j + 2], z[4 * j + 3] = _box_muller(w2[j], w3[j])


@_inlined
def _piece(i, end, start, width, rows):
    """The run of elements at the buffer's place i that one tile can hold: (first block, skipped normals, count)."""
    row = i // width
    element = start + rows[row] * width + (i - row * width)
    lead = element & 3
    return np.uint64(element >> 2), lead, min(end - i, (row + 1) * width - i, TILE - lead)


@_inlined
def _blocks(count):
    """Blocks for ``count`` normals, rounded up to whole vectors."""
    return (count + 63) // 64 * 16


@_compiled
def _normals(begin, end, seeds, size, tensor_id, start, width, rows, out):
    """Elements ``begin`` to ``end`` of ``out`` (seeds, size), flat."""
    words, z = np.empty((4, BLOCKS), np.int32), np.empty(TILE, np.float32)
    i = begin
    while i < end:
        number = i // size
        first, lead, n = _piece(i - number * size, min(end - number * size, size), start, width, rows)
        _draw(seeds[number], tensor_id, first, _blocks(lead + n), words, z)
        out[i : i + n] = z[lead : lead + n]
        i += n


@_compiled
def _update(w, z, g, lr, weight_decay):
    """One update of w, in place."""
    if weight_decay != np.float32(0):
        for j in range(w.size):
            w[j] = w[j] - (z[j] * g + w[j] * weight_decay) * lr
    else:
        for j in range(w.size):
            w[j] = w[j] - z[j] * g * lr


@_compiled
def _load(source, w):
    for j in range(w.size):
        w[j] = _widen(source[j])


@_compiled
def _store(w, master):
    """Rounds w to ``master``, and w itself to what was stored."""
    for j in range(w.size):
        rounded = _narrow(w[j], master)
        master[j] = rounded
        w[j] = _widen(rounded)


@_compiled
def _emit(w, z, scale, scratch, mirror, is_cast):
    """scratch = w + scale * z and mirror = 2 * w - scratch; those of size 0 are absent. ``is_cast``: both are there,
    in fewer bits than w, and mirror is of the scratch before its bits were cut."""
    if is_cast:
        for j in range(w.size):
            moved = w[j] + z[j] * scale
            scratch[j] = _narrow(moved, scratch)
            mirror[j] = _narrow(w[j] + w[j] - moved, mirror)
    elif scratch.size and mirror.size:
        for j in range(w.size):
            s = _narrow(w[j] + z[j] * scale, scratch)
            scratch[j] = s
            mirror[j] = _narrow(w[j] + w[j] - _widen(s), mirror)
    elif scratch.size:
        for j in range(w.size):
            scratch[j] = _narrow(w[j] + z[j] * scale, scratch)
    else:
        for j in range(w.size):
            s = _narrow(w[j] + z[j] * scale, mirror)
            mirror[j] = _narrow(w[j] + w[j] - _widen(s), mirror)


@_compiled
def _advance(
    begin, end, seed, scale, tensor_id, start, width, rows, seeds, rates, is_cast, master, base, scratch, mirror
):  # fmt: skip
    """``rates``: (updates, 3) float32 of g, lr, weight decay. Arrays of size 0 are absent. ``is_cast``: see
    ``_emit``."""
    words, normals, weights = np.empty((4, BLOCKS), np.int32), np.empty(TILE, np.float32), np.empty(TILE, np.float32)
    source = base if base.size else master
    i = begin
    while i < end:
        first, lead, n = _piece(i, end, start, width, rows)
        blocks = _blocks(lead + n)
        w, z = weights[:n], normals[lead : lead + n]
        _load(source[i : i + n], w)
        for u in range(seeds.size):
            _draw(seeds[u], tensor_id, first, blocks, words, normals)
            _update(w, z, rates[u, 0], rates[u, 1], rates[u, 2])
        if seeds.size or base.size:
            _store(w, master[i : i + n])
        if scratch.size or mirror.size:
            _draw(seed, tensor_id, first, blocks, words, normals)
            _emit(w, z, scale, scratch[i : i + n], mirror[i : i + n], is_cast)
        i += n


@_compiled
def _flip(begin, end, master, scratch):
    m, s = master[begin:end], scratch[begin:end]
    for i in range(m.size):
        w = _widen(m[i])
        s[i] = _narrow(w + w - _widen(s[i]), scratch)


_NO_ROWS = np.zeros(1, np.int64)


def _array(tensor: Tensor) -> Any:
    return tensor.detach().view(-1).view(_VIEWS[tensor.dtype]).numpy()


def _span_numbers(span: Span, buffer: Tensor) -> tuple[Any, ...]:
    rows = _NO_ROWS if span.rows is None else span.rows.contiguous().numpy()
    return np.uint64(span.tensor_id), np.int64(span.start), np.int64(width_of(span, buffer)), rows


def normals(seed: int, span: Span, out: Tensor) -> None:
    """See ``zobench.kernels.normals``."""
    normals_each((seed,), span, out.unsqueeze(0))


def normals_each(seeds: Sequence[int], span: Span, out: Tensor) -> None:
    """See ``zobench.kernels.normals_each``."""
    keys = np.array([seed & (1 << 64) - 1 for seed in seeds], np.uint64)
    spread(_normals, out.numel(), keys, np.int64(out[0].numel()), *_span_numbers(span, out[0]), _array(out))


def advance(
    master: Tensor, span: Span, updates: Sequence[Update], base: Tensor | None, scratch: Tensor | None,
    mirror: Tensor | None, seed: int, scale: float,
) -> None:  # fmt: skip
    """See ``zobench.kernels.advance``."""
    seeds = np.array([u.seed & (1 << 64) - 1 for u in updates], np.uint64)
    rates = np.array([(u.g, u.lr, u.weight_decay) for u in updates], np.float32).reshape(-1, 3)
    absent = master.new_empty(0)
    arrays = [_array(absent if t is None else t) for t in (master, base, scratch, mirror)]
    draw = np.uint64(seed & (1 << 64) - 1), np.float32(scale)
    is_cast = scratch is not None and mirror is not None and scratch.dtype != master.dtype
    spread(_advance, master.numel(), *draw, *_span_numbers(span, master), seeds, rates, is_cast, *arrays)


advance_flat = functools.partial(by_segment, advance)
"""See ``zobench.kernels.advance_flat``."""


def flip(master: Tensor, scratch: Tensor) -> None:
    """See ``zobench.kernels.flip``."""
    spread(_flip, master.numel(), _array(master), _array(scratch))
