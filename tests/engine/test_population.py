"""A population in one forward against its members one by one, whose W + c U V^T are made whole in plain torch."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.support import adapters
from tests.support.low_rank import direction, engine_of, other_family
from zobench import Batch, Engine, EngineConfig, RunSpec, kernels, methods
from zobench.engine import BASE, Point
from zobench.engine.directions.factors import IndependentLowRank
from zobench.engine.passes import products
from zobench.engine.passes.population import Population
from zobench.engine.twin import model_loss as own_loss
from zobench.kernels import Span, philox
from zobench.methods.eggroll import less_loss
from zobench.testing.plain import PlainModel, choosing, full, padded, skeleton, start

RANK_1, RANK_2 = IndependentLowRank(1), IndependentLowRank(2)
EPS, LR, DECAY = 1e-2, 1e-3, 0.1
POINTS = [Point(3, EPS), Point(3, -EPS), Point(4, EPS), Point(4, -EPS), BASE, Point(5, 2 * EPS)]
MODES: dict[str, dict[str, Any]] = {
    "resident": {"placement": "resident"},
    "blocks": {"slots": 2},
    "linears on disk": {"granularity": "linear", "tier": "disk", "slots": 2},
    "tiles": {"granularity": "tile", "slots": 2},
    "every third step": {"writeback_every": 3},
}


def normalised(number: int, shape: torch.Size, seed: int, subspace: int | None, rank: int) -> Tensor:
    """z of the parameter of this number in ``named_parameters()``; its elements have the variance 1."""
    z = direction(number, shape, seed, subspace, rank)
    return z / math.sqrt(rank) if len(shape) == 2 else z


@contextmanager
def at(model: Any, point: Point, rank: int) -> Iterator[None]:
    """Inside, the model's weights are W + c E."""
    before = [tensor.detach().clone() for tensor in model.parameters()]
    with torch.no_grad():
        for number, tensor in enumerate(model.parameters()):
            if point.seed is not None:
                tensor.add_(normalised(number, tensor.shape, point.seed, point.subspace, rank), alpha=point.scale)
        yield
        for tensor, weight in zip(model.parameters(), before, strict=True):
            tensor.copy_(weight)


def one_by_one(
    model: Any, batches: Sequence[Batch], points: Sequence[Point], rank: int, look: Callable[..., Any] = own_loss
) -> list[Any]:
    """What ``look(model, batch)`` gives of each member, one after another."""
    seen = []
    for batch, point in zip(batches, points, strict=True):
        with at(model, point, rank):
            seen.append(look(model, batch))
    return seen


def rows_of(batch: Batch, members: int) -> list[Batch]:
    """A row for each member, in turn."""
    whole = [batch.shard(row, batch.examples) for row in range(batch.examples)]
    return [whole[member % len(whole)] for member in range(members)]


def less(losses: Sequence[float]) -> list[float]:
    return [-loss for loss in losses]


# --- one forward ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rank", [1, 3])
@pytest.mark.parametrize("mode", MODES)
def test_each_row_sees_weights_of_its_own(mode, rank, monkeypatch):
    """Row i alone at W + c_i E_i gives loss i; and so does the whole batch at each point."""
    monkeypatch.setattr(products, "TOGETHER", 14 if mode == "blocks" else 1024)  # two members of a row at once
    plain = PlainModel("counter").model
    with Engine(
        skeleton(), EngineConfig(noise="counter", **MODES[mode]), weights=start(), directions=IndependentLowRank(rank)
    ) as engine:
        for batch in (full(), padded()):
            rows = rows_of(batch, len(POINTS))
            wanted = one_by_one(plain, rows, POINTS, rank)
            assert engine.fitness(less_loss, rows, POINTS) == pytest.approx(less(wanted), rel=1e-5)
            wanted = one_by_one(plain, [batch] * len(POINTS), POINTS, rank)
            assert engine.probe(batch, POINTS) == pytest.approx(wanted, rel=1e-5)
            assert max(abs(loss - wanted[4]) for loss in wanted) > 1e-3
        assert engine.passes == 4


