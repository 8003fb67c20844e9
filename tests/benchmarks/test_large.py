"""Bytes that pass a disk in steps of a model that rests there: each is read once a step, and none is written, from int4
nor between two of LOZO's subspaces."""

import runpy
import sys

import pytest
import torch

from tests.support.watched import before
from zobench import ZOSGD, Batch, Engine, EngineConfig, models
from zobench.engine.directions.factors import LowRank
from zobench.engine.weights.tiers import DiskTier
from zobench.methods.low_rank import LOZO
from zobench.models.weights import RandomWeights

STEPS = 2
INT4 = {"wire": "int4", "writeback_every": "inf"}


@pytest.mark.parametrize(
    ("config", "method", "directions", "share"),
    [(INT4, ZOSGD(lr=1e-7), None, 8 / (1 + 8 * 2 / (64 * 4))), ({}, LOZO(lr=1e-7, interval=8), LowRank(2), 1.0)],
    ids=["int4", "lozo"],
)
def test_a_step_reads_what_rests_and_writes_nothing(config, method, directions, share, monkeypatch):
    passed = {"upload": 0, "offload": 0}

    def count(way, slot):
        passed[way] += slot.numel()

    model = models.build("opt-tiny", "fp32")
    config = EngineConfig(tier="disk", noise="counter", **config)
    ids = torch.randint(5, 100, (1, 16), generator=torch.Generator().manual_seed(0))
    with Engine(model, config, weights=RandomWeights(model, 0), directions=directions) as engine:
        losses = [method.step(engine, Batch(ids, ids)).loss]
        engine.drain()
        for way in passed:
            before(monkeypatch.setattr, DiskTier, way, lambda tier, block, slot, *_, way=way: count(way, slot))
        losses += [method.step(engine, Batch(ids, ids)).loss for _ in range(STEPS)]
        engine.drain()
        assert len(set(losses)) == len(losses), "every step is another one"
        assert passed == {"upload": STEPS * engine.bytes_at_rest, "offload": 0}
        fp32 = 4 * models.blocks_parameter_count(models.get("opt-tiny"))
        assert fp32 / engine.bytes_at_rest == pytest.approx(share, rel=0.3)  # pages and vectors are much of a tiny one


@pytest.mark.slow
def test_the_profile_shares_a_step_out_among_products_noise_and_others(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["step_profile", "model=opt-tiny", "seq_len=32", "method=lozo", "noise=counter"])
    runpy.run_module("tools.step_profile", run_name="__main__")
    kinds = {line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]}
    assert {"products", "attention", "noise", "copies"} <= kinds
