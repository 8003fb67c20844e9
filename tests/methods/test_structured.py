"""LOZO-M, SubZero and ZO-Muon on the engine: their formulas, where a model rests, and runs that go on."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.support import structured
from tests.support.low_rank import other_family
from tests.support.structured import FORMULAS
from zobench import Batch, Engine, EngineConfig, RunSpec, methods, models
from zobench.durable.journal import JournalFile, read
from zobench.engine import Entry, Point
from zobench.engine.directions.factor_rules import orthogonalised, orthonormal
from zobench.engine.directions.factors import Core, Factors, LowRank, Projected
from zobench.engine.passes import products
from zobench.engine.twin import own_loss
from zobench.engine.updates.pending import Pending
from zobench.engine.weights import blocks
from zobench.measure.ledger import Ledger
from zobench.methods.base import Taken
from zobench.methods.zo_sgd import ZOSGD
from zobench.models.weights import RandomWeights
from zobench.predict import footprint, seconds, sizes
from zobench.runspec import METHODS
from zobench.testing.plain import full, padded, skeleton, start
from zobench.testing.suite import assert_same

EPS, DECAY = 1e-2, 0.1
OWN: dict[str, dict[str, Any]] = {
    "lozo-m": {"lr": 1e-2, "options": {"interval": 3, "beta": 0.8}},
    "subzero": {"lr": 1e-2, "options": {"interval": 3, "rank": 5}},
    "zo-muon": {"lr": 1e-2, "queries": 3, "options": {"interval": 3, "rank": 6, "vectors": 0.5}},
}
MODES: dict[str, dict[str, Any]] = {
    "resident": {"placement": "resident"},
    "blocks": {"slots": 2},
    "tiles on disk": {"granularity": "tile", "tier": "disk", "slots": 2},
    "late": {"writeback_every": 7, "granularity": "linear"},
}
CASES = [
    (name, definition, mode)
    for name in OWN
    for definition, modes in (("as-written", ("blocks", "tiles on disk")), ("as-shipped", ("resident", "late")))
    for mode in modes
]


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch):
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    monkeypatch.setattr(blocks.tiles, "__defaults__", (20_000,))
    yield
    torch.set_num_threads(before)


def spec_of(name: str, **changes: Any) -> RunSpec:
    own = {**OWN[name], **changes, "options": {**OWN[name]["options"], **changes.get("options", {})}}
    return RunSpec(model="opt-tiny", eps=EPS, seed=5, noise="counter", method=name, **own)


def engine_of(spec: RunSpec, **config: Any) -> Engine:
    settings = EngineConfig(noise="counter", **config)
    return Engine(skeleton(), settings, weights=start(), directions=methods.directions(spec))


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


@pytest.mark.parametrize("definition", ["as-written", "as-shipped"])
def test_a_momentum_whose_subspace_lasts_one_step(definition):
    """As written it is carried over in every step; the program keeps no V of such, so its matrices begin anew."""
    spec = spec_of("lozo-m", definition=definition, options={"interval": 1})
    formula, method = FORMULAS["lozo-m"](spec), methods.make(spec)
    with engine_of(spec, **MODES["blocks"]) as engine:
        for number in range(4):
            formula.look(batch_of(number))
            formula.step(list(method.step(engine, batch_of(number)).gradients))
            for key, tensor in engine.named_tensors():
                np.testing.assert_allclose(tensor.numpy(), formula.x[key], rtol=0, atol=3e-5, err_msg=key)
        assert not formula.shipped or formula.m["model.decoder.final_layer_norm.weight"].any()


@pytest.mark.parametrize("name", OWN)
def test_where_a_model_rests_changes_no_bit_when_a_subspace_ends(name):
    """Of losses, weights and state, in five steps of which the fourth draws another subspace."""
    spec, runs = spec_of(name, weight_decay=DECAY), []
    for config in (MODES["resident"], MODES["blocks"], {"tier": "disk", "overlap": False}, {"resident_blocks": 1}):
        with engine_of(spec, **config) as engine:
            method = methods.make(spec)
            steps = [method.step(engine, batch_of(number)) for number in range(5)]
            runs.append((steps, engine.evaluate(full()), dict(engine.named_tensors()), dict(engine.state_tensors())))
    for steps, loss, tensors, states in runs[1:]:
        assert (steps, loss) == runs[0][:2]
        assert_same(tensors, runs[0][2])
        assert_same(states, runs[0][3])
    assert bool(runs[0][3]) == (name == "lozo-m")


@pytest.mark.parametrize("config", list(MODES.values())[1:], ids=list(MODES)[1:])
@pytest.mark.parametrize("name", OWN)
def test_a_run_is_made_again_from_its_journal_whatever_the_moment(name, config, tmp_path):
    """From its file: after two steps, and in the second and the third interval; momentum and weights have every bit."""
    spec = spec_of(name, weight_decay=DECAY, definition="as-shipped")

    def taken(engine: Engine, method: ZOSGD, number: int) -> Taken:
        known = len(engine.journal)
        result = method.step(engine, batch_of(number))
        return Taken(
            step=number, loss=result.loss, lr=method.lr, seconds=0.1, applied=result.applied, passes=1,
            directions=tuple((seed, None) for seed in result.seeds), gradients=result.gradients,
            entries=tuple(engine.journal[known:]),
        )  # fmt: skip

    with engine_of(spec, **config) as ran:
        method = methods.make(spec)
        with JournalFile(tmp_path / "journal", {"run": "", "base": ""}) as file:
            file.append(*(taken(ran, method, number) for number in range(7)))
        last = method.step(ran, batch_of(7))
        weights, states = dict(ran.named_tensors()), dict(ran.state_tensors())
    items: list[Any] = read(tmp_path / "journal")[1]
    for count in (2, 4, 7):
        with engine_of(spec, **config) as again:
            method = methods.make(spec)
            again.retrace([record for item in items[:count] for record in item.retrace(again, method)])
            told = json.loads(json.dumps(method.state()))
            method = methods.make(spec)
            method.restore(told)
            assert [taken(again, method, number) for number in range(count, 7)] == items[count:]
            assert method.step(again, batch_of(7)) == last
            assert_same(dict(again.named_tensors()), weights)
            assert_same(dict(again.state_tensors()), states)


def test_a_momentum_follows_from_the_journal_however_far_the_weights_have_come():
    """From the middle, and from a journal that was begun anew."""
    spec = spec_of("lozo-m", queries=2)
    directions = methods.directions(spec)
    assert directions is not None
    with engine_of(spec, **MODES["resident"]) as engine:
        method = methods.make(spec)
        for number in range(5):
            method.step(engine, batch_of(number))
        journal, unit = list(engine.journal), next(unit for unit in engine.units if unit.trained)
        unit.applied = 0
        whole, again, middle = (Pending(unit, Factors(unit, directions)) for _ in range(3))
        after = [whole.state(journal[:count], "cpu").clone() for count in (4, 10)]
        again.follow(journal, "cpu")
        unit.applied = 2
        assert torch.equal(again.state(journal[:4], "cpu"), after[0])
        unit.applied = 6
        assert torch.equal(middle.state(journal, "cpu"), after[1])
        assert not torch.equal(*after)
        unit.applied = len(journal)


def test_a_step_without_a_finite_g_leaves_the_momentum():
    spec = spec_of("lozo-m")
    with engine_of(spec) as engine:
        method = methods.make(spec)
        method.step(engine, full())
        before, known = dict(engine.state_tensors()), method.state()["before"]
        probe = engine.probe
        engine.probe = lambda batch, points: [float("nan")] * len(points)  # type: ignore[method-assign]
        assert not method.step(engine, full()).applied
        engine.probe = probe  # type: ignore[method-assign]
        assert_same(dict(engine.state_tensors()), before)
        assert method.state()["before"] == known


@pytest.mark.parametrize("name", ["gpt2-tiny", "roberta-tiny", "mixtral-tiny"])
@pytest.mark.parametrize("directions", [Core(3), Projected(3)], ids=["core", "projected"])
def test_other_families_are_right_too(name, directions):
    """GPT-2 has transposed layers, RoBERTa a bias of its own, Mixtral experts in one tensor."""

    def z(number: int, shape: torch.Size, seed: int, subspace: int | None) -> torch.Tensor:
        if len(shape) != 2:
            return torch.from_numpy(structured.normals(number, seed, 0, *shape)).float()
        (m, n), own = shape, seed if subspace is None else subspace
        if isinstance(directions, Core):
            return torch.from_numpy(structured.core(number, seed, own, m, n, 3)).float()
        left = structured.projection(number, own, m, n, 3)
        return torch.from_numpy(left @ structured.normals(number, seed, 0, left.shape[1], n)).float()

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
    with Engine(other_family(name), EngineConfig(noise="counter", slots=2), directions=directions) as engine:
        assert engine.probe(batch, points) == pytest.approx(wanted, rel=1e-5)
    assert abs(wanted[1] - wanted[2]) > 1e-4


def test_columns_are_orthonormal_and_the_only_ones():
    torch.manual_seed(0)
    matrix = torch.randn(40, 7)
    q = orthonormal(matrix)
    torch.testing.assert_close(q.T @ q, torch.eye(7), rtol=0, atol=1e-5)
    r = q.T @ matrix
    assert (torch.diagonal(r) > 0).all()
    torch.testing.assert_close(r, r.triu(), rtol=0, atol=1e-4)
    assert orthonormal(torch.randn(3, 7)).shape == (3, 3)


@pytest.mark.parametrize("shape", [(6, 40), (40, 6), (8, 8)])
def test_what_is_orthogonalised_keeps_its_singular_vectors(shape):
    """And has singular values of 0.68 to 1.14, as Muon's constants give; what is zero stays zero."""
    torch.manual_seed(1)
    matrix = torch.randn(shape)
    u, _, vt = torch.linalg.svd(matrix, full_matrices=False)
    inside = u.T @ orthogonalised(matrix) @ vt.T
    values = torch.diagonal(inside)
    assert 0.6 < float(values.min()) <= float(values.max()) < 1.25
    torch.testing.assert_close(inside, torch.diag(values), rtol=0, atol=1e-4)
    assert not orthogonalised(torch.zeros(shape)).any()


