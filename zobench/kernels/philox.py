"""The stream of z, its constants, and the reference: the same bits in torch operations, on any torch device.

z of element i of tensor t under a 64-bit seed: Philox4x32-10 (Salmon et al. 2011) with key (seed's low word, high
word) and counter (block's low word, high word, t, 0), block = i // 4, gives words x0..x3; Box-Muller of (x0, x1) and
of (x2, x3) gives the normals of elements 4 * block + 0..3.

Box-Muller uses float32 additions, products and square roots and integer operations, each rounded on its own: no
fused multiply-add, no libm. So the normals have the same bits wherever they are drawn. Largest error measured against
float64: 1 ulp in the radius, 3 ulp in sine and cosine.

The law of z is part of its seed. Where the seed's two highest bits are 01 (:data:`SIGNS`), z is 1 or -1, each as often:
counter (block's low word, high word, t, 1), block = i // 128, and z of element i is -1 where bit i % 32 of the word
x[i // 32 % 4] is set.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from zobench.kernels.base import Span, Update, by_seed, by_segment, width_of

CHUNK = 1 << 16
"""Elements the reference draws at once: its temporaries stay below a few MB."""


def f32(value: float) -> float:
    """``value`` rounded to float32."""
    return float(torch.tensor(value, dtype=torch.float32))


SIGNS = 1 << 62
"""The bit that marks the seed of a direction of random signs; the rest is the run's own number."""
ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
WORD = 0xFFFFFFFF

LN2 = f32(0.6931471805599453)
SQRT_HALF_BITS = 0x3F3504F3
"""float32(sqrt(1 / 2)) as an integer: exponents are split so that the mantissa lies in [sqrt(1/2), sqrt(2))."""
ANGLE = f32(0.7853981633974483 / 2**29)
"""pi / 4 per 2**29: a signed 30-bit integer becomes an angle in [-pi/4, pi/4)."""
LOG = tuple(
    map(f32, (0.3333333, -0.2500082, 0.20001227, -0.16623357, 0.14201757, -0.13160183, 0.12761578, -0.076344974))
)
"""Minimax, ascending: log(1 + m) = m - m**2 / 2 + m**3 * LOG(m) on [sqrt(1/2) - 1, sqrt(2) - 1]."""
SIN = tuple(map(f32, (-0.16666655, 0.00833216, -0.00019515282)))
"""Minimax, ascending: sin(a) = a + a**3 * SIN(a**2) on [-pi/4, pi/4]."""
COS = tuple(map(f32, (0.041666646, -0.0013887316, 2.4433157e-05)))
"""Minimax, ascending: cos(a) = 1 - a**2 / 2 + a**4 * COS(a**2) on [-pi/4, pi/4]."""


def words(counter: Sequence[Tensor], key: tuple[int, int]) -> list[Tensor]:
    """Philox4x32-10 of four counter words, each an int64 tensor of values below 2**32; returns the same form."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        high0, low0 = _multiply(c0, MULTIPLIERS[0])
        high1, low1 = _multiply(c2, MULTIPLIERS[1])
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + KEY_STEPS[0]) & WORD, (k1 + KEY_STEPS[1]) & WORD
    return [c0, c1, c2, c3]


def _multiply(a: Tensor, constant: int) -> tuple[Tensor, Tensor]:
    """High and low word of the 64-bit product, without leaving int64's 63 bits."""
    low = (a & 0xFFFF) * constant
    high = (a >> 16) * constant + (low >> 16)
    return high >> 16, ((high & 0xFFFF) << 16) | (low & 0xFFFF)


