"""Device memory: the allocator's peak of real steps, against the ledger's on the meta device."""

from __future__ import annotations

import contextlib

import torch
from torch.nn import functional

from zobench import models
from zobench.data.batch import Batch
from zobench.engine.base import EngineConfig
from zobench.engine.core import Engine
from zobench.machine.accelerator import Accelerator
from zobench.measure.ledger import Ledger
from zobench.methods.zo_sgd import ZOSGD
from zobench.models.weights import RandomWeights
from zobench.selftest.verdict import CheckSettings, Finding, judged

MODEL, TOKENS, SLOTS = "OPT-125M", 1024, 3


def run(settings: CheckSettings) -> list[Finding]:
    """Right if they differ by less than half a slot: a slot that leaks, or one too many, is found."""
    _workspaces(settings.device)
    taken, counted = peak(settings.device), peak("meta")
    slot = 2 * models.get(MODEL).block
    both = f"the allocator's peak is {taken / 1e6:.1f} MB, the ledger's {counted / 1e6:.1f} MB"
    wrong = f"{both}: more than half a slot of {slot / 1e6:.1f} MB apart" if abs(taken - counted) > slot / 2 else ""
    return [judged("peak = ledger", wrong, both, taken_bytes=taken, counted_bytes=counted, slot_bytes=slot)]


def peak(device: str) -> int:
    """Peak bytes of two steps of an offloaded model in fp16: the allocator's, on the meta device the ledger's."""
    model, ids = models.build(MODEL, "fp16"), torch.zeros(1, TOKENS, dtype=torch.long, device=device)
    ledger = Ledger("meta") if device == "meta" else None
    tier = "pageable" if ledger else "pinned"
    config = EngineConfig(device=device, tier=tier, noise="counter", slots=SLOTS)
    real = None if ledger else Accelerator(device)
    before = real.allocated_bytes() if real else 0
    with ledger or contextlib.nullcontext(), Engine(model, config, weights=RandomWeights(model, 0)) as engine:
        method = ZOSGD(lr=1e-7)
        if real:
            real.reset_peaks()
        elif ledger:
            ledger.reset()
        for _ in range(2):
            method.step(engine, Batch(ids, ids))
        if ledger:
            return ledger.peak.nbytes
        assert real is not None
        return real.peak_bytes() - before


@torch.inference_mode()
def _workspaces(device: str) -> None:
    """What the libraries take for themselves at their first product is taken before, and is no part of a step."""
    x, weight = torch.zeros(1024, 768, device=device).half(), torch.zeros(3072, 768, device=device).half()
    functional.linear(x, weight, weight[:, 0].contiguous())
    functional.linear(x, weight)
