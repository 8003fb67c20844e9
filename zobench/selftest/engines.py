"""The engine: offloaded, resident, on the CPU, and with each of its lanes late, the same losses, g and weights;
and device memory: the allocator's peak of real steps, against the ledger's on the meta device."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from zobench import models
from zobench.data.batch import Batch
from zobench.engine.base import EngineConfig
from zobench.engine.core import Engine
from zobench.engine.transfers.lanes import Action, CudaLanes, Lanes, ThreadLanes
from zobench.engine.transfers.schedule import Op
from zobench.machine.accelerator import Accelerator
from zobench.measure.ledger import Ledger
from zobench.methods.zo_sgd import ZOSGD
from zobench.models.weights import RandomWeights
from zobench.selftest import CheckSettings, Finding, judged

MODEL = "opt-tiny"
STEPS, LR, EPS = 4, 1e-3, 2**-6
"""Constants of every run of this check. g is a difference of losses over 2 eps: this eps leaves it far above the
rounding of a loss."""
FORMS: dict[str, dict[str, Any]] = {
    "torch noise": {},
    "one slot": {"slots": 1},
    "allocated slots": {"reusable_memory": False},
    "counter noise": {"noise": "counter"},
    "linear layers": {"noise": "counter", "granularity": "linear"},
    "tiles": {"noise": "counter", "granularity": "tile", "slots": 2},
    "a write-back in 3 steps": {"noise": "counter", "granularity": "linear", "writeback_every": 3},
    "no write-back": {"noise": "counter", "writeback_every": "inf"},
}
"""The forms of offloading, each of which must give the resident model's numbers."""
LATE_SECONDS = 2e-3
"""Seconds by which every operation on the late lane is delayed: many times what one takes on the tiny model."""
ROUNDING = 2e-5
"""Share of a loss by which two devices may differ: products in float32 are summed in another order."""


class RunNumbers(NamedTuple):
    """The numbers of a run: the loss and g of each step, the weights afterwards, on the CPU."""

    losses: list[float]
    gradients: list[float]
    weights: dict[str, Tensor]


def trained(device: str, dtype: str = "fp32", lanes: Lanes | None = None, **changes: Any) -> RunNumbers:
    """A few steps of a tiny model with weight decay, offloaded unless ``changes`` say otherwise."""
    model, ids = models.build(MODEL, dtype), torch.arange(40).view(2, 20)
    tier = "pinned" if device.startswith("cuda") else "pageable"
    config = EngineConfig(**{"device": device, "tier": tier, **changes})
    with Engine(model, config, weights=RandomWeights(model, 0), lanes=lanes) as engine:
        method = ZOSGD(lr=LR, eps=EPS, weight_decay=0.1)
        taken = [method.step(engine, Batch(ids, ids)) for _ in range(STEPS)]
        weights = {name: tensor.cpu().clone() for name, tensor in engine.named_tensors()}
    return RunNumbers([step.loss for step in taken], [step.projected_grad for step in taken], weights)


class Residents:
    """The numbers of the resident model, of which each kind is trained once: in 16 bits, an update that stays pending
    is not rounded away."""

    def __init__(self, device: str) -> None:
        self._device, self._trained = device, dict[tuple[Any, ...], RunNumbers]()

    def like(self, dtype: str, changes: dict[str, Any]) -> RunNumbers:
        """The steps that an offloaded model takes with ``changes``, with all blocks on the device."""
        kind = {name: changes[name] for name in ("noise", "writeback_every") if name in changes}
        key = dtype, *kind.items()
        if key not in self._trained:
            self._trained[key] = trained(self._device, dtype, placement="resident", **kind)
        return self._trained[key]


def differs(tested: RunNumbers, wanted: RunNumbers, rounding: float = 0.0) -> str:
    """The first number in which two runs differ, or ""; ``rounding`` is the share of a loss that is allowed.

    g may then differ by the difference of two losses over 2 eps, weights by the updates that this makes.
    """
    allowed = rounding * max(map(abs, wanted.losses))
    for quantity, numbers, wanted_numbers, most in (
        ("the loss", tested.losses, wanted.losses, allowed),
        ("g", tested.gradients, wanted.gradients, allowed / EPS),
    ):
        for step, (a, b) in enumerate(zip(numbers, wanted_numbers, strict=True), 1):
            if not abs(a - b) <= most:
                return f"{quantity} of step {step} is {a!r}, and {b!r} is right"
    for name, tensor in wanted.weights.items():
        worst = float((tested.weights[name].float() - tensor.float()).abs().max())
        if not worst <= 6 * STEPS * LR * allowed / EPS:  # no |z| of these is above 6
            return f"{name} differs by up to {worst:.3g}"
    return ""