def box_muller(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Two float32 normals from two int64 words: x gives the radius, y the angle (its low 2 bits the quadrant)."""
    uniform = ((x >> 1).to(torch.float32) + 0.5) * 2.0**-31
    # through float64: torch's own float32 root on the CPU is a last place off now and then
    radius = (_log(uniform) * -2.0).to(torch.float64).sqrt().to(torch.float32)
    y = y.to(torch.int32)
    angle = (y >> 2).to(torch.float32) * ANGLE
    square = angle * angle
    sine = angle + (angle * (square * _polynomial(SIN, square)))
    cosine = 1.0 - (square * 0.5 - (square * square) * _polynomial(COS, square))
    radius = torch.where((y & 2) != 0, -radius, radius)
    swap = (y & 1) != 0
    return radius * torch.where(swap, sine, cosine), radius * torch.where(swap, cosine, sine)


def _log(u: Tensor) -> Tensor:
    bits = u.view(torch.int32)
    exponent = (bits - SQRT_HALF_BITS) >> 23
    m = (bits - (exponent << 23)).view(torch.float32) - 1.0
    square = m * m
    tail = (_polynomial(LOG, m) * m) * square - square * 0.5
    return exponent.to(torch.float32) * LN2 + (m + tail)


def _polynomial(coefficients: Sequence[float], x: Tensor) -> Tensor:
    total = x * coefficients[-1] + coefficients[-2]
    for c in coefficients[-3::-1]:
        total = total * x + c
    return total


def key_of(seed: int) -> tuple[int, int]:
    """The key's two words."""
    return seed & WORD, (seed >> 32) & WORD


def z_of(seed: int, tensor_id: int, elements: Tensor) -> Tensor:
    """float32 z of the elements (1-D int64 indices)."""
    if seed >> 62 & 3 == 1:  # random signs
        block = elements >> 7
        zero = torch.zeros_like(block)
        x = words((block & WORD, block >> 32, zero + tensor_id, zero + 1), key_of(seed))
        word = torch.stack(x).gather(0, (elements >> 5 & 3)[None])[0]
        return 1.0 - 2.0 * (word >> (elements & 31) & 1).to(torch.float32)
    block = elements >> 2
    zero = torch.zeros_like(block)
    x = words((block & WORD, block >> 32, zero + tensor_id, zero), key_of(seed))
    normals = torch.stack((*box_muller(x[0], x[1]), *box_muller(x[2], x[3])))
    return normals.gather(0, (elements & 3)[None])[0]


def chunks(span: Span, buffer: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Ranges of the flat buffer and the tensor's elements (int64) they hold."""
    width = width_of(span, buffer)
    for begin in range(0, buffer.numel(), CHUNK):
        index = torch.arange(begin, min(begin + CHUNK, buffer.numel()), device=buffer.device)
        first = span.start if span.rows is None else (span.rows[index // width] - index // width) * width
        yield slice(begin, begin + index.numel()), index + first


def normals(seed: int, span: Span, out: Tensor) -> None:
    """See ``zobench.kernels.normals``."""
    flat = out.view(-1)
    for part, elements in chunks(span, out):
        flat[part] = z_of(seed, span.tensor_id, elements)


normals_each = functools.partial(by_seed, normals)
"""See ``zobench.kernels.normals_each``."""


def advance(
    master: Tensor, span: Span, updates: Sequence[Update], base: Tensor | None, scratch: Tensor | None,
    mirror: Tensor | None, seed: int, scale: float,
) -> None:  # fmt: skip
    """See ``zobench.kernels.advance``."""
    for part, elements in chunks(span, master):
        w = (master if base is None else base).view(-1)[part].to(torch.float32)
        for u in updates:
            w = _updated(w, u, z_of(u.seed, span.tensor_id, elements))
        rounded = w.to(master.dtype)
        if updates or base is not None:
            master.view(-1)[part] = rounded
        if scratch is None and mirror is None:
            continue
        m = rounded.to(torch.float32)
        s = (m + z_of(seed, span.tensor_id, elements) * f32(scale)).to(master.dtype)
        if scratch is not None:
            scratch.view(-1)[part] = s.to(scratch.dtype)
        if mirror is not None:
            mirror.view(-1)[part] = (m * 2.0 - s.to(torch.float32)).to(mirror.dtype)


advance_flat = functools.partial(by_segment, advance)
"""See ``zobench.kernels.advance_flat``."""


def _updated(w: Tensor, u: Update, z: Tensor) -> Tensor:
    step = z * f32(u.g)
    if f32(u.weight_decay):
        step = step + w * f32(u.weight_decay)
    return w - step * f32(u.lr)


def flip(master: Tensor, scratch: Tensor) -> None:
    """See ``zobench.kernels.flip``."""
    whole, half = master.view(-1), scratch.view(-1)
    for begin in range(0, master.numel(), CHUNK):
        part = slice(begin, begin + CHUNK)
        half[part] = (whole[part].to(torch.float32) * 2.0 - half[part].to(torch.float32)).to(master.dtype)
