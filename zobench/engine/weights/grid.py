"""Symmetric integer grids: groups of values as whole numbers of 8 or 4 bits with one scale each.

A group of values w has the scale s = max |w| / L, L = 127 or 7, rounded to bfloat16, and the codes q = round(w / s) in
[-L, L]: zero stays zero and no offset is stored. What a group stands for is q * s.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

CHUNK_ELEMENTS = 1 << 18
"""Elements that are packed or unpacked at once: their temporaries stay in a core's cache."""
CUDA_CHUNK_ELEMENTS = 1 << 24
"""The elements at once on a CUDA device, where a launch costs more than the memory."""


def encode(values: Tensor, codes: Tensor, scales: Tensor, bits: int, group: int) -> None:
    """Writes the codes of ``values``, floats (n,), into ``codes``, a group in each row: int8, one a byte, or uint8 as
    :func:`packed` has them; and their scales into ``scales`` (groups, 1). Zeros fill up a short last group."""
    for chunk, part in _chunks(values, group):
        padded = torch.zeros(part.numel() + -part.numel() % group, dtype=torch.float32, device=values.device)
        padded[: part.numel()].copy_(part)
        whole, scale = rounded(padded.view(-1, group), bits)
        codes[chunk].copy_(whole if codes.dtype == torch.int8 else packed(whole, bits))
        scales[chunk].copy_(scale)


def decode(codes: Tensor, scales: Tensor, out: Tensor, bits: int, group: int) -> None:
    """The inverse of :func:`encode`: code times scale, each rounded once to the dtype of ``out`` (n,)."""
    for chunk, part in _chunks(out, group):
        whole = codes[chunk].float() if codes.dtype == torch.int8 else unpacked(codes[chunk], bits)
        part.copy_(whole.mul_(scales[chunk].float()).view(-1)[: part.numel()])


def _chunks(flat: Tensor, group: int) -> Iterator[tuple[slice, Tensor]]:
    """Some groups at a time of a matrix that lies in ``flat``, and their values."""
    size = max(1, (CUDA_CHUNK_ELEMENTS if flat.is_cuda else CHUNK_ELEMENTS) // group)
    for first in range(0, -(-flat.numel() // group), size):
        yield slice(first, first + size), flat[first * group : (first + size) * group]


def rounded(values: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """(codes, float32 whole numbers (groups, group); scales, bfloat16 (groups, 1)) of float32 ``values`` (groups,
    group), which are overwritten."""
    largest = 2 ** (bits - 1) - 1
    scales = values.abs().amax(dim=1, keepdim=True).div_(largest).to(torch.bfloat16)
    steps = scales.float().clamp_(min=torch.finfo(torch.bfloat16).tiny)
    return values.div_(steps).round_().clamp_(-largest, largest), scales


def packed(codes: Tensor, bits: int) -> Tensor:
    """Whole numbers, float32 (groups, group), as bytes, uint8 (groups, group * bits / 8). Two of 4 bits share a byte:
    the group's first half is in the low bits, its second half in the high ones."""
    if bits == 8:
        return codes.to(torch.int8).view(torch.uint8)
    low, high = codes.add(8).to(torch.uint8).chunk(2, dim=1)
    return low | (high << 4)


def unpacked(stored: Tensor, bits: int) -> Tensor:
    """The inverse of :func:`packed`."""
    if bits == 8:
        return stored.view(torch.int8).to(torch.float32)
    return torch.cat([stored & 15, stored >> 4], dim=1).to(torch.float32).sub_(8)
