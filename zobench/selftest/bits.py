"""Kernel bits: noise and the passes over the weights on the device, against the reference in plain torch on the CPU."""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch
from torch import Tensor

from zobench import kernels
from zobench.kernels import Flat, Segment, Span, Update, philox
from zobench.kernels.base import DTYPES
from zobench.selftest import CheckSettings, Finding, judged

NAME = "kernel bits"
SIZES = (1, 5, 4096, 20_001)
"""Elements: less than a draw gives, odd, aligned, and several programs of a kernel."""
STARTS = (0, 3, 2**33 + 1)
"""First elements: of the tensor, of a tile that begins within a draw, and one that needs 64 bits."""


def run(settings: CheckSettings) -> list[Finding]:
    """Seed after seed until the time is used, one round at least; stops at the first bit that differs."""
    kernels.prepare(settings.device)
    end, seed, compared, wrong = time.monotonic() + settings.seconds, 0, 0, ""
    while not wrong and (seed == 0 or time.monotonic() < end):
        seed += 1
        for label, tested, reference in _round(settings.device, seed * 2654435761):
            compared += reference.numel()
            if wrong := _differs(label, tested.cpu(), reference):
                break
    right = f"{compared / 1e6:.1f} M elements of noise, passes and flips have the reference's bits"
    return [judged(NAME, wrong, right, elements=compared, seeds=seed)]


def _round(device: str, seed: int) -> Iterator[tuple[str, Tensor, Tensor]]:
    """(what it is, the device's, the reference's) for every form of a call."""
    for size in SIZES:
        for start in STARTS:
            span, tested, reference = Span(seed % 97, start), torch.zeros(size, device=device), torch.zeros(size)
            kernels.normals(seed, span, tested)
            philox.normals(seed, span, reference)
            yield f"noise of {size} elements from {start}", tested, reference
            for dtype in DTYPES:
                yield from _passes(device, seed, span, _weights(size, seed).to(dtype))
    rows = torch.tensor([5, 0, 5, 2])
    table = _weights(4 * 24, seed).view(4, 24)
    tested = table.to(device)
    kernels.advance(tested, Span(1, rows=rows.to(device)), _updates(seed), scratch=torch.empty_like(tested), seed=seed)
    philox.advance(table, Span(1, rows=rows), _updates(seed), None, torch.empty_like(table), None, seed, 0.0)
    yield "updated rows", tested, table
    for dtype in DTYPES:
        yield from _units(device, seed, dtype)


def _weights(count: int, seed: int) -> Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(seed)) * 0.02


def _updates(seed: int) -> list[Update]:
    return [Update(seed + 1, 0.7, 1e-3, 0.1), Update(seed + 2, -1.3, 1e-3, 0.0)]


def _passes(device: str, seed: int, span: Span, weights: Tensor) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Updates and both perturbed copies in one pass, and a flip of one copy into the other."""
    tested, reference = ([tensor.to(at) for tensor in (weights, weights, weights)] for at in (device, "cpu"))
    tested, reference = ([tensor.clone() for tensor in tensors] for tensors in (tested, reference))
    kernels.advance(tested[0], span, _updates(seed), scratch=tested[1], mirror=tested[2], seed=seed, scale=1e-3)
    philox.advance(reference[0], span, _updates(seed), None, reference[1], reference[2], seed, 1e-3)
    label = f"of {weights.numel()} elements from {span.start} in {str(weights.dtype).removeprefix('torch.')}"
    for name, tested_tensor, reference_tensor in zip(
        ("updated weights", "W + eps z", "W - eps z"), tested, reference, strict=True
    ):
        yield f"{name} {label}", tested_tensor, reference_tensor
    kernels.flip(tested[0], tested[1])
    yield f"flip {label}", tested[1], reference[2]


def _units(device: str, seed: int, dtype: torch.dtype) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Several tensors in one flat buffer, one of them a tile and one without weight decay, in one launch."""
    flat = Flat(dtype, [Segment(3, 0, 0, 4096), Segment(4, 3, 4096, 1000), Segment(5, 0, 5120, 640, decayed=False)])
    weights = _weights(5760, seed)
    weights[5096:5120] = 0  # what pads the second
    reference = [weights.to(dtype).view(torch.uint8).clone() for _ in range(2)]
    tested = [tensor.to(device) for tensor in reference]
    kernels.advance_flat(tested[0], flat, _updates(seed), scratch=tested[1], seed=seed, scale=1e-3)
    philox.advance_flat(reference[0], flat, _updates(seed), None, reference[1], seed, 1e-3)
    for name, tested_tensor, reference_tensor in zip(("updated weights", "W + eps z"), tested, reference, strict=True):
        for part in flat.segments:
            span = slice(part.offset, part.offset + part.numel)
            label = f"{name} of tensor {part.tensor_id} of a unit in {str(dtype).removeprefix('torch.')}"
            yield label, tested_tensor.view(dtype)[span].cpu(), reference_tensor.view(dtype)[span]


def _differs(label: str, tested: Tensor, reference: Tensor) -> str:
    """The first element whose bits differ, as a line of text, or ""."""
    bits = torch.int32 if reference.dtype == torch.float32 else torch.int16
    other = (tested.view(-1).view(bits) != reference.view(-1).view(bits)).nonzero()
    if not len(other):
        return ""
    at = int(other[0])
    got, wanted = float(tested.view(-1)[at]), float(reference.view(-1)[at])
    return f"{label}: {len(other)} of {reference.numel()} differ, first number {at}: {got!r}, and {wanted!r} is right"