@pytest.mark.parametrize("name", ["gpt2-tiny", "llama-tiny", "opt-350m-tiny", "roberta-tiny", "mixtral-tiny"])
def test_other_families_are_right_too(name):
    """Transposed layers, RMS norms, positions that rows share, projections, a head's bias, experts in one tensor."""
    ids = torch.arange(24).view(4, 6) * 3 % 50 + 5
    mask = torch.ones_like(ids)
    for batch in (Batch(ids, ids), Batch(ids, ids, mask)):
        rows = [batch.shard(member % 2, 2) for member in range(len(POINTS))]  # two for each member
        wanted = one_by_one(other_family(name), rows, POINTS, 2)
        for config in ({"placement": "resident"}, {"slots": 2}):
            with Engine(other_family(name), EngineConfig(noise="counter", **config), directions=RANK_2) as engine:
                assert engine.fitness(less_loss, rows, POINTS) == pytest.approx(less(wanted), rel=1e-5)
    assert abs(wanted[0] - wanted[1]) > 1e-4


def test_points_of_one_subspace_are_as_any_other():
    points, batch, plain = [Point(3, EPS, None, 9), Point(4, EPS, None, 9)], full(), PlainModel("counter")
    with Engine(skeleton(), EngineConfig(noise="counter"), weights=start(), directions=RANK_2) as engine:
        losses = engine.probe(batch, points)
    assert losses == pytest.approx(one_by_one(plain.model, [batch] * 2, points, 2), rel=1e-5)


def test_candidates_of_several_tokens_are_scored_by_each_members_own_weights():
    """The examples have one, two and one rows: the smaller ones repeat theirs, and it changes nothing."""
    batch, plain = choosing(), PlainModel("counter")
    shards = [batch.shard(0, 2), batch.shard(1, 2)]
    rows, points = [shards[0], shards[1], batch, shards[1]], POINTS[:4]
    assert len({len(row.input_ids) for row in rows}) == 3
    with Engine(skeleton(), EngineConfig(noise="counter", slots=2), weights=start(), directions=RANK_1) as engine:
        members = Population(engine, points)
        scores, losses = members.scores(rows), members.losses(rows)
    plain_scores = one_by_one(plain.model, rows, points, 1, lambda model, row: plain.scores(row))
    for row, wanted in zip(scores, plain_scores, strict=True):
        assert torch.allclose(row, wanted, rtol=1e-5)
    assert losses == pytest.approx(one_by_one(plain.model, rows, points, 1, lambda _, row: plain.loss(row)), rel=1e-5)


@pytest.mark.parametrize("scheme", ["lora", "prefix", "prompt"])
def test_an_adapter_has_members_too(scheme):
    """Its weights alone move: losses are those of one member after another."""
    (batch,) = adapters.batches("opt-tiny", 1)
    config = EngineConfig(noise="counter", slots=2)
    points = POINTS[:4]
    model, done, initial = adapters.applied("opt-tiny", scheme, config)
    with Engine(model, config, weights=initial, drive=done.drive, directions=RANK_2) as engine:
        fitness = engine.fitness(less_loss, [batch] * 4, points)
        assert fitness == pytest.approx([-engine.probe(batch, [point])[0] for point in points], rel=1e-5)
        base = engine.evaluate(batch)
    assert all(abs(loss + base) > 1e-6 for loss in fitness) or scheme == "lora"  # whose B is zero at first


def test_a_member_generates_with_its_own_weights():
    """The next token's logits are those of transformers with W + c E made whole."""
    rows, points = rows_of(full(), 4), [Point(seed, 0.1) for seed in (3, 4, 5, 6)]
    seen: list[Tensor] = []

    def reward(members: Population, batches: Sequence[Batch]) -> list[float]:
        seen.extend(members.next_logits(batches))
        return [float(logits.argmax()) for logits in seen]

    with Engine(skeleton(), EngineConfig(noise="counter"), weights=start(), directions=RANK_1) as engine:
        rewards = engine.fitness(reward, rows, points)
    wanted = one_by_one(PlainModel("counter").model, rows, points, 1, lambda model, row: model(row.input_ids).logits)
    for logits, whole in zip(seen, wanted, strict=True):
        torch.testing.assert_close(logits.flatten(), whole[0, -1], rtol=1e-4, atol=1e-5)
    assert rewards == [float(whole[0, -1].argmax()) for whole in wanted]


