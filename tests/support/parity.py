"""Models, batches and the modes of the engine that must all leave the same bits."""

import itertools

import torch

from zobench import Engine, EngineConfig, RunSpec, models
from zobench.data.batch import stream
from zobench.models import weights

STEPS, EPS, LR, RUN_SEED = 20, 1e-3, 1e-3, 7
MODES = {
    "resident": {"placement": "resident"},
    "one slot": {"slots": 1},
    "two slots": {"slots": 2},
    "three slots": {"slots": 3},
    "no overlap": {"overlap": False},
    "no reusable memory": {"reusable_memory": False},
    "no fused update": {"fused_update": False},
    "disk": {"tier": "disk"},
    "disk, no reusable memory, no fused update": {"tier": "disk", "reusable_memory": False, "fused_update": False},
}


def batches(name, kind="random", count=STEPS, rows=1):
    spec = RunSpec(model=name, batch_size=3 if kind == "ragged" else rows, seq_len=17, data=kind, seed=1)
    return batches_of(spec, count)


def materialised(name="opt-tiny", dtype="fp32", tied=None, device="cpu"):
    model = models.build(name, dtype, tied)
    weights.materialise(model, weights.RandomWeights(model, 3), device)
    return model.to(device)


def engine_of(name="opt-tiny", dtype="fp32", tied=None, options=None, **config):
    """An engine over the same weights; ``options`` are its own, beside its configuration."""
    model = models.build(name, dtype, tied)
    return Engine(model, EngineConfig(**config), weights=weights.RandomWeights(model, 3), **options or {})


def batches_of(spec, count):
    config = models.build_config(spec.model)
    return list(itertools.islice(stream(spec, config.vocab_size, config.pad_token_id), count))


def assert_equal(ours, theirs):
    """Raises unless both have the same names, and under each name the same bits."""
    assert sorted(ours) == sorted(theirs)
    for name, tensor in theirs.items():
        assert torch.equal(ours[name], tensor), name
