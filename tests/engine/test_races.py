"""The pipeline against an emulator of its lanes: every legal order gives the same bits, planted bugs show."""

import dataclasses
import functools
import itertools
import time

import pytest
import torch
from transformers import OPTConfig, OPTForCausalLM

from tests.engine.emulator import EmulatedLanes, RaceError
from zobench import ZOSGD, Batch, Engine, EngineConfig
from zobench.engine.lanes import ThreadLanes
from zobench.weights import RandomWeights

MOODS = ("random", "eager", "slow-upload", "slow-offload")
SWITCHES = [{}, {"reusable_memory": False}, {"fused_update": False}, {"overlap": False}]
STEPS = 3


def model(n_blocks):
    config = OPTConfig(
        num_hidden_layers=n_blocks, hidden_size=16, ffn_dim=32, num_attention_heads=2, vocab_size=40,
        max_position_embeddings=16, word_embed_proj_dim=16, dropout=0.0, use_cache=False,
    )  # fmt: skip
    with torch.device("meta"):
        return OPTForCausalLM(config)


def trace(n_blocks, *, lanes=None, **config):
    """Losses of three steps, an evaluation between, and the final weights."""
    skeleton = model(n_blocks)
    engine = Engine(skeleton, EngineConfig(**config), weights=RandomWeights(skeleton, 0), lanes=lanes)
    if lanes is not None:
        lanes.pipeline = engine._pipeline
    ids = torch.arange(10).view(1, 10) % 40
    batch, method, numbers = Batch(ids, ids), ZOSGD(lr=1e-2, seed=3, weight_decay=0.1), []
    with engine:
        for _ in range(STEPS):
            result = method.step(engine, batch)
            numbers += [result.loss, result.projected_grad]
        numbers.append(engine.evaluate(batch))
        numbers.append(method.step(engine, batch).loss)
        return numbers, {name: tensor.numpy().tobytes() for name, tensor in engine.named_tensors()}


@functools.cache
def resident(n_blocks):
    return trace(n_blocks, placement="resident")


@pytest.mark.parametrize("switches", SWITCHES, ids=str)
@pytest.mark.parametrize(("n_blocks", "slots"), list(itertools.product((1, 2, 3, 5), (1, 2, 3))))
def test_every_interleaving_gives_the_bits_of_the_resident_run(n_blocks, slots, switches):
    for seed, mood in enumerate(MOODS):
        lanes = EmulatedLanes(seed, mood)
        assert trace(n_blocks, lanes=lanes, slots=slots, **switches) == resident(n_blocks), mood


def drop(kind, cause):
    """The bug of not waiting: operations of ``kind`` forget their dependencies on ``cause``."""

    def corrupt(op):
        if op.kind != kind:
            return op
        return dataclasses.replace(op, after=tuple(key for key in op.after if key[0] != cause))

    return corrupt


def wrong_slot(op):
    """The bug of n_blocks % n_slots != 0: block 3 (the first after a full round) lands in its neighbour's slot."""
    return dataclasses.replace(op, slot=(op.slot + 1) % 2) if op.block == 3 else op


PLANTED = {
    "compute does not wait for its upload": drop("compute", "upload"),
    "update does not wait for its upload": drop("update", "upload"),
    "offload does not wait for its compute": drop("offload", "compute"),
    "offload does not wait for its update": drop("offload", "update"),
    "upload does not wait for the slot's offload": drop("upload", "offload"),
    "a block lands in its neighbour's slot": wrong_slot,
}


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_found(bug, monkeypatch):
    from zobench.engine import schedule

    original = schedule.traversal

    def buggy(*args, **kwargs):
        return tuple(PLANTED[bug](op) for op in original(*args, **kwargs))

    monkeypatch.setattr(schedule, "traversal", buggy)
    verdicts = [found(5, seed, mood) for mood in MOODS for seed in range(3)]
    assert any(verdicts), f"no interleaving showed: {bug}"


def found(n_blocks, seed, mood):
    try:
        wrong = trace(n_blocks, lanes=EmulatedLanes(seed, mood), slots=2, fused_update=False) != resident(n_blocks)
    except (RaceError, AssertionError):
        return True
    return wrong


class DelayedLanes(ThreadLanes):
    """Real threads with a slow lane."""

    def __init__(self, slow, seconds=0.002):
        super().__init__()
        self._slow, self._seconds = slow, seconds

    def submit(self, op, action, after):
        def delayed():
            if op.lane == self._slow:
                time.sleep(self._seconds)
            action()

        return super().submit(op, delayed, after)


@pytest.mark.parametrize("slow", ["upload", "compute", "offload"])
@pytest.mark.parametrize("slots", [1, 2, 3])
def test_real_threads_with_a_slow_lane_give_the_bits_of_the_resident_run(slow, slots):
    assert trace(5, lanes=DelayedLanes(slow), slots=slots) == resident(5)


def test_an_error_on_a_transfer_lane_reaches_the_caller(monkeypatch):
    from zobench.engine.tiers import HostTier

    def fail(self, block, slot):
        raise OSError("the link is gone")

    monkeypatch.setattr(HostTier, "offload", fail)
    with pytest.raises(OSError, match="the link is gone"):
        trace(3)
