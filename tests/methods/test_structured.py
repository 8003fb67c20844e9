"""LOZO, LOZO-M, SubZero and ZO-Muon on the engine: their formulas, where a model rests, and runs that go on."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.low_rank import direction, engine_of, other_family
from zobench import Batch, Engine, EngineConfig, RunSpec, kernels, methods, models
from zobench.cost import footprint
from zobench.engine import Entry, Point
from zobench.engine.directions.factor_rules import orthogonalised
from zobench.engine.directions.factors import Core, LowRank, Projected
from zobench.engine.passes import products
from zobench.engine.twin import model_loss as own_loss
from zobench.measure.ledger import Ledger
from zobench.models.weights import RandomWeights
from zobench.testing.plain import PlainModel, full, padded

EPS, DECAY = 1e-2, 0.1
OWN: dict[str, dict[str, Any]] = {
    "lozo": {"lr": 1e-2, "options": {"interval": 3}},
    "lozo-m": {"lr": 1e-2, "options": {"interval": 3, "beta": 0.8}},
    "subzero": {"lr": 1e-2, "options": {"interval": 3, "rank": 5}},
    "zo-muon": {"lr": 1e-2, "queries": 3, "options": {"interval": 3, "rank": 6, "vectors": 0.5}},
}
MODES: dict[str, dict[str, Any]] = {
    "blocks": {"slots": 2},
    "tiles on disk": {"granularity": "tile", "tier": "disk", "slots": 2},
    "late": {"writeback_every": 7, "granularity": "linear"},
}
CASES = [
    (name, definition, mode)
    for name in OWN
    for definition, mode in (("as-written", "blocks"), ("as-written", "tiles on disk"), ("as-shipped", "late"))
]


pytestmark = pytest.mark.usefixtures("small_tiles")
Arrays = dict[str, np.ndarray]


def normals(number: int, seed: int, start: int, *shape: int) -> np.ndarray:
    made = torch.empty(shape)
    kernels.normals(seed, kernels.Span(number, start), made)
    return made.numpy().astype(np.float64)


def columns(normal: np.ndarray) -> np.ndarray:
    """Orthonormal columns: those of the one QR decomposition whose R has a positive diagonal."""
    q, r = np.linalg.qr(normal)
    return q * np.sign(np.diag(r))


def core(number: int, seed: int, subspace: int, m: int, n: int, rank: int) -> np.ndarray:
    """U Z V^T (m, n)."""
    a, b = min(rank, m), min(rank, n)
    u = columns(normals(number, subspace, a * b, m, a))
    v = columns(normals(number, subspace, a * b + m * a, n, b))
    return u @ normals(number, seed, 0, a, b) @ v.T


def projection(number: int, subspace: int, m: int, n: int, rank: int) -> np.ndarray:
    """P (m, k), of P Psi (m, n)."""
    k = min(rank, m)
    return columns(normals(number, subspace, k * n, m, k))


def msign(x: np.ndarray) -> np.ndarray:
    """Five iterations of degree five on the singular values, which is what Newton and Schulz's products come to."""
    u, s, vt = np.linalg.svd(x / (np.linalg.norm(x) + 1e-7), full_matrices=False)
    for _ in range(5):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    return u * s @ vt


class Formula:
    """The iterates of a method by its paper, or as shipped. ``x``: the weights by name; a vector goes along z."""

    def __init__(self, spec: RunSpec) -> None:
        self.model, self.spec, self.shipped = PlainModel("counter"), spec, spec.definition == "as-shipped"
        self.draws, self.t = np.random.default_rng(spec.seed), 0
        self.x: Arrays = {name: tensor.numpy().astype(np.float64) for name, tensor in self.model.tensors.items()}
        self.numbers = {name: number for number, name in enumerate(self.x)}
        self.rank, self.interval = spec.option("rank"), spec.option("interval")

    @property
    def begins(self) -> bool:
        return self.t % self.interval == 0

    def loss(self, batch: Batch, z: Arrays | None = None, scale: float = 0.0) -> float:
        moved = self.x if z is None else {name: x + scale * z[name] for name, x in self.x.items()}
        self.model.set({name: torch.from_numpy(x.astype(np.float32)) for name, x in moved.items()})
        return self.model.loss(batch)

    def z(self, seed: int, subspace: int) -> Arrays:
        return {
            name: self.matrix(number, seed, subspace, *self.x[name].shape)
            if self.x[name].ndim == 2
            else normals(number, seed, 0, *self.x[name].shape)
            for name, number in self.numbers.items()
        }

    def losses(self, batch: Batch, seeds: list[int]) -> list[float]:
        """At W +- eps z."""
        zs = [self.z(seed, self.subspace) for seed in seeds]
        return [self.loss(batch, z, sign * self.spec.eps) for z in zs for sign in (1, -1)]

    def look(self, batch: Batch) -> list[float]:
        """The losses of the next step's points."""
        self.seeds = [int(self.draws.integers(10**9)) for _ in range(self.spec.queries)]
        if self.begins:
            self.enter()
        return self.losses(batch, self.seeds)

    def enter(self) -> None:
        self.subspace = self.seeds[0]

    def step(self, slopes: list[float]) -> None:
        """The update from g of each direction."""
        for name, change in self.changes(slopes).items():
            decayed = "bias" not in name and "layer_norm" not in name
            self.x[name] = self.x[name] - self.spec.lr * (change + decayed * self.spec.weight_decay * self.x[name])
        self.t += 1

    def matrix(self, number: int, seed: int, subspace: int, m: int, n: int) -> np.ndarray:
        raise NotImplementedError

    def changes(self, slopes: list[float]) -> Arrays:
        raise NotImplementedError


