"""Directions of low rank against weights W + c U V^T that are made whole, in plain torch; what LOZO's steps cost."""

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support import adapters, parity
from tests.support.low_rank import direction, engine_of
from tests.support.parity import batches
from tests.support.watched import before
from zobench import Engine, EngineConfig, RunSpec, methods
from zobench.engine import Entry, Point
from zobench.engine.directions.factors import LowRank
from zobench.engine.twin import model_loss as own_loss
from zobench.testing.plain import full

EPS, LR = 1e-2, 1e-2


def spec_of(**changes: Any) -> RunSpec:
    settings = {"lr": LR, "eps": EPS, "seed": 5, "noise": "counter", "method": "lozo", "options": {"interval": 3}}
    return RunSpec(model="opt-tiny", **{**settings, **changes})


@pytest.mark.parametrize("config", [{}, {"granularity": "linear"}, {"writeback_every": 4}])
def test_nothing_is_written_to_the_disk_while_a_subspace_lasts(config):
    """Ten steps with V drawn in the first, the fifth and the ninth: bytes go down in the fifth and the ninth alone."""
    spec = spec_of(options={"interval": 4})
    with engine_of(spec, tier="disk", slots=2, **config) as engine:
        method, written = methods.make(spec), []

        def count(block: int, slot: Tensor, *_: int) -> None:
            written[-1] += slot.nbytes

        before(setattr, engine.pipeline.tier, "offload", count)
        kept = sum(engine.kept_bytes(unit) for unit in engine.blocks)
        for _ in range(10):
            written.append(0)
            engine.evaluate(full())
            method.step(engine, full())
            engine.drain()
        assert written == [kept if step in (4, 8) else 0 for step in range(10)]


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_sixteen_bits_come_near_to_the_weights_that_are_made_whole(dtype):
    """To the rounding of one product in 16 bits; updates that are pending are not rounded to 16 bits one by one."""
    batch = batches("opt-tiny")[0]
    model = parity.materialised(dtype=dtype)
    with parity.engine_of(dtype=dtype, options={"directions": LowRank(2)}, noise="counter") as engine:
        points = (Point(3, EPS, None, 8), Point(3, -EPS, None, 8))
        entries = [Entry(step=n, seed=n, g=1.0, lr=1e-4, subspace=8) for n in range(20)]
        engine.commit(entries)
        losses = engine.probe(batch, points)
        wide = {name: tensor.double() for name, tensor in model.state_dict().items()}
        for point, loss in zip(points, losses, strict=True):
            with torch.no_grad():
                for n, (name, tensor) in enumerate(model.named_parameters()):
                    z = direction(n, tensor.shape, 3, 8, 2) * point.scale
                    for e in entries:
                        z = z - e.lr * direction(n, tensor.shape, e.seed, 8, 2)
                    tensor.copy_(wide[name] + z)
            assert loss == pytest.approx(own_loss(model, batch), rel=2e-3)
        engine.flush()
        numbers = {name: n for n, (name, _) in enumerate(model.named_parameters())}
        for name, tensor in engine.named_tensors():
            total = sum(direction(numbers[name], tensor.shape, e.seed, 8, 2).double() for e in entries)
            exact = wide[name] - 1e-4 * total
            half_an_ulp = exact.abs() * torch.finfo(tensor.dtype).eps / 2 + 1e-6
            assert ((tensor.double() - exact).abs() <= 1.01 * half_an_ulp).all(), name


@pytest.mark.parametrize("scheme", ["lora", "prefix", "prompt"])
def test_an_adapter_moves_along_them_too(scheme):
    """Losses are those of peft's model, whose adapter was moved by hand."""
    (batch,) = adapters.batches("opt-tiny", 1)
    points = (Point(3, EPS, None, 8), Point(3, -EPS, None, 8))
    config = EngineConfig(noise="counter", slots=2)
    model, done, initial = adapters.applied("opt-tiny", scheme, config)
    numbers = {name: number for number, (name, _) in enumerate(model.named_parameters())}
    values = adapters.adapter(model, initial)
    with Engine(model, config, weights=initial, drive=done.drive, directions=LowRank(2)) as engine:
        losses = engine.probe(batch, points)
    for point, loss in zip(points, losses, strict=True):
        moved = {
            name: value + point.scale * direction(numbers[name], value.shape, point.seed, point.subspace, 2)
            for name, value in values.items()
        }
        theirs = adapters.peft_model("opt-tiny", scheme, moved)
        assert loss == pytest.approx(adapters.loss(theirs, batch), rel=1e-5)
    assert abs(losses[0] - losses[1]) > 1e-5
