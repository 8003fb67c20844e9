"""Eight bits with a scale for each row: a unit's matrices as e4m3 and float32 scales, its vectors as they are.

On a CUDA device with Triton a whole unit is one launch (``scaled_gpu``); elsewhere torch's operations do it, tensor by
tensor. Both have the same bits on every device: all products, quotients and casts are rounded to nearest even.
"""

from __future__ import annotations

import functools
from types import ModuleType

import torch
from torch import Tensor

from zobench.kernels import compiler_remedy
from zobench.kernels.base import E4M3_MAX, Packing, WireTensor

CHUNK_ELEMENTS = 1 << 20
"""Elements that torch's operations scale at once: their temporary."""
CUDA_CHUNK_ELEMENTS = 1 << 24
"""The elements at once on a CUDA device, where a launch costs more than the memory."""


def pack(packing: Packing, weights: Tensor, slot: Tensor) -> None:
    """Writes the tensors in ``weights`` into ``slot``, both flat and uint8. A row's scale is its largest magnitude over
    448; its values are what is nearest to its elements over the scale."""
    if (compiled := _kernels(weights.device.type)) is not None:
        compiled.pack(packing, weights, slot)
        return
    for piece in packing.pieces:
        source, values, scale = _views(packing, piece, weights, slot)
        if scale is None:
            values.copy_(source)
            continue
        torch.linalg.vector_norm(source, float("inf"), dim=1, keepdim=True, dtype=torch.float32, out=scale)
        # divided by a tensor: CUDA multiplies by the reciprocal of a number, which is rounded
        scale.div_(torch.full((), E4M3_MAX, device=scale.device)).clamp_(min=torch.finfo(torch.float32).tiny)
        rows = max(1, (CUDA_CHUNK_ELEMENTS if source.is_cuda else CHUNK_ELEMENTS) // piece.width)
        for first in range(0, piece.rows, rows):
            chunk = slice(first, first + rows)
            # clamped, because casts differ in what becomes of a value beyond the range
            values[chunk].copy_((source[chunk] / scale[chunk]).clamp_(-E4M3_MAX, E4M3_MAX))


def unpack(packing: Packing, slot: Tensor, weights: Tensor) -> None:
    """The inverse of :func:`pack`: a value times its row's scale in float32, rounded to the weights' dtype."""
    if (compiled := _kernels(weights.device.type)) is not None:
        compiled.unpack(packing, slot, weights)
        return
    for piece in packing.pieces:
        target, values, scale = _views(packing, piece, weights, slot)
        target.copy_(values)
        if scale is not None:
            target.mul_(scale)


def prepare(device: str, dtype: torch.dtype) -> None:
    """Compiles what :func:`pack` and :func:`unpack` launch there, so that no step waits for it.

    Raises ValueError if the compiler itself lacks a C compiler.
    """
    if _kernels(torch.device(device).type) is None:
        return
    weights, slot = (torch.zeros(512, dtype=torch.uint8, device=device) for _ in range(2))
    with compiler_remedy("wire=fp8", device, "wire=bf16"):
        for width in (15, 16):
            packing = Packing(dtype, [WireTensor(0, 0, 64, 1, width), WireTensor(64, 128, None, 1, width)])
            pack(packing, weights, slot)
            unpack(packing, slot, weights)


def _views(packing: Packing, piece: WireTensor, weights: Tensor, slot: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    count, size = piece.rows * piece.width, packing.dtype.itemsize
    source = weights[piece.weights : piece.weights + count * size].view(packing.dtype).view(piece.rows, piece.width)
    dtype = packing.dtype if piece.scales is None else torch.float8_e4m3fn
    values = slot[piece.values : piece.values + count * dtype.itemsize].view(dtype).view(piece.rows, piece.width)
    if piece.scales is None:
        return source, values, None
    scales = slot[piece.scales : piece.scales + 4 * piece.rows]
    return source, values, scales.view(torch.float32).unsqueeze(1)


@functools.cache
def _kernels(device: str) -> ModuleType | None:
    if device != "cuda":
        return None
    try:
        from zobench.kernels import scaled_gpu
    except ImportError:  # without Triton
        return None
    return scaled_gpu
