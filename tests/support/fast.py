"""The fast engine and a plain loop over the same batches and directions, and what of both must agree."""

import functools
import math
from unittest import mock

import numpy as np
import torch

from tests.support import parity
from tests.support.devices import CUDA
from tests.support.parity import EPS, LR, RUN_SEED, STEPS, materialised
from tests.support.reference import draw_seeds, pristine_mezo
from zobench import ZOSGD, Engine, EngineConfig, models
from zobench.engine.weights import blocks as units
from zobench.models import weights

batches = functools.partial(parity.batches, kind="ragged")
PLACES = {
    "resident": {"placement": "resident"},
    "pageable": {"tier": "pageable"},
    "disk": {"tier": "disk", "slots": 2},
    "partly resident": {"tier": "pageable", "resident_blocks": 1},
}
PINNED = {
    "pinned": {"tier": "pinned"},
    "two slots": {"tier": "pinned", "slots": 2},
    "partly resident": {"tier": "pinned", "resident_blocks": 1},
}
PLACES_ON = {"cpu": PLACES, CUDA: PLACES | PINNED}
TILE = {"cpu": 20_000, CUDA: 3_000}
PIECES: dict[str, dict[str, int]] = {"cpu": {}, CUDA: {"logits_bytes": 1 << 13}}
"""On CUDA the head's pieces are small and of uneven length."""


def steps_on(device, name="opt-tiny", place="resident", queries=1):
    """20, resident and offloaded; with four queries the second model and the other placements draw as many directions
    as with one: the replay of 80 would take most of the time of all tests of the engine."""
    few = queries > 1 and (name != "opt-tiny" or place not in ("resident", "pageable"))
    return 10 if device == CUDA else STEPS // queries if few else STEPS


def directions(queries):
    flat = iter(draw_seeds(RUN_SEED, STEPS * queries))
    return [tuple(next(flat) for _ in range(queries)) for _ in range(STEPS)]


@functools.cache
def reference(name, dtype, tied, decay, queries, every=1, count=STEPS):
    """(losses, projected gradients, final weights) of a plain loop on the CPU."""
    model = materialised(name, dtype, tied)
    seeds, every = directions(queries)[:count], math.inf if every == "inf" else every
    losses, gs = pristine_mezo(model, batches(name, count=count), seeds, eps=EPS, lr=LR, wd=decay, every=every)
    return losses, gs, {key: p.data for key, p in model.named_parameters()}


def run(name, dtype, tied, decay, queries, count=None, device="cpu", **config):
    """(losses, projected gradients, final weights on the CPU) of an engine."""
    model, count = models.build(name, dtype, tied), count or steps_on(device)
    config = EngineConfig(device=device, noise="counter", **PIECES[device] | config)
    with (
        mock.patch.object(units.tiles, "__defaults__", (TILE[device],)),
        Engine(model, config, weights=weights.RandomWeights(model, 3)) as engine,
    ):
        method = ZOSGD(lr=LR, eps=EPS, seed=RUN_SEED, weight_decay=decay, queries=queries)
        steps = [method.step(engine, batch.to(device)) for batch in batches(name, count=count)]
        return [s.loss for s in steps], [s.projected_grad for s in steps], dict(engine.named_tensors())


@functools.cache
def resident(name, dtype, tied, decay, queries, device, granularity, every=1, count=None):
    case = {"device": device, "granularity": granularity, "writeback_every": every, "count": count}
    return run(name, dtype, tied, decay, queries, **case, **PLACES["resident"])


def assert_near_in_tiles(mine, expected):
    assert np.allclose(mine[0], expected[0], rtol=1e-4, atol=0)
    assert np.allclose(mine[1][:5], expected[1][:5], atol=2e-3)  # an ulp of the loss is 2.4e-4 of g


def assert_near_on_cuda(mine, expected):
    """Up to the rounding of products."""
    assert np.allclose(mine[0], expected[0], rtol=1e-4, atol=0)
    assert np.allclose(mine[1], expected[1], rtol=1e-2, atol=2e-2)
    assert all(torch.allclose(mine[2][key], expected[2][key], rtol=0, atol=1e-3) for key in expected[2])


def assert_equal(mine, expected):
    assert mine[0] == expected[0]
    assert mine[1] == expected[1]
    assert mine[2].keys() == expected[2].keys()
    assert all(torch.equal(mine[2][key], expected[2][key]) for key in expected[2])
    assert len(set(mine[1])) > 0.9 * len(mine[1])  # a loop that never moved would agree with itself


def taken_steps(engine, data):
    """(loss, g) of a step on each batch."""
    method = ZOSGD(lr=LR, eps=EPS, seed=RUN_SEED, weight_decay=0.1)
    return [(step.loss, step.projected_grad) for step in (method.step(engine, batch) for batch in data)]


def unwritten_steps(model, data):
    """The same of a plain loop whose updates are never written back."""
    seeds = [(seed,) for seed in draw_seeds(RUN_SEED, len(data))]
    return list(zip(*pristine_mezo(model, data, seeds, eps=EPS, lr=LR, wd=0.1, every=math.inf), strict=True))
