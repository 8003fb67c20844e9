"""What a back end of the kernels computes, to compare it with the reference in bits."""

import importlib.util
import itertools
import math
import os
import subprocess
import sys

import pytest
import torch

from zobench.kernels import Flat, Segment, Span, Update, philox

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
STARTS = [0, 1, 2, 3, 1021, 2**32 - 6, 2**34 - 3, 2**34 + 1]
UPDATES = [
    Update(2**63 + 5, 0.7, 0.03, 0.1),
    Update(-1, -1.3, 0.02),
    Update(12345678901234 | philox.SIGNS, 3e-3, 1.5, 1e-4),
]
WORD = 0xFFFFFFFF
SMALL = {"sizes": (1, 1027), "lengths": (3,), "dtypes": [torch.float32, torch.bfloat16]}

needs_numba = pytest.mark.skipif(importlib.util.find_spec("numba") is None, reason="numba is not installed")
needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")


def any_bits(dtype, count, seed):
    """Tensors of arbitrary bit patterns: ties, subnormals, infinities, NaN."""
    size = torch.int32 if dtype == torch.float32 else torch.int16
    limits = torch.iinfo(size)
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(limits.min, limits.max + 1, (count,), generator=generator).to(size).view(dtype)


def bits(tensor):
    """The tensor's bits as integers, all NaNs made one."""
    tensor = torch.where(tensor.isnan(), torch.full_like(tensor, math.nan), tensor).cpu()
    return tensor.view(torch.int32 if tensor.dtype == torch.float32 else torch.int16)


def same(a, b):
    return torch.equal(bits(a), bits(b))


def drawn(backend, seed, span, shape, device="cpu"):
    out = torch.full(shape if isinstance(shape, tuple) else (shape,), math.nan, device=device)
    backend.normals(seed, span, out)
    return out


def moved(backend, dtype, shape, span, updates, device="cpu"):
    """Everything that ``advance`` and ``flip`` can write, from fixed inputs."""
    generator = torch.Generator().manual_seed(1)
    master, base, scratch, mirror = (torch.randn(shape, generator=generator).to(dtype).to(device) for _ in range(4))
    backend.advance(master, span, updates, None, scratch, None, 9, 0.01)
    rebased, both = master.clone(), scratch.clone()
    backend.advance(rebased, span, updates, base, both, mirror, -9, 1e-3)
    only = torch.empty_like(mirror)
    backend.advance(rebased, span, [], None, None, only, 2**40 | philox.SIGNS, 1e-3)
    flipped = both.clone()
    backend.flip(rebased, flipped)
    return master, scratch, rebased, both, mirror, only, flipped


def agree(backend, device="cpu", sizes=(1, 1023, 1025, 2050), dtypes=DTYPES, lengths=(1, 2, 5, 17)):
    """Raises unless the back end gives the reference's bits for all it can be asked for."""
    for size, start in itertools.product(sizes, STARTS):
        span = Span(WORD - 6, start)
        for seed in (7, 7 | philox.SIGNS):
            assert same(drawn(backend, seed, span, size, device), drawn(philox, seed, span, size)), (size, start, seed)
    for size, dtype, count in itertools.product(sizes[1:], dtypes, (0, 1, 3)):
        span = Span(3, 5 + count)
        got = moved(backend, dtype, (size,), span, UPDATES[:count], device)
        for which, (a, b) in enumerate(zip(got, moved(philox, dtype, (size,), span, UPDATES[:count]), strict=True)):
            assert same(a, b), (size, dtype, count, which)
    rows = torch.tensor([5, 0, 5, 2**33 + 1])
    for width, dtype in itertools.product((1, 7, 300), dtypes):
        span_on_device, there = Span(2, rows=rows.to(device)), Span(2, rows=rows)
        assert same(drawn(backend, 3, span_on_device, (4, width), device), drawn(philox, 3, there, (4, width))), width
        for a, b in zip(
            moved(backend, dtype, (4, width), span_on_device, UPDATES, device),
            moved(philox, dtype, (4, width), there, UPDATES),
            strict=True,
        ):
            assert same(a, b), (width, dtype)
    every = itertools.product(dtypes, FLAT_STARTS) if len(lengths) > 1 else zip(dtypes, FLAT_STARTS, strict=False)
    agree_flat(backend, device, list(every), lengths)
    for dtype in dtypes:
        master, scratch = any_bits(dtype, 1 << 16, 1), any_bits(dtype, 1 << 16, 2)
        expected = (2 * master.float() - scratch.float()).to(dtype)
        ours = scratch.to(device)
        backend.flip(master.to(device), ours)
        assert same(ours, expected), dtype


def laid_out(dtype, sizes, starts):
    """(tensors of these sizes at multiples of 64 bytes, every other one decayed; bytes)."""
    segments, offset = [], 128 // dtype.itemsize
    for number, (size, start) in enumerate(zip(sizes, itertools.cycle(starts), strict=False)):
        segments.append(Segment(WORD - number, start, offset, size, decayed=number % 2 == 0))
        offset += -(-size * dtype.itemsize // 64) * 64 // dtype.itemsize
    return Flat(dtype, segments), (offset + 96) * dtype.itemsize


def tensor_in(buffer, dtype, segment):
    return buffer.view(dtype)[segment.offset : segment.offset + segment.numel]


def flat_buffers(dtype, nbytes, device):
    generator = torch.Generator().manual_seed(3)
    values = [torch.randn(nbytes // dtype.itemsize, generator=generator).to(dtype) for _ in range(3)]
    return [value.view(torch.uint8).to(device) for value in values]


FLAT_STARTS = [(0,), (4, 2**34), (2**34 + 1, 0)]


def agree_flat(backend, device, kinds, lengths):
    """Raises unless a pass over tensors in a flat buffer is the reference's over each; what pads weights stays.

    ``kinds``: (dtype, the tensors' first elements)."""
    sizes = [1027, 1, 300, 4096, 15, 1024, 1, 2049, 16, 31, 64, 5, 7, 1000, 3, 2, 1]
    for (dtype, starts), length in itertools.product(kinds, lengths):
        flat, nbytes = laid_out(dtype, sizes[:length], starts)
        for updates, based, scratched in itertools.product((UPDATES[:0], UPDATES), (False, True), (False, True)):
            results = []
            for module, place in ((backend, device), (philox, "cpu")):
                master, base, scratch = flat_buffers(dtype, nbytes, place)
                arguments = {"base": base if based else None, "scratch": scratch if scratched else None}
                module.advance_flat(master, Flat(dtype, flat.segments), updates, seed=11, scale=0.125, **arguments)
                pieces = [
                    tensor_in(buffer, dtype, arguments) for buffer in (master, scratch) for arguments in flat.segments
                ]
                results.append((base, base if based else master, *pieces))
            for which, (a, b) in enumerate(zip(*results, strict=True)):
                assert same(a.view(dtype), b.view(dtype)), (dtype, length, starts, len(updates), based, which)


def interpreted(program):
    """A program of one line, ended, with Triton's kernels interpreted, in a process of its own: Triton reads the switch
    when the kernels are defined."""
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    return subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)


def run_interpreted(program):
    """Runs :func:`interpreted` and expects no fault."""
    done = interpreted(program)
    assert done.returncode == 0, done.stderr[-3000:]
