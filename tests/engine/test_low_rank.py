"""Directions of low rank against weights W + c U V^T that are made whole, in plain torch; what LOZO's steps cost."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.support import adapters
from tests.support.low_rank import LowRankPlain, direction, other_family
from tests.support.parity import batches, materialised
from zobench import Batch, Engine, EngineConfig, RunSpec, methods, models
from zobench.engine import Entry, Point
from zobench.engine.directions.factors import Factors, LowRank
from zobench.engine.passes import products
from zobench.engine.twin import own_loss
from zobench.measure.ledger import Ledger
from zobench.methods import ZOSGD
from zobench.methods.lozo import LOZO
from zobench.models.weights import RandomWeights, Weights
from zobench.predict import footprint
from zobench.testing.plain import full, padded, skeleton, start

EPS, LR, DECAY = 1e-2, 1e-2, 0.1
MODES: dict[str, dict[str, Any]] = {
    "resident": {"placement": "resident"},
    "blocks": {"slots": 2},
    "linears on disk": {"granularity": "linear", "tier": "disk", "slots": 2},
    "every third interval": {"writeback_every": 7},
}


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def spec_of(**changes: Any) -> RunSpec:
    settings = {"lr": LR, "eps": EPS, "seed": 5, "noise": "counter", "method": "lozo", "options": {"interval": 3}}
    return RunSpec(model="opt-tiny", **{**settings, **changes})


def engine_of(spec: RunSpec, **config: Any) -> Engine:
    settings = EngineConfig(noise="counter", **config)
    return Engine(skeleton(), settings, weights=start(), directions=methods.directions(spec))


class Formula:
    """LOZO as its paper has it, in NumPy: X -= lr * (g U V^T / r + decay * X), V drawn every ``interval`` steps.

    Vectors go along z. ``shipped``: as its program has it, without r, and with another U in the step that draws V."""

    def __init__(self, spec: RunSpec, shipped: bool = False) -> None:
        self.model, self.spec, self.shipped = LowRankPlain(2), spec, shipped
        self.draws = np.random.default_rng(spec.seed)
        self.x = {name: tensor.numpy().astype(np.float64) for name, tensor in self.model.tensors.items()}
        self.step_number = 0

    def z(self, seed: int) -> dict[str, np.ndarray]:
        return {
            name: direction(n, torch.Size(x.shape), seed, self.subspace, 2).numpy().astype(np.float64)
            for n, (name, x) in enumerate(self.x.items())
        }

    def loss(self, batch: Batch, z: dict[str, np.ndarray], scale: float) -> float:
        self.model.set({name: torch.from_numpy((x + scale * z[name]).astype(np.float32)) for name, x in self.x.items()})
        return self.model.loss(batch)

    def step(self, batch: Batch) -> list[float]:
        """The losses at both points of each direction."""
        interval, queries = self.spec.option("interval"), self.spec.queries
        seeds = [int(self.draws.integers(10**9)) for _ in range(queries)]
        begins = self.step_number % interval == 0
        if begins:
            self.subspace = seeds[0]
        losses, ghat = [], {name: np.zeros_like(x) for name, x in self.x.items()}
        for seed in seeds:
            z = self.z(seed)
            plus, minus = (self.loss(batch, z, sign * EPS) for sign in (1, -1))
            losses += [plus, minus]
            moved = self.z(seed + 10**9) if self.shipped and begins else z
            for name in ghat:
                ghat[name] += (plus - minus) / (2 * EPS) * moved[name] / queries / (1 if self.shipped else 2)
        for name, x in self.x.items():
            decay = 0.0 if "bias" in name or "layer_norm" in name else self.spec.weight_decay
            self.x[name] = x - self.spec.lr * (ghat[name] + decay * x)
        self.step_number += 1
        return losses


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "changes", [{}, {"queries": 2, "weight_decay": DECAY, "definition": "as-shipped"}], ids=["written", "shipped"]
)
def test_each_step_is_the_formula(changes, mode, monkeypatch):
    """Losses to 1e-5, although W + eps U V^T is never made; weights after each of eight steps, two of them new V."""
    monkeypatch.setattr(products, "TOGETHER", 42 if mode == "blocks" else 1024)  # two copies of the batch at once
    spec = spec_of(**changes)
    formula, method = Formula(spec, "definition" in changes), methods.make(spec)
    with engine_of(spec, **MODES[mode]) as engine:
        seen: list[float] = []
        probe = engine.probe
        engine.probe = lambda batch, points: seen.extend(probe(batch, points)) or seen[-len(points) :]  # type: ignore
        for number in range(8):
            batch = (full, padded)[number % 2]()
            result = method.step(engine, batch)
            wanted = formula.step(batch)
            assert seen[-len(wanted) :] == pytest.approx(wanted, rel=1e-5)
            # g is a difference of such losses: the formula goes on with the engine's own
            here = dict(engine.named_tensors())
            for name, x in formula.x.items():
                np.testing.assert_allclose(here[name].numpy(), x, rtol=0, atol=3e-5, err_msg=name)
                formula.x[name] = here[name].numpy().astype(np.float64)
            assert result.applied


@pytest.mark.parametrize("config", [{}, {"granularity": "linear"}, {"writeback_every": 4}])
def test_nothing_is_written_to_the_disk_while_a_subspace_lasts(config):
    """Ten steps with V drawn in the first, the fifth and the ninth: bytes go down in the fifth and the ninth alone."""
    spec = spec_of(options={"interval": 4})
    with engine_of(spec, tier="disk", slots=2, **config) as engine:
        method, written = methods.make(spec), []
        tier = engine.store.streamed.tier
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


@pytest.mark.parametrize("name", ["gpt2-tiny", "llama-tiny", "opt-350m-tiny", "roberta-tiny", "mixtral-tiny"])
def test_other_families_are_right_too(name):
    """GPT-2 has transposed layers, OPT-350M projections, RoBERTa a bias of its own, Mixtral experts in one tensor."""
    model, points = other_family(name), [Point(), Point(3, EPS), Point(3, -EPS), Point(4, EPS, None, 9)]
    ids = torch.arange(12).view(2, 6) * 3 % 50 + 5
    batch, wanted = Batch(ids, ids), []
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    for point in points:
        with torch.no_grad():
            for n, (_, tensor) in enumerate(model.named_parameters()):
                if point.seed is not None:
                    tensor.add_(direction(n, tensor.shape, point.seed, point.subspace, 3) * point.scale)
        wanted.append(own_loss(model, batch))
        model.load_state_dict(before)
    for config in ({"placement": "resident"}, {"slots": 2}):
        with Engine(other_family(name), EngineConfig(noise="counter", **config), directions=LowRank(3)) as engine:
            assert engine.probe(batch, points) == pytest.approx(wanted, rel=1e-5)
    assert abs(wanted[1] - wanted[2]) > 1e-4


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_sixteen_bits_come_near_to_the_weights_that_are_made_whole(dtype):
    """To the rounding of one product in 16 bits; updates that are pending are not rounded to 16 bits one by one."""
    batch = batches("opt-tiny")[0]
    model = materialised("opt-tiny", dtype, None)
    with Engine(
        models.build("opt-tiny", dtype), EngineConfig(noise="counter"), weights=RandomWeights(model, 3),
        directions=LowRank(2),
    ) as engine:  # fmt: skip
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


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"noise": "torch"}, "`method=lozo` needs noise=counter"),
        ({"compile": True}, "`method=lozo` needs compile=False"),
        ({"survival": True}, "`method=lozo` needs survival=False"),
        ({"options": {"rank": 2.5}}, "`options.rank` must be of type int"),
    ],
)
def test_a_spec_that_cannot_run_is_one_line(changes, told):
    with pytest.raises(ValueError, match=told):
        spec_of(**changes)


@pytest.mark.parametrize("options", [{"rank": 0}, {"interval": 0}])
def test_constants_out_of_range_are_one_line(options):
    spec = spec_of(options=options)
    with pytest.raises(ValueError, match=r"`options\.(rank|interval) >= 1` must hold, but got") as error:
        methods.make(spec)
    assert "\n" not in str(error.value)