def offloading(settings: CheckSettings) -> list[Finding]:
    """Offloaded in every form, in 32 and 16 bits, against resident, with ``==``."""
    count, residents = 0, Residents(settings.device)
    for dtype in ("fp32", "fp16") if settings.on_cuda else ("fp32", "bf16"):
        for name, changes in FORMS.items():
            count += 1
            if difference := differs(trained(settings.device, dtype, **changes), residents.like(dtype, changes)):
                return [judged("offload = resident", f"{name}, {dtype}: {difference}", "", runs=count)]
    right = f"losses, g and weights of {count} offloaded runs are the resident model's, bit for bit"
    return [judged("offload = resident", "", right, runs=count)]


def devices(settings: CheckSettings) -> list[Finding]:
    """The device against the CPU: counter noise has the same bits there, products the same up to their rounding."""
    tested, reference = (trained(device, noise="counter") for device in (settings.device, "cpu"))
    difference = differs(tested, reference, ROUNDING)
    shares = [abs(a / b - 1) for a, b in zip(tested.losses, reference.losses, strict=True)]
    worst = math.nan if any(map(math.isnan, shares)) else max(shares)
    right = f"losses differ from the CPU's by {worst:.1e} of them at most, g and weights within what that allows"
    return [judged("device = CPU", difference, right, loss_difference=worst, allowed=ROUNDING)]


def late_lanes(device: str, lane: str) -> Lanes:
    """The lanes that the engine uses on ``device``, on one of which every operation begins late: after a kernel that
    spins, or a thread's sleep."""
    on_cuda = device.startswith("cuda")
    lanes: Lanes = CudaLanes(device) if on_cuda else ThreadLanes(device)
    wait, submit = Accelerator(device).spin if on_cuda else time.sleep, lanes.submit

    def submit_late(op: Op, action: Action, after: Sequence[Any]) -> Any:
        def late() -> None:
            wait(LATE_SECONDS)
            action()

        return submit(op, late if op.lane == lane else action, after)

    lanes.submit = submit_late  # type: ignore[method-assign]
    return lanes


def races(settings: CheckSettings) -> list[Finding]:
    """A wait that is missing shows where the operation that should have been waited for is late."""
    count, residents = 0, Residents(settings.device)
    for lane in ("upload", "offload", "compute"):
        for name in ("torch noise", "linear layers", "tiles"):
            count += 1
            changes = FORMS[name]
            tested = trained(settings.device, lanes=late_lanes(settings.device, lane), **changes)
            if difference := differs(tested, residents.like("fp32", changes)):
                return [judged("late copies", f"every {lane} late, {name}: {difference}", "", runs=count)]
    right = f"{count} runs with every upload, offload or computation {LATE_SECONDS * 1e3:g} ms late change no bit"
    return [judged("late copies", "", right, runs=count)]


MEMORY_MODEL, TOKENS, SLOTS = "OPT-125M", 1024, 3


def memory(settings: CheckSettings) -> list[Finding]:
    """Right if they differ by less than half a slot: a slot that leaks, or one too many, is found."""
    _workspaces(settings.device)
    taken, counted = peak(settings.device), peak("meta")
    slot = 2 * models.get(MEMORY_MODEL).block
    text = f"the allocator's peak is {taken / 1e6:.1f} MB, the ledger's {counted / 1e6:.1f} MB"
    wrong = f"{text}: more than half a slot of {slot / 1e6:.1f} MB apart" if abs(taken - counted) > slot / 2 else ""
    return [judged("peak = ledger", wrong, text, taken_bytes=taken, counted_bytes=counted, slot_bytes=slot)]


def peak(device: str) -> int:
    """Peak bytes of two steps of an offloaded model in fp16: the allocator's, on the meta device the ledger's."""
    model, ids = models.build(MEMORY_MODEL, "fp16"), torch.zeros(1, TOKENS, dtype=torch.long, device=device)
    is_meta = device == "meta"
    ledger, real = Ledger(device), None if is_meta else Accelerator(device)
    before = real.allocated_bytes() if real else 0
    config = EngineConfig(device=device, tier="pageable" if is_meta else "pinned", noise="counter", slots=SLOTS)
    watched = ledger if is_meta else contextlib.nullcontext()
    with watched, Engine(model, config, weights=RandomWeights(model, 0)) as engine:
        method = ZOSGD(lr=1e-7)
        (real.reset_peaks if real else ledger.reset)()
        for _ in range(2):
            method.step(engine, Batch(ids, ids))
        return real.peak_bytes() - before if real else ledger.peak


@torch.inference_mode()
def _workspaces(device: str) -> None:
    """Makes the libraries take their own memory, which they do at their first product, so that it is no part of a
    step."""
    x, weight = torch.zeros(1024, 768, device=device).half(), torch.zeros(3072, 768, device=device).half()
    functional.linear(x, weight, weight[:, 0].contiguous())
    functional.linear(x, weight)
