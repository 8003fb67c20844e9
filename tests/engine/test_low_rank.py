"""Directions of low rank against weights W + c U V^T that are made whole, in plain torch; what LOZO's steps cost."""

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support import adapters, parity
from tests.support.low_rank import direction
from tests.support.parity import batches
from zobench import Batch, Engine, EngineConfig, RunSpec, methods, models
from zobench.cost import footprint
from zobench.engine import Entry, Point
from zobench.engine.directions.factors import Factors, LowRank
from zobench.engine.twin import model_loss as own_loss
from zobench.measure.ledger import Ledger
from zobench.methods import ZOSGD
from zobench.methods.low_rank import LOZO
from zobench.models.weights import RandomWeights, Weights
from zobench.testing.plain import full, padded, skeleton, start

EPS, LR, DECAY = 1e-2, 1e-2, 0.1


def spec_of(**changes: Any) -> RunSpec:
    settings = {"lr": LR, "eps": EPS, "seed": 5, "noise": "counter", "method": "lozo", "options": {"interval": 3}}
    return RunSpec(model="opt-tiny", **{**settings, **changes})


def engine_of(spec: RunSpec, **config: Any) -> Engine:
    settings = EngineConfig(noise="counter", **config)
    return Engine(skeleton(), settings, weights=start(), directions=methods.directions(spec))


@pytest.mark.parametrize("config", [{}, {"granularity": "linear"}, {"writeback_every": 4}])
def test_nothing_is_written_to_the_disk_while_a_subspace_lasts(config):
    """Ten steps with V drawn in the first, the fifth and the ninth: bytes go down in the fifth and the ninth alone."""
    spec = spec_of(options={"interval": 4})
    with engine_of(spec, tier="disk", slots=2, **config) as engine:
        method, written = methods.make(spec), []
        tier = engine.pipeline.tier
        offload = tier.offload

        def counted(block: int, slot: Tensor, first: int = 0) -> None:
            written[-1] += slot.nbytes
            offload(block, slot, first)

        tier.offload = counted
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
        found = engine.probe(batch, points)
        wide = {name: tensor.double() for name, tensor in model.state_dict().items()}
        for point, loss in zip(points, found, strict=True):
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


@pytest.mark.parametrize(("wire", "close"), [("fp16", 1e-3), ("bf16", 3e-3), ("fp8", 2e-2), ("int8", 2e-2)])
def test_a_wire_rounds_where_a_subspace_ends(wire, close):
    """What is pending stays in float32, so a run differs from one without a wire by the roundings of its weights."""
    spec, runs = spec_of(weight_decay=DECAY), []
    read_only = {"writeback_every": "inf"} if wire == "int8" else {}
    for config in ({}, {"wire": wire, **read_only}):
        with engine_of(spec, **config) as engine:
            method = methods.make(spec)
            steps = [method.step(engine, batch()).loss for batch in (full, padded, full, full, padded)]
            runs.append([*steps, engine.evaluate(full())])
    assert runs[1] != runs[0]
    assert runs[1] == pytest.approx(runs[0], rel=close)


class Shifted(Weights):
    """Weights moved along a direction by hand."""

    def __init__(self, base: Weights, model: Any, point: Point) -> None:
        self._base, self._point = base, point
        self._numbers = {name: n for n, (name, own) in enumerate(model.named_parameters()) if own.requires_grad}
        self._shapes = {name: own.shape for name, own in model.named_parameters()}

    def fill(self, name: str, out: Tensor, first: int = 0) -> None:
        self._base.fill(name, out, first)
        if name in self._numbers:
            z = direction(self._numbers[name], self._shapes[name], self._point.seed, self._point.subspace, 2)
            out.add_(z[first : first + len(out)], alpha=self._point.scale)


@pytest.mark.parametrize("scheme", ["lora", "prefix", "prompt"])
def test_an_adapter_moves_along_them_too(scheme):
    """Losses are those of an engine without such directions over an adapter that was moved by hand."""
    (batch,) = adapters.batches("opt-tiny", 1)
    points = (Point(3, EPS, None, 8), Point(3, -EPS, None, 8))
    config = EngineConfig(noise="counter", slots=2)
    model, done, initial = adapters.applied("opt-tiny", scheme, config)
    with Engine(model, config, weights=initial, drive=done.drive, directions=LowRank(2)) as engine:
        found = engine.probe(batch, points)
    for point, loss in zip(points, found, strict=True):
        model, done, initial = adapters.applied("opt-tiny", scheme, config)
        with Engine(model, config, weights=Shifted(initial, model, point), drive=done.drive) as engine:
            assert loss == pytest.approx(engine.evaluate(batch), rel=1e-5)
    assert abs(found[0] - found[1]) > 1e-5


@pytest.mark.parametrize(
    ("name", "tokens", "config"),
    [("OPT-125M", 2048, {"placement": "resident"}), ("OPT-1.3B", 256, {"slots": 3})],
)
@pytest.mark.slow
def test_memory_is_not_above_counter_noises_and_is_predicted(name, tokens, config):
    """Peaks counted on the meta device; of what is offloaded the planner's formula is within 5 %."""
    peak = _peak(name, tokens, LOZO(lr=1e-7), LowRank(2), config)
    assert peak <= _peak(name, tokens, ZOSGD(lr=1e-7), None, config)
    if "slots" in config:
        spec = RunSpec(
            model=name, seq_len=tokens, noise="counter", method="lozo", engine="offload", tier="pinned", device="cuda:0"
        )
        assert footprint.memory(spec)[0] == pytest.approx(peak, rel=0.05)


def _peak(name: str, tokens: int, method: ZOSGD, directions: LowRank | None, config: dict[str, Any]) -> int:
    model, ids = models.build(name, "fp32"), torch.empty(1, tokens, dtype=torch.long, device="meta")
    weights = RandomWeights(model, 0)
    with Ledger("meta") as ledger:
        settings = EngineConfig(device="meta", noise="counter", **config)
        with Engine(model, settings, weights=weights, directions=directions) as engine:
            for _ in range(2):
                method.step(engine, Batch(ids, ids))
    return ledger.peak.nbytes


def test_pending_updates_are_summed_and_not_drawn_again(monkeypatch):
    """Step 40 of an interval draws as many numbers as step 4."""
    spec, drawn = spec_of(options={"interval": 50}), [0]
    with engine_of(spec, placement="resident") as engine:
        method = methods.make(spec)
        advance = Factors.update

        def counted(*args: Any) -> None:
            drawn[-1] += 1
            advance(*args)

        monkeypatch.setattr(Factors, "update", counted)
        for _ in range(40):
            method.step(engine, full())
            drawn.append(0)
        assert drawn[3] == drawn[39] == sum(unit.trained > 0 for unit in engine.units)


@pytest.mark.parametrize(
    ("config", "more", "told"),
    [
        ({"noise": "torch"}, {}, "noise=counter"),
        ({"compile": True}, {}, "compile=false"),
        ({}, {"thresholds": {"model.decoder.final_layer_norm.weight": 0.0}}, "leave them out"),
    ],
)
def test_what_does_not_go_with_them_is_one_line(config, more, told):
    settings = EngineConfig(**{"noise": "counter", **config})
    with pytest.raises(ValueError, match=told) as error:
        Engine(skeleton(), settings, weights=start(), directions=LowRank(2), **more)
    assert "\n" not in str(error.value)
