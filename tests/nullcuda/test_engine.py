"""zobench's engine on the null GPU: the CPU's bits, what a step may launch, copy and wait for, and planted faults."""

import sys

import pytest
import torch

from tests.support.devices import CUDA, ON_GPU
from tests.support.tuned import run, spec_of
from zobench import ZOSGD, Batch, Engine, EngineConfig, models
from zobench.engine import blocks as units
from zobench.engine import core, lanes, pristine
from zobench.models.weights import RandomWeights

NULL = "tests.nullcuda.start" in sys.modules
pytestmark = [*ON_GPU, pytest.mark.skipif(not NULL, reason="needs the null CUDA runtime: make nullcuda")]
PLACES = {
    "resident": {"placement": "resident"},
    "two slots": {"slots": 2},
    "linear": {"granularity": "linear"},
    "tile": {"granularity": "tile"},
    "K=3": {"writeback_every": 3, "granularity": "linear"},
    "K=inf": {"writeback_every": "inf", "granularity": "tile"},
    "fp16 on the wire": {"wire": "fp16"},
    "bf16 on the wire": {"wire": "bf16", "writeback_every": 2},
    "fp8 on the wire": {"wire": "fp8", "writeback_every": 2, "granularity": "linear"},
    "allocated": {"reusable_memory": False},
    "one lane": {"overlap": False, "slots": 1},
    "second round": {"fused_update": False},
    "pageable": {"tier": "pageable"},
}


EPS = 2**-10
"""Its reciprocal is exact: CUDA multiplies by it where a CPU divides, see zobench/methods/zo_sgd.py."""


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch):
    monkeypatch.setattr(units.tiles, "__defaults__", (3000,))


def trained(device, steps=4, **changes):
    """Losses, g and weights after some steps of OPT with counter noise."""
    model, ids = models.build("opt-tiny", "fp32"), torch.arange(40).view(2, 20)
    tier = "pinned" if device == CUDA else "pageable"
    config = EngineConfig(**{"device": device, "tier": tier, "noise": "counter", **changes})
    with Engine(model, config, weights=RandomWeights(model, 0)) as engine:
        method = ZOSGD(lr=1e-3, weight_decay=0.1, eps=EPS)
        taken = [method.step(engine, Batch(ids, ids)) for _ in range(steps)]
        weights = {name: tensor.cpu().clone() for name, tensor in engine.named_tensors()}
    return [(step.loss, step.projected_grad) for step in taken], weights


@pytest.mark.parametrize("changes", PLACES.values(), ids=PLACES)
def test_losses_g_and_weights_are_the_cpus_bit_for_bit(changes):
    here, there = trained(CUDA, **changes), trained("cpu", **{**changes, "tier": "pageable"})
    assert here[0] == there[0]
    assert all(torch.equal(here[1][name], value) for name, value in there[1].items())


@pytest.mark.parametrize("method", ["zo-sgd-mmt", "zo-adam", "zo-sgd-sign", "zo-sgd-cons"])
def test_a_method_gets_the_cpus_bits(method):
    here, there = (run(spec_of(method, device, noise="counter", eps=EPS)) for device in (CUDA, "cpu"))
    assert here[:2] == there[:2]
    torch.testing.assert_close(here[3], there[3], rtol=0, atol=0)


# --- budgets: counts do not depend on speed ---------------------------------------------------------------------------


def spent(steps=3, **changes):
    """What the runtime counts in a step of OPT with counter noise once it is warm, and the number of blocks."""
    from tests.nullcuda.counts import counts

    model, ids = models.build("opt-tiny", "fp16"), torch.arange(20, device=CUDA).view(1, 20)
    config = EngineConfig(device=CUDA, tier="pinned", noise="counter", **changes)
    with Engine(model, config, weights=RandomWeights(model, 0)) as engine:
        method = ZOSGD(lr=1e-3)
        for _ in range(4):
            method.step(engine, Batch(ids, ids))
        before = counts()
        for _ in range(steps):
            method.step(engine, Batch(ids, ids))
        after = counts()
    return {name: (after[name] - before[name]) / steps for name in after}, model.config.num_hidden_layers


BUDGET = {
    "triton": 106, "launches": 130, "h2d_pinned": 12, "d2h_pinned": 3, "d2h_pageable": 1, "d2d": 15, "memsets": 0,
    "records": 18, "waits": 11, "events_made": 9,
}  # fmt: skip
"""Most of each in a step of OPT with 3 blocks, of two points: as counted. A commit that lowers one lowers it here."""


def within_budget(step):
    """Raises unless a warm step takes no memory, waits for the losses alone, and spends no more than the budget."""
    assert step["mallocs"] + step["frees"] + step["host_allocs"] == 0, "a warm step asks for memory"
    assert step["stream_syncs"] == 1, "more than the losses are waited for"
    assert step["device_syncs"] + step["event_syncs"] == 0, "the host waits for the device"
    assert step["h2d_pageable"] == 0, "a copy from memory that is not pinned stops the host"
    assert {name: step[name] for name in BUDGET if step[name] > BUDGET[name]} == {}


@pytest.mark.parametrize("slots", [2, 3])
def test_a_step_spends_no_more_than_its_budget(slots):
    step, blocks = spent(slots=slots)
    print(blocks, step)
    within_budget(step)


# --- planted faults ---------------------------------------------------------------------------------------------------


def races_of(**changes):
    from tests.nullcuda.counts import races

    trained(CUDA, **changes)
    return races()


@pytest.mark.parametrize("before", ["upload", "compute", "offload"])
def test_a_missing_wait_is_found(before, monkeypatch):
    """That of one kind of operation, for all that it should come after."""
    submit = lanes.CudaLanes.submit

    def forgetful(self, op, action, after):
        return submit(self, op, action, [] if op.kind == before else after)

    assert races_of(slots=2) == ""
    monkeypatch.setattr(lanes.CudaLanes, "submit", forgetful)
    assert "without a wait" in races_of(slots=2)


def test_a_wait_in_every_block_is_found(monkeypatch):
    reach = pristine.Pristine._reach

    def waiting(self, *args):
        torch.cuda.current_stream().synchronize()
        return reach(self, *args)

    monkeypatch.setattr(pristine.Pristine, "_reach", waiting)
    with pytest.raises(AssertionError, match="more than the losses are waited for"):
        within_budget(spent()[0])


def test_a_slot_that_leaks_is_found(monkeypatch):
    kept, begin = [], core.Engine._pass

    def leaking(self, *args):
        kept.append(torch.empty(1 << 22, dtype=torch.uint8, device=CUDA))
        return begin(self, *args)

    monkeypatch.setattr(core.Engine, "_pass", leaking)
    with pytest.raises(AssertionError, match="a warm step asks for memory"):
        within_budget(spent()[0])


def test_one_launch_more_in_each_block_is_found(monkeypatch):
    reach = pristine.Pristine._reach

    def launching(self, weights, *args):
        weights.add_(0)
        return reach(self, weights, *args)

    monkeypatch.setattr(pristine.Pristine, "_reach", launching)
    with pytest.raises(AssertionError, match="launches"):
        within_budget(spent()[0])