@pytest.mark.parametrize(("name", "above"), [("lozo-m", 1.05), ("subzero", 1.05), ("zo-muon", 1.12)])
def test_memory_is_predicted(name, above):
    """The peak of an offloaded OPT-125M, counted on the meta device with what is pending and a momentum: the planner
    says no less than 95 % of it, and not much more, of five points up to 12 % for chunks of their logits."""
    spec = RunSpec(
        model="OPT-125M", seq_len=256, noise="counter", method=name, engine="offload", tier="pinned", device="cuda:0",
        queries=4 if name == "zo-muon" else 1,
    )  # fmt: skip
    model, ids = models.build("OPT-125M", "fp32"), torch.empty(1, 256, dtype=torch.long, device="meta")
    weights, settings = RandomWeights(model, 0), EngineConfig(device="meta", noise="counter", slots=3)
    directions, method = methods.directions(spec), methods.make(spec)
    with Ledger("meta") as ledger, Engine(model, settings, weights=weights, directions=directions) as engine:
        for step in range(2):  # losses are not there, so that g is given
            method.step(engine, Batch(ids, ids))
            own = method.state()["subspace"]
            engine.commit([Entry(step=step, seed=3, g=1.0, lr=1e-3, subspace=own, extra=float(own) if step else -1.0)])
        peak = ledger.peak.nbytes
    assert 0.95 * peak <= footprint.memory(spec)[0] <= above * peak


