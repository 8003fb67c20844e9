"""Rates of what a step does beside products, by the engine's own operators: attention, passes over activations and
logits, noise, each in 32 and in 16 bits, and what a kernel costs beside its work."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from zobench import kernels
from zobench.machine.accelerator import Accelerator

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
HEADS, HEAD_WIDTH = 4, 64
TOKENS, WIDTH = 1024, 1024
"""Of the activations: as large as those of a small model, whose memory is new at each pass as theirs is."""
LOGITS = 1 << 22
"""Numbers of a piece of the logits: 16 MiB in float32, half of what the engine holds at once."""
NOISE = 1 << 20
ROW_SECONDS, ROW_RUNS = 2e-3, 100
"""A GPU's runs are issued in rows of about so long, of at most so many."""
KERNELS = 200
"""Tiny kernels that are issued in a row, so that what issues the first of them counts little."""


def best_seconds(device: str, action: Callable[[], Any], budget: float) -> float:
    """Seconds of the fastest of several runs after a first one; at least one run, then as many as the budget holds.

    On a GPU a run is one of a row, issued while those before it are computed, as a step issues its kernels: what the
    host takes to launch a lone one and to wait for it, 20 to 30 us, would count as the time of an operator of 10.
    """
    is_cuda = device.startswith("cuda")

    def row(runs: int) -> float:
        began = time.perf_counter()
        for _ in range(runs):
            action()
        if is_cuda:
            Accelerator(device).synchronize()
        return (time.perf_counter() - began) / runs

    row(1)
    end = time.perf_counter() + budget
    best = row(1)
    runs = max(1, min(ROW_RUNS, int(ROW_SECONDS / best))) if is_cuda else 1
    while runs > 1 or time.perf_counter() < end:
        best = min(best, row(runs))
        if time.perf_counter() >= end:
            break
    return best


def operator_rates(device: str, budget: float) -> dict[str, Any]:
    """Rates of ``device`` in about ``budget`` seconds: ``operators_per_second``, by dtype ``attention`` in FLOP/s,
    ``passes`` and ``losses`` in bytes/s, ``normals`` of torch's generator and ``fused`` draws with both writes in
    elements/s; and ``kernel_seconds``."""
    part = budget / (5 * len(DTYPES) + 1)
    measures = {
        "attention": attention_rate, "passes": pass_rate, "losses": loss_rate, "normals": normal_rate,
        "fused": fused_rate,
    }  # fmt: skip
    rates = {kind: {name: rate(device, kind, part) for name, rate in measures.items()} for kind in DTYPES}
    return {"operators_per_second": rates, "kernel_seconds": kernel_seconds(device, part)}


def attention_rate(device: str, kind: str, budget: float) -> float:
    """FLOP/s of causal attention, of which half the products are needed, as torch's fused kernel computes it."""
    heads, tokens = (8 * HEADS, 2 * TOKENS) if device.startswith("cuda") else (HEADS, TOKENS)
    query = torch.full((1, heads, tokens, HEAD_WIDTH), 0.1, dtype=DTYPES[kind], device=device)
    attend = torch.nn.functional.scaled_dot_product_attention
    once = best_seconds(device, lambda: attend(query, query, query, is_causal=True), budget)
    return 2 * heads * tokens**2 * HEAD_WIDTH / once


def pass_rate(device: str, kind: str, budget: float) -> float:
    """Bytes/s, read and written, of what a block does with its activations: a norm, an activation, a sum. On a GPU
    they are larger than its cache: weights are passed over at this rate too."""
    tokens = TOKENS * (32 if device.startswith("cuda") else 1)
    states = torch.full((tokens, WIDTH), 0.5, dtype=DTYPES[kind], device=device)
    scale = torch.ones(WIDTH, dtype=DTYPES[kind], device=device)

    def block() -> Any:
        normed = torch.nn.functional.layer_norm(states, (WIDTH,), scale, scale)
        return states + torch.relu(normed)

    once = best_seconds(device, block, budget)
    return (2 + 2 + 3) * states.numel() * states.element_size() / once


def loss_rate(device: str, kind: str, budget: float) -> float:
    """Bytes/s of a loss from logits of ``kind``: their cast to float32, a softmax."""
    rows = LOGITS // (1 << 15)
    logits = torch.full((rows, LOGITS // rows), 0.5, dtype=DTYPES[kind], device=device)
    once = best_seconds(device, lambda: torch.log_softmax(logits.float(), dim=-1), budget)
    cast = logits.element_size() + 4 if logits.element_size() < 4 else 0
    return logits.numel() * (8 + cast) / once


def normal_rate(device: str, kind: str, budget: float) -> float:
    """Standard normals per second that a torch generator writes."""
    generator = torch.Generator(device).manual_seed(0)
    space = torch.empty(_elements(device), dtype=DTYPES[kind], device=device)
    return space.numel() / best_seconds(device, lambda: space.normal_(generator=generator), budget)


def fused_rate(device: str, kind: str, budget: float) -> float:
    """Elements per second of the counter stream's pass that draws z and writes W + c z."""
    kernels.prepare(device)
    span = kernels.Span(0)
    weights, scratch = (torch.zeros(_elements(device), dtype=DTYPES[kind], device=device) for _ in range(2))

    def draw() -> None:
        kernels.advance(weights, span, [], scratch=scratch, seed=1, scale=1e-3)

    return weights.numel() / best_seconds(device, draw, budget)


def kernel_seconds(device: str, budget: float) -> float:
    """Seconds that the smallest operator takes."""
    number = torch.zeros(1, device=device)

    def many() -> None:
        for _ in range(KERNELS):
            number.add_(1)

    return best_seconds(device, many, budget) / KERNELS


def _elements(device: str) -> int:
    return NOISE * (64 if device.startswith("cuda") else 1)
