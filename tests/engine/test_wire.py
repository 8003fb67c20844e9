"""The fast engine's wire: the same steps whatever is streamed from where, and what packing may lose."""

import numpy as np
import pytest
import torch

from tests.support.devices import CUDA, DEVICES
from tests.support.fast import EPS, LR, PLACES_ON, RUN_SEED, assert_equal, batches, run
from tests.support.parity import engine_of, materialised
from tests.support.reference import draw_seeds, g_of, own_loss, perturb, update
from zobench import ZOSGD, models
from zobench.engine.weights import blocks as units
from zobench.engine.weights.tiers import allocate
from zobench.engine.weights.wire import FloatWire

pytestmark = pytest.mark.usefixtures("small_tiles")

STREAMED = {
    "cpu": [{"tier": "disk"}, {"tier": "pageable", "slots": 1}, {"tier": "pageable", "overlap": False}],
    CUDA: [PLACES_ON[CUDA][place] for place in ("pinned", "two slots", "pageable", "disk")],
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("granularity", ["block", "linear", "tile"])
@pytest.mark.parametrize("wire", ["fp16", "bf16", "fp8"])
def test_a_wire_gives_the_same_whatever_is_streamed_from_where(wire, granularity, device):
    case, common = ("opt-tiny", "fp32", True, 0.1, 1), {"count": 10, "device": device, "granularity": granularity}
    first, *others = (run(*case, wire=wire, **common, **place) for place in STREAMED[device])
    for other in others:
        assert_equal(other, first)
    plain = run(*case, **common)
    assert first[0] != plain[0]  # the wire was used
    tolerance = {"fp16": 1e-3, "bf16": 1e-2, "fp8": 5e-2}[wire]
    assert np.allclose(first[0], plain[0], rtol=tolerance)


def packed(wire, fill):
    """The wire, the first block, its bytes as ``fill(unit, bytes)`` left them, and what comes back over the wire."""
    model = models.build("opt-tiny", "fp32")
    (unit, *_), _ = units.find_units(model, list(models.blocks(model)))
    packer = FloatWire(wire)
    master, back, slot = allocate(unit.nbytes), allocate(unit.nbytes), allocate(packer.nbytes(unit))
    fill(unit, master)
    packer.encode(unit, master, slot)
    packer.decode(unit, slot, back)
    return packer, unit, master, back


@pytest.mark.parametrize("wire", ["fp16", "bf16", "fp8"])
def test_unpacking_what_was_packed_loses_at_most_half_a_unit_in_the_last_place(wire):
    def fill(unit, master):
        for item in unit.fields:
            rows = torch.logspace(-2, 3, item.shape[0]) if len(item.shape) == 2 else torch.ones(item.shape)
            item.view(master).normal_().mul_(rows[:, None] if len(item.shape) == 2 else rows)

    packer, unit, master, back = packed(wire, fill)
    half_ulp = {"fp16": 2**-11, "bf16": 2**-8, "fp8": 2**-4}[wire]
    for item in unit.fields:
        before, after = item.view(master), item.view(back)
        if wire == "fp8" and len(item.shape) == 1:
            assert torch.equal(after, before)
            continue
        row = before.abs().amax(-1, keepdim=True)
        floor = row * 2**-9 / 448 if wire == "fp8" else torch.full_like(row, 2.0**-25)  # below: subnormal
        assert ((after - before).abs() <= torch.maximum(before.abs() * half_ulp, floor) * 1.0001).all()
        assert not torch.equal(after, before)
    small = {"fp8": 0.29, "fp16": 0.52, "bf16": 0.52}[wire]  # a block this small ends in a page that is mostly empty
    assert packer.nbytes(unit) < small * unit.nbytes


def test_torch_noise_with_a_wire_is_zo2s_amp():
    """As published: float32 on the device, the low-bit copy persists."""
    expected = materialised()
    low = {name for name, _ in expected.named_parameters() if ".layers." in name}
    losses = []
    generator = iter(draw_seeds(RUN_SEED, 5))
    with torch.inference_mode():
        pending = None
        for batch in batches("opt-tiny", count=5):
            for name, p in expected.named_parameters():
                if name in low:
                    p.data = p.data.bfloat16().float()
            if pending:
                update(expected, *pending, LR, 0.0)
            seed, pair = next(generator), []
            for scale in (1, -2):
                perturb(expected, seed, scale, EPS)
                pair.append(own_loss(expected, batch))
            perturb(expected, seed, 1, EPS)
            pending = seed, g_of(*pair, EPS)
            losses.append(sum(pair) / 2)
    with engine_of(wire="bf16") as engine:
        method = ZOSGD(lr=LR, eps=EPS, seed=RUN_SEED)
        assert [method.step(engine, batch).loss for batch in batches("opt-tiny", count=5)] == losses