class LOZO(Formula):
    def v(self, number: int, subspace: int, m: int, n: int) -> np.ndarray:
        return normals(number, subspace, m * self.rank, self.rank, n).T

    def matrix(self, number: int, seed: int, subspace: int, m: int, n: int) -> np.ndarray:
        return normals(number, seed, 0, m, self.rank) @ self.v(number, subspace, m, n).T

    def moved(self) -> list[int]:
        """The seeds of the update: the program has another U in the step that draws V."""
        return [seed + 10**9 for seed in self.seeds] if self.shipped and self.begins else self.seeds

    def changes(self, slopes: list[float]) -> Arrays:
        zs, share = [self.z(seed, self.subspace) for seed in self.moved()], 1 if self.shipped else self.rank
        return {name: sum(g * z[name] for g, z in zip(slopes, zs, strict=True)) / len(zs) / share for name in self.x}


class LOZOM(LOZO):
    def __init__(self, spec: RunSpec) -> None:
        super().__init__(spec)
        self.m: Arrays = {}

    def enter(self) -> None:
        old = getattr(self, "subspace", None)
        self.subspace = self.seeds[0]
        for name, number in self.numbers.items() if old is not None else ():
            if (shape := self.x[name].shape)[1:]:
                across = self.v(number, old, *shape).T @ self.v(number, self.subspace, *shape)
                self.m[name] = self.m[name] @ across / shape[1]

    def changes(self, slopes: list[float]) -> Arrays:
        beta, made = self.spec.option("beta"), {}
        seeds = self.moved()
        for name, number in self.numbers.items():
            shape = self.x[name].shape
            factor_shape = (shape[0], self.rank) if len(shape) == 2 else shape
            draws = [normals(number, seed, 0, *factor_shape) for seed in seeds]
            ghat: Any = sum(g * u for g, u in zip(slopes, draws, strict=True)) / len(seeds)
            if not self.shipped:
                ghat = ghat / self.rank
            alone = self.shipped and self.t == 0
            self.m[name] = ghat if alone else beta * self.m.get(name, 0 * ghat) + (1 - beta) * ghat
            made[name] = self.m[name] @ self.v(number, self.subspace, *shape).T if len(shape) == 2 else self.m[name]
        return made


class SubZero(Formula):
    def matrix(self, number: int, seed: int, subspace: int, m: int, n: int) -> np.ndarray:
        z = core(number, seed, subspace, m, n, self.rank)
        return z * math.sqrt(m * n / (min(self.rank, m) * min(self.rank, n))) if self.shipped else z

    def changes(self, slopes: list[float]) -> Arrays:
        zs = [self.z(seed, self.subspace) for seed in self.seeds]
        return {name: sum(g * z[name] for g, z in zip(slopes, zs, strict=True)) / len(zs) for name in self.x}


class ZOMuon(Formula):
    def p(self, number: int, subspace: int, m: int, n: int) -> np.ndarray:
        return projection(number, subspace, m, n, self.rank)

    def psi(self, number: int, seed: int, m: int, n: int) -> np.ndarray:
        return normals(number, seed, 0, min(self.rank, m), n)

    def matrix(self, number: int, seed: int, subspace: int, m: int, n: int) -> np.ndarray:
        return self.p(number, subspace, m, n) @ self.psi(number, seed, m, n)

    def enter(self) -> None:
        self.subspace = self.seeds[-1 if self.shipped else 0]

    def losses(self, batch: Batch, seeds: list[int]) -> list[float]:
        """At W, and at W + eps z."""
        apart = self.shipped and self.begins
        zs = [self.z(seed, seed if apart else self.subspace) for seed in seeds]
        return [self.loss(batch), *(self.loss(batch, z, self.spec.eps) for z in zs)]

    def changes(self, slopes: list[float]) -> Arrays:
        made, share = {}, 1e-7 / self.spec.lr if self.shipped else self.spec.option("vectors")
        for name, number in self.numbers.items():
            shape, pairs = self.x[name].shape, list(zip(slopes, self.seeds, strict=True))
            if len(shape) == 2:
                low = sum(g * self.psi(number, seed, *shape) for g, seed in pairs) / len(pairs)
                made[name] = self.p(number, self.subspace, *shape) @ msign(low)
            else:
                total: Any = sum(g * normals(number, seed, 0, *shape) for g, seed in pairs)
                made[name] = share * total / len(pairs)
        return made


FORMULAS: dict[str, type[Formula]] = {"lozo": LOZO, "lozo-m": LOZOM, "subzero": SubZero, "zo-muon": ZOMuon}