@pytest.mark.parametrize(
    ("name", "options", "told"),
    [
        ("subzero", {"rank": 0}, r"`options.rank >= 1` must hold, but got options.rank=0; SubZero's example uses"),
        ("zo-muon", {"interval": 0}, r"`options.interval >= 1` must hold, but got options.interval=0; ZO-Muon's"),
        ("lozo-m", {"beta": 1.0}, r"`0 <= options.beta < 1` must hold, but got options.beta=1.0; LOZO-M's script uses"),
        ("zo-muon", {"vectors": -1.0}, r"`options.vectors >= 0` must hold, but got options.vectors=-1.0; use "),
    ],
)
def test_constants_out_of_range_are_one_line(name, options, told):
    spec = spec_of(name, options=options)
    with pytest.raises(ValueError, match=told) as error:
        methods.make(spec), methods.directions(spec)
    assert "\n" not in str(error.value)


def test_the_directions_of_one_query_cannot_be_orthogonalised():
    with pytest.raises(ValueError, match=r"`method=zo-muon` needs queries=4, but got queries=1; its estimate is of"):
        spec_of("zo-muon", queries=1)


def test_a_kind_that_says_another_number_of_states_is_refused(monkeypatch):
    spec, kind = spec_of("lozo-m"), METHODS.get("lozo-m")
    wrong = replace(kind, structure=replace(kind.structure, states=0))
    monkeypatch.setattr(methods, "METHODS", SimpleNamespace(get=lambda name: wrong))
    with pytest.raises(ValueError, match=r"`structure.states` of the method 'lozo-m' must be 1, as many as its rule"):
        methods.directions(spec)


def test_what_a_step_draws_and_computes_is_predicted():
    """Of OPT-125M: SubZero draws r x r numbers of a matrix, ZO-Muon r of each column; orthogonalising is counted."""
    plain, one = (RunSpec(model="OPT-125M", noise="counter", method=name, seq_len=64) for name in ("zo-sgd", "subzero"))
    many = RunSpec(model="OPT-125M", noise="counter", method="zo-muon", seq_len=64, queries=4)
    width, layers, tables = 768, 12, 1
    vectors = layers * (9 * width + 4 * width)
    assert sizes.drawn(plain) > 1e8
    assert sizes.drawn(one) == (6 * layers + tables) * 24**2 + vectors
    assert sizes.drawn(many) == 64 * (layers * (5 * width + 4 * width) + tables * width) + vectors
    thin = 2 * 64 * (layers * (8 * width + 2 * 5 * width) + 50272 + 2050 + 2 + width + 3 * width) * 64 * 5
    update = 20 * 64**2 * (layers * 9 * width + tables * width) + 10 * 64**3 * (6 * layers + tables)
    assert seconds.low_rank_operations(many) == pytest.approx(thin + update, rel=1e-3)
    assert seconds.low_rank_operations(plain) == 0


def test_a_direction_shares_nothing_without_a_subspace():
    """What a rank of 2 is to LOZO: the bits of U V^T do not depend on the rule that is beside it."""
    spec = spec_of("lozo-m")
    rules = (methods.directions(spec), LowRank(2))
    losses = []
    for directions in rules:
        with Engine(skeleton(), EngineConfig(noise="counter"), weights=start(), directions=directions) as engine:
            losses.append(engine.probe(full(), [Point(3, EPS), Point(3, -EPS, None, 8)]))
    assert losses[0] == losses[1]