# --- steps ------------------------------------------------------------------------------------------------------------


def spec_of(**changes: Any) -> RunSpec:
    options = {"rank": 2, **changes.pop("options", {})}
    settings = {"lr": LR * EPS, "eps": EPS, "seed": 5, "noise": "counter", "queries": 3, "batch_size": 3}
    return RunSpec(model="opt-tiny", method="eggroll", options=options, **{**settings, **changes})


class Formula:
    """EGGROLL as its paper has it, in NumPy: W += lr / (P sigma) * sum of f E. ``shipped``: lr sigma / sqrt(P)."""

    def __init__(self, spec: RunSpec) -> None:
        self.model, self.spec, self.draws = PlainModel("counter"), spec, np.random.default_rng(spec.seed)
        self.x = {name: tensor.numpy().astype(np.float64) for name, tensor in self.model.tensors.items()}

    def members(self, batch: Batch) -> tuple[list[Batch], list[tuple[int, float]]]:
        seeds = [int(self.draws.integers(10**9)) for _ in range(self.spec.queries)]
        signs = (1.0, -1.0) if self.spec.option("antithetic") else (1.0,)
        pair = [(seed, sign) for seed in seeds for sign in signs]
        count = self.spec.option("shards")
        return [batch.shard(number * count // len(pair), count) for number in range(len(pair))], pair

    def direction(self, seed: int) -> dict[str, np.ndarray]:
        rank = self.spec.option("rank")
        return {
            name: normalised(n, torch.Size(x.shape), seed, None, rank).numpy().astype(np.float64)
            for n, (name, x) in enumerate(self.x.items())
        }

    def fitness(self, f: np.ndarray) -> np.ndarray:
        shards, name = self.spec.option("shards"), self.spec.option("shaping")
        groups = f.reshape(1, -1) if shards == len(f) else f.reshape(shards, -1)
        if name == "ranks":
            return (groups.argsort(1).argsort(1) / (groups.shape[1] - 1) - 0.5).ravel()
        if name == "z-score":
            floor = 1e-5 if self.spec.definition == "as-shipped" else 0.0
            return ((groups - groups.mean(1, keepdims=True)) / np.sqrt(f.var() + floor)).ravel()
        return f

    def step(self, batch: Batch) -> float:
        batches, members = self.members(batch)
        losses = []
        for pair, (seed, sign) in zip(batches, members, strict=True):
            e = self.direction(seed)
            self.model.set(
                {name: torch.from_numpy((x + sign * EPS * e[name]).astype(np.float32)) for name, x in self.x.items()}
            )
            losses.append(self.model.loss(pair))
        f, total = self.fitness(-np.array(losses)), {name: np.zeros_like(x) for name, x in self.x.items()}
        for own_f, (seed, sign) in zip(f, members, strict=True):
            for name, e in self.direction(seed).items():  # type: ignore[assignment]
                total[name] += own_f * sign * e
        p = len(members)
        scale = EPS / np.sqrt(p) if self.spec.definition == "as-shipped" else 1 / (p * EPS)
        for name, x in self.x.items():
            decay = 0.0 if "bias" in name or "layer_norm" in name else self.spec.weight_decay
            self.x[name] = x + self.spec.lr * (scale * total[name] - decay * x)
        return float(np.mean(losses))


CASES: dict[str, dict[str, Any]] = {
    "ranks, pairs with rows of their own": {"options": {"shaping": "ranks", "shards": 3}, "weight_decay": DECAY},
    "no shaping": {"options": {"shaping": "none", "shards": 3, "antithetic": False, "rank": 1}, "lr": LR},
    "shipped": {"definition": "as-shipped", "lr": 0.05, "options": {"shards": 3}, "queries": 6},
}


@pytest.mark.parametrize(
    ("case", "mode"),
    [
        *((case, "resident") for case in CASES),
        ("shipped", "blocks"),
        ("shipped", "linears on disk"),
        ("ranks, pairs with rows of their own", "every third step"),
    ],
)
def test_each_step_is_the_formula(case, mode):
    """Weights after each of four steps; where none of W + sigma E is ever made."""
    spec = spec_of(**CASES[case])
    formula, method = Formula(spec), methods.make(spec)
    before = dict(formula.x)
    with engine_of(spec, **MODES[mode]) as engine:
        for number in range(4):
            batch = (full, padded)[number % 2]()
            result = method.step(engine, batch)
            assert result.loss == pytest.approx(formula.step(batch), rel=1e-5)
            tensors = dict(engine.named_tensors())
            for name, x in formula.x.items():
                change = np.abs(x - before[name]).max()
                # fitness is a difference of losses that are equal to 1e-7
                np.testing.assert_allclose(tensors[name].numpy(), x, rtol=0, atol=2e-3 * change + 1e-7, err_msg=name)
                formula.x[name] = tensors[name].numpy().astype(np.float64)
            before = dict(formula.x)
            assert result.applied


def test_accuracy_is_a_reward():
    """Of which no gradient exists: the share of examples whose answer has the largest score at a member's weights."""
    spec = spec_of(task="sst2", options={"reward": "accuracy"})
    batch, points = choosing(), [Point(seed, sign * 0.1) for seed in range(16) for sign in (1, -1)]
    with engine_of(spec) as engine:
        rewards = engine.fitness(methods.make(spec).reward, [batch] * 32, points)  # type: ignore[attr-defined]
    plain = PlainModel("counter")
    right = one_by_one(plain.model, [batch] * 32, points, 2, lambda _, row: _share(plain.scores(row), row))
    assert rewards == right
    assert len(set(right)) > 1


def _share(scores: Tensor, batch: Batch) -> float:
    groups, right = batch.choices.groups, 0
    for example, answer in enumerate(batch.choices.answers.tolist()):
        places = (groups == example).nonzero().flatten()
        right += int(places[scores[places].argmax()] == answer)
    return right / len(batch.choices.answers)


@pytest.mark.parametrize("module", [kernels, philox], ids=["compiled", "reference"])
def test_normals_of_several_seeds_are_those_of_each(module):
    """Also where a tensor is longer than a thread's piece, and begins inside a counter."""
    seeds = (3, 2**63 + 1, 5)
    for shape, at in (((7,), 0), ((5, 33), 3), ((70_000,), 2)):
        out, single = torch.empty(3, *shape), torch.empty(shape)
        module.normals_each(seeds, Span(4, at), out)
        for number, seed in enumerate(seeds):
            philox.normals(seed, Span(4, at), single)
            assert torch.equal(out[number], single)


def test_what_does_not_fit_is_one_line():
    rows = rows_of(full(), 4)
    shorter = Batch(rows[3].input_ids[:, 1:], rows[3].labels[:, 1:])
    with Engine(skeleton(), EngineConfig(noise="counter"), weights=start(), directions=RANK_1) as engine:
        for batches, message in ((rows[:3], "one for each of 4 points"), ([*rows[:3], shorter], "of widths")):
            with pytest.raises(ValueError, match=message):
                engine.fitness(less_loss, batches, POINTS[:4])
        with pytest.raises(ValueError, match="one number for each of 4 members"):
            engine.fitness(lambda members, batches: [1.0], rows, POINTS[:4])
    with (
        Engine(skeleton(), EngineConfig(noise="counter"), weights=start()) as engine,
        pytest.raises(ValueError, match="give directions=IndependentLowRank"),
    ):
        engine.fitness(less_loss, rows, POINTS[:4])
    for settings in ({"packed": True}, {"accumulate": 2}):
        with pytest.raises(ValueError, match="need packed=false and accumulate=1"):
            Engine(skeleton(), EngineConfig(noise="counter", **settings), weights=start(), directions=RANK_1)