def spec_of(name: str, **changes: Any) -> RunSpec:
    fields = {**OWN[name], **changes, "options": {**OWN[name]["options"], **changes.get("options", {})}}
    return RunSpec(model="opt-tiny", eps=EPS, seed=5, noise="counter", method=name, **fields)


def batch_of(number: int) -> Batch:
    return (full, padded)[number % 2]()


@pytest.mark.parametrize(("name", "definition", "mode"), CASES)
def test_each_step_is_the_formula(name, definition, mode, monkeypatch):
    """Losses to 1e-5 although no W + eps A F B is made, g to what follows, weights after each of seven steps."""
    monkeypatch.setattr(products, "TOGETHER", 42 if mode == "blocks" else 1024)
    spec = spec_of(name, definition=definition, weight_decay=DECAY, queries=OWN[name].get("queries", 2))
    formula, method, moved = FORMULAS[name](spec), methods.make(spec), 0.0
    with engine_of(spec, **MODES[mode]) as engine:
        seen: list[float] = []
        probe = engine.probe
        engine.probe = lambda batch, points: seen.extend(probe(batch, points)) or seen[-len(points) :]  # type: ignore
        for number in range(7):
            before = {key: x.copy() for key, x in formula.x.items()}
            result, wanted = method.step(engine, batch_of(number)), formula.look(batch_of(number))
            assert seen[-len(wanted) :] == pytest.approx(wanted, rel=1e-5)
            formula.step(list(result.gradients))  # the losses' own, which differ by rounding over eps
            for key, tensor in engine.named_tensors():
                np.testing.assert_allclose(tensor.numpy(), formula.x[key], rtol=0, atol=3e-6, err_msg=key)
                moved = max(moved, float(np.abs(formula.x[key] - before[key]).max()))
                formula.x[key] = tensor.numpy().astype(np.float64)
            assert result.applied
    assert moved > 1e-3


def test_an_estimate_that_is_zero_moves_nothing():
    assert not orthogonalised(torch.zeros(5, 3)).any()


@pytest.mark.parametrize("name", ["gpt2-tiny", "opt-350m-tiny", "mixtral-tiny"])
@pytest.mark.parametrize("directions", [LowRank(3), Core(3), Projected(3)], ids=["low rank", "core", "projected"])
def test_other_families_are_right_too(name, directions):
    """GPT-2 has transposed layers, OPT-350M projections, Mixtral experts in one tensor."""

    def z(number: int, shape: torch.Size, seed: int, subspace: int | None) -> torch.Tensor:
        if len(shape) != 2:
            return torch.from_numpy(normals(number, seed, 0, *shape)).float()
        (m, n), key_of = shape, seed if subspace is None else subspace
        if type(directions) is LowRank:
            return direction(number, shape, seed, subspace, 3)
        if isinstance(directions, Core):
            return torch.from_numpy(core(number, seed, key_of, m, n, 3)).float()
        left = projection(number, key_of, m, n, 3)
        return torch.from_numpy(left @ normals(number, seed, 0, left.shape[1], n)).float()

    model, points = other_family(name), [Point(), Point(3, EPS), Point(3, -EPS), Point(4, EPS, None, 9)]
    ids = torch.arange(12).view(2, 6) * 3 % 50 + 5
    batch, wanted = Batch(ids, ids), []
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    for point in points:
        with torch.no_grad():
            for n, (_, tensor) in enumerate(model.named_parameters()):
                if point.seed is not None:
                    tensor.add_(z(n, tensor.shape, point.seed, point.subspace) * point.scale)
        wanted.append(own_loss(model, batch))
        model.load_state_dict(before)
    for config in ({"placement": "resident"}, {"slots": 2}):
        with Engine(other_family(name), EngineConfig(noise="counter", **config), directions=directions) as engine:
            assert engine.probe(batch, points) == pytest.approx(wanted, rel=1e-5)
    assert abs(wanted[1] - wanted[2]) > 1e-4


@pytest.mark.slow
def test_memory_is_predicted():
    """The peak of an offloaded OPT-125M, counted on the meta device with what is pending and a momentum: the planner
    says no less than 95 % of it, and not much more."""
    spec = RunSpec(
        model="OPT-125M", seq_len=256, noise="counter", method="lozo-m", engine="offload", tier="pinned",
        device="cuda:0",
    )  # fmt: skip
    model, ids = models.build("OPT-125M", "fp32"), torch.empty(1, 256, dtype=torch.long, device="meta")
    weights, settings = RandomWeights(model, 0), EngineConfig(device="meta", noise="counter", slots=3)
    directions, method = methods.directions(spec), methods.make(spec)
    with Ledger("meta") as ledger, Engine(model, settings, weights=weights, directions=directions) as engine:
        for step in range(2):  # losses are not there, so that g is given
            method.step(engine, Batch(ids, ids))
            kept = method.state()["subspace"]
            engine.commit(
                [Entry(step=step, seed=3, g=1.0, lr=1e-3, subspace=kept, extra=float(kept) if step else -1.0)]
            )
        peak = ledger.peak
    assert 0.95 * peak <= footprint.memory(spec)[0] <= 1.05 * peak
