"""What a file about this machine's device needs beside what a sweep calibrates: attention, normals in 16 bits, and what
a kernel costs beside its work."""

from __future__ import annotations

from typing import Any

from zobench.measure.calibrate import MIB, best_seconds, calibrate

HEADS, WIDTH, TOKENS = 16, 64, 1024
KERNELS = 200
"""Tiny kernels that are issued in a row, so that what issues the first of them counts little."""


def card(device: str, seconds: float = 12.0) -> dict[str, Any]:
    """The rates of ``device`` in about ``seconds`` seconds: those of ``calibrate``, and

    ``attention_flops_per_second`` by dtype, of the fused kernel; ``narrow_normals``, 16-bit normals drawn in the time
    of one in 32 bits; ``kernel_seconds``.
    """
    rates, part = calibrate(device, seconds * 0.6), seconds * 0.05
    kinds = ("fp32", "bf16" if device == "cpu" else "fp16")
    attention = {kind: attention_rate(device, kind, part) for kind in kinds}
    wide, narrow = (_normals_seconds(device, kind, part) for kind in kinds)
    kernel = _kernel_seconds(device, part)
    return {
        **rates, "attention_flops_per_second": attention, "narrow_normals": wide / narrow, "kernel_seconds": kernel
    }  # fmt: skip


def attention_rate(device: str, kind: str, budget: float) -> float:
    """FLOP/s of causal attention, of which half the products are needed, as torch's fused kernel computes it."""
    import torch

    dtype = _torch(kind)
    query = torch.full((1, HEADS, TOKENS, WIDTH), 0.1, dtype=dtype, device=device)
    attend = torch.nn.functional.scaled_dot_product_attention
    once = best_seconds(device, lambda: attend(query, query, query, is_causal=True), budget)
    return 2 * HEADS * TOKENS**2 * WIDTH / once


def _normals_seconds(device: str, kind: str, budget: float) -> float:
    import torch

    generator = torch.Generator(device).manual_seed(0)
    space = torch.empty(2 * MIB, dtype=_torch(kind), device=device)
    return best_seconds(device, lambda: space.normal_(generator=generator), budget)


def _kernel_seconds(device: str, budget: float) -> float:
    import torch

    one = torch.zeros(1, device=device)

    def many() -> None:
        for _ in range(KERNELS):
            one.add_(1)

    return best_seconds(device, many, budget) / KERNELS


def _torch(kind: str) -> Any:
    import torch

    return {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[kind]
