"""The fast engine as an object: looked at, handed back, failed, on a checkpoint or a disk; what it refuses."""

import numpy as np
import pytest
import torch

from tests.support.fast import EPS, LR, RUN_SEED, batches, run
from tests.support.parity import engine_of, materialised
from zobench import ZOSGD, Engine, EngineConfig, models
from zobench.engine.base import Point
from zobench.engine.passes import head
from zobench.models import weights

pytestmark = pytest.mark.usefixtures("small_tiles")


def test_each_block_is_compiled(monkeypatch):
    compiled, plain = [], run("opt-tiny", "fp32", True, 0.0, 1, count=2)
    monkeypatch.setattr(torch, "compile", lambda forward, **options: compiled.append(options) or forward)
    assert run("opt-tiny", "fp32", True, 0.0, 1, count=2, compile=True)[0] == plain[0]
    assert compiled == [{"dynamic": False}] * 3


def test_looking_at_the_weights_changes_nothing():
    """With pending updates in 16 bits, or behind a narrow wire, saving must neither round nor write."""
    for dtype, config in (("bf16", {}), ("fp32", {"wire": "fp8"}), ("bf16", {"placement": "resident"})):
        quiet = run("opt-tiny", dtype, True, 0.0, 1, count=6, writeback_every="inf", **config)
        with engine_of(dtype=dtype, noise="counter", writeback_every="inf", **config) as engine:
            method, losses = ZOSGD(lr=LR, eps=EPS, seed=RUN_SEED), []
            for batch in batches("opt-tiny", count=6):
                losses.append(method.step(engine, batch).loss)
                seen = dict(engine.named_tensors())
        assert losses == quiet[0]
        assert all(torch.equal(seen[key], quiet[2][key]) for key in seen)


@pytest.mark.parametrize("noise", ["torch", "counter"])
def test_a_resident_model_is_handed_back_with_every_update(noise):
    with engine_of(noise=noise, placement="resident") as engine:
        model = engine.model
        ZOSGD(lr=LR).step(engine, batches("opt-tiny", count=1)[0])
        trained = dict(engine.named_tensors())
        with pytest.raises(ValueError, match="`points` must not be empty, but got none"):
            engine.probe(batches("opt-tiny", count=1)[0], [])
    with pytest.raises(RuntimeError, match="the engine must be open, but was closed; build a new one"):
        engine.flush()
    assert all(torch.equal(p, trained[name]) for name, p in model.named_parameters())


def test_a_checkpoint_in_another_dtype_cannot_be_the_tier(tmp_path):
    materialised(dtype="fp16").save_pretrained(tmp_path)
    model = models.build("opt-tiny", "fp32")
    config = EngineConfig(noise="counter", tier="checkpoint", writeback_every="inf")
    with pytest.raises(ValueError, match=r"float32, but .* is torch.float16; use that dtype or tier=disk"):
        Engine(model, config, weights=weights.PretrainedWeights(tmp_path, model))
    with pytest.raises(ValueError, match="needs the weights of a checkpoint, but got RandomWeights"):
        engine_of(noise="counter", tier="checkpoint", writeback_every="inf")


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("every", [1, "inf"])
def test_a_table_larger_than_the_scratch_is_settled_in_place(monkeypatch, tied, every):
    monkeypatch.setattr(head, "HEAD_BYTES", 8 << 10)
    monkeypatch.setattr(head, "BIAS_BYTES", 64)
    config = {"granularity": "tile", "writeback_every": every, "tier": "disk"}
    with engine_of("qwen3-tiny", tied=tied, noise="counter", **config) as engine:
        assert engine.arithmetic._scratch.numel() < engine.model.get_input_embeddings().weight.nbytes
    mine = run("qwen3-tiny", "fp32", tied, 0.1, 1, count=6, **config)
    monkeypatch.setattr(head, "HEAD_BYTES", 16 << 20)
    monkeypatch.setattr(head, "BIAS_BYTES", 64 << 10)
    whole = run("qwen3-tiny", "fp32", tied, 0.1, 1, count=6, **config)
    assert np.allclose(mine[0], whole[0], rtol=1e-6)
    assert np.allclose(mine[1][:2], whole[1][:2], atol=2e-3)


def test_granularity_needs_all_matrices_in_linears():
    model = models.build("opt-tiny", "fp32")
    layer = models.blocks(model)[0]
    layer.self_attn.q_proj.__class__ = type("Quantised", (torch.nn.Linear,), {})
    with pytest.raises(ValueError, match=r"all matrices in nn.Linear, but .*q_proj.weight is in Quantised; use gran"):
        Engine(model, EngineConfig(noise="counter", granularity="linear"), weights=weights.RandomWeights(model, 3))


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ({"granularity": "linear"}, "need noise=counter, but got noise=torch"),
        ({"tier": "dsk"}, "did you mean disk"),
        ({"slots": 0}, "use slots=3"),
        ({"tier": "pinned"}, "needs a CUDA device, but got device=cpu"),
        ({"writeback_every": 0, "noise": "counter"}, 'must be at least 1 or "inf", but got 0'),
        ({"tier": "checkpoint", "noise": "counter"}, "needs writeback_every=inf and wire=none"),
        ({"placement": "resident", "wire": "fp8"}, "need placement=offload, but got placement=resident"),
        ({"noise": "counter", "fused_update": False, "writeback_every": 4}, "needs writeback_every=1, but got 4"),
        ({"consolidate_after": 5}, "needs writeback_every=inf, but got writeback_every=1"),
    ],
)
def test_a_configuration_that_cannot_be_says_why(values, error):
    with pytest.raises(ValueError, match=error) as caught:
        EngineConfig(**values)
    assert "\n" not in str(caught.value)


def test_what_a_probe_rounds_is_in_an_offloaded_block_as_in_a_resident_one():
    """MeZO's +eps, -2 eps, +eps leaves roundings in the weights, also in a step whose update is skipped: they are
    written back to the tier."""
    tensors = {}
    for placement in ("resident", "offload"):
        with engine_of(placement=placement) as engine:
            before = dict(engine.named_tensors())
            engine.probe(batches("opt-tiny", count=1)[0], [Point(3, EPS), Point(3, -EPS)])
            tensors[placement] = dict(engine.named_tensors())
        assert any(not torch.equal(tensors[placement][name], before[name]) for name in before)
    assert all(torch.equal(tensors["resident"][name], tensors["offload"][name]) for name in before)
