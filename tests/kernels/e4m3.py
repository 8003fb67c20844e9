"""e4m3 as the Triton kernels make and read it, beside torch's own conversions: every code, every input of 16 bits, and
the float32 around each value at which rounding turns."""

import torch
import triton
import triton.language as tl

from tests.support.kernels import any_bits
from zobench.kernels.base import E4M3_MAX
from zobench.kernels.scaled_gpu import from_e4m3, to_e4m3

BLOCK = 1 << 15


@triton.jit
def _made(source, target, count, BLOCK: tl.constexpr):  # noqa: N803
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(target + place, to_e4m3(tl.load(source + place, mask=place < count, other=0.0)), mask=place < count)


@triton.jit
def _read(source, target, count, BLOCK: tl.constexpr):  # noqa: N803
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(target + place, from_e4m3(tl.load(source + place, mask=place < count, other=0)), mask=place < count)


CODES = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn)


def inputs():
    """Float32, at most 448 as ``pack`` clamps them, or not numbers."""
    words = torch.arange(-(1 << 15), 1 << 15).to(torch.int16)
    known = CODES.float()[CODES.float().isfinite()].sort().values
    turns = torch.cat([known, (known[1:] + known[:-1]) / 2])
    around = [torch.nextafter(turns, torch.full_like(turns, side)) for side in (-torch.inf, torch.inf)]
    every = [words.view(dtype).float() for dtype in (torch.float16, torch.bfloat16)]
    return torch.cat([*every, turns, *around, any_bits(torch.float32, 1 << 17, 5)]).clamp(-E4M3_MAX, E4M3_MAX)


def launched(kernel, source, dtype):
    target = torch.empty(source.numel(), dtype=dtype)
    kernel[triton.cdiv(source.numel(), BLOCK),](source, target, source.numel(), BLOCK)
    return target


def agree():
    """Raises unless both are torch's, bit for bit; of what is not a number, that it is none."""
    x = inputs()
    made, right = launched(_made, x, torch.int8).view(torch.uint8), x.to(torch.float8_e4m3fn)
    assert torch.equal(made.view(torch.float8_e4m3fn).float().isnan(), x.isnan())
    assert torch.equal(made[~x.isnan()], right.view(torch.uint8)[~x.isnan()])
    assert len(made.unique()) == 256, "every code is made"
    read, right = launched(_read, CODES.view(torch.int8), torch.float32), CODES.float()
    assert torch.equal(read.isnan(), right.isnan())
    assert torch.equal(read.view(torch.int32)[~right.isnan()], right.view(torch.int32)[~right.isnan()])
