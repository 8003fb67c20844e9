"""Every zeroth-order method against its formula, written out in NumPy, on functions of three numbers."""

import math

import numpy as np
import pytest
import torch

from tests.support.formulas import DEFINITIONS, Formula, Three, rosenbrock, z_of
from tests.support.reference import g_of
from zobench import RunSpec
from zobench.methods import learning_rate, make, rule
from zobench.runspec import METHODS

LR, EPS, SEED, STEPS = 1e-3, 1e-2, 11, 6


def spec_of(name, definition="as-written", **changes):
    settings = {"lr": LR, "eps": EPS, "seed": SEED, **changes}
    return RunSpec(model="opt-tiny", method=name, definition=definition, **settings)


def run(spec, function=rosenbrock, steps=STEPS):
    engine, method = Three(function, rule(spec)), make(spec)
    return engine, method, [method.step(engine, None) for _ in range(steps)]


@pytest.mark.parametrize(
    ("name", "definition", "queries", "decay"),
    [
        (*case, queries, decay)
        for case in DEFINITIONS
        for queries, decay in ((1, 0.0), (1, 0.5), (3, 0.5))
        if case[0] != "zo-sgd-cons" or (queries, decay) == (1, 0.0)
    ],
)
def test_each_step_is_the_formula(name, definition, queries, decay):
    """And the result tells its losses, directions and slopes; one pass over the model serves all points."""
    spec = spec_of(name, definition, queries=queries, weight_decay=decay)
    engine, method, formula = Three(rosenbrock, rule(spec)), make(spec), Formula(spec)
    parts, draws = np.eye(3) if name == "zo-sgd-block" else [np.ones(3)], np.random.default_rng(SEED)
    for step in range(1, STEPS + 1):
        before, result = engine.x, method.step(engine, None)
        assert result.seeds == tuple(int(draws.integers(10**9)) for _ in range(queries * len(parts)))
        us = [z_of(seed) * parts[n // queries] for n, seed in enumerate(result.seeds)]
        pairs = [(rosenbrock(before + EPS * u), rosenbrock(before - EPS * u)) for u in us]
        slopes = [g_of(*pair, EPS) for pair in pairs]
        assert result.gradients == pytest.approx(slopes, rel=1e-12)
        assert result.loss == pytest.approx(np.mean(pairs), rel=1e-12)
        update = formula.update([{"x": torch.from_numpy(u)} for u in us], slopes)["x"].numpy()
        if name == "zo-sgd-cons":
            update = min((0 * update, update, -update), key=lambda h, x=before: rosenbrock(x - LR * h))
        else:
            assert len(engine.probed) == step
            assert np.abs(engine.x - before).max() > 1e-5
        np.testing.assert_allclose(engine.x, before - LR * (update + decay * before), rtol=3e-6, atol=1e-6)
        assert result.applied
    assert method.skipped == 0


@pytest.mark.parametrize("start", [(-0.5, 0.8, 0.3), (0.9, 1.1, 1.0), (1.0, 1.0, 1.0)])
def test_cons_takes_the_best_of_three(start):
    spec = spec_of("zo-sgd-cons", lr=3e-3)
    engine, method = Three(rosenbrock, start=start), make(spec)
    chosen = []
    for _ in range(40):
        before, seen = engine.x, len(engine.probed)
        result = method.step(engine, None)
        candidates = [before + c * 3e-3 * result.gradients[0] * z_of(result.seeds[0]) for c in (0, -1, 1)]
        losses = [rosenbrock(candidate) for candidate in candidates]
        chosen.append(int(np.argmin(losses)))
        np.testing.assert_allclose(engine.x, candidates[chosen[-1]], rtol=1e-6, atol=1e-7)
        assert engine.function(engine.x) <= losses[0] * (1 + 1e-6) + 1e-9
        assert [len(points) for points in engine.probed[seen:]] == [2, 3]  # a pass for the pair, one for the candidates
        assert result.applied
    assert method.skipped == 0
    if start == (0.9, 1.1, 1.0):
        assert {0, 1} <= set(chosen)
    if start == (1.0, 1.0, 1.0):
        assert set(chosen) == {0}  # the minimum: no candidate is better
        assert engine.committed == []


def test_cons_steps_up_where_that_is_better():
    """Far along a ridge the two-point slope misleads: then x + lr ghat is taken, an entry with -g."""
    engine, method = Three(lambda x: float(np.cos(40 * x[0]))), make(spec_of("zo-sgd-cons", lr=0.3, eps=0.2))
    results = [method.step(engine, None) for _ in range(30)]
    signs = {np.sign(e.g / r.gradients[0]) for e in engine.committed for r in results if r.seeds[0] == e.seed}
    assert signs == {1.0, -1.0}


@pytest.mark.parametrize("bad", [math.nan, -math.inf])
def test_a_candidate_without_a_finite_loss_is_not_taken(bad):
    x, down, up = 0.0, 1.0, -1.0
    cases = {(5.0, bad, 4.0): up, (bad, 5.0, 4.0): up, (bad, 4.0, bad): down, (4.0, bad, bad): x, (bad,) * 3: x}
    for losses, chosen in cases.items():
        calls = iter([2.0, 1.0, *losses])  # the pair, then x, x - lr ghat, x + lr ghat
        engine = Three(lambda x, calls=calls: next(calls))
        (g,) = make(spec_of("zo-sgd-cons")).step(engine, None).gradients
        assert [entry.g for entry in engine.committed] == ([chosen * g] if chosen else [])


def test_block_skips_only_the_part_that_is_not_finite():
    def function(x):
        return math.nan if x[1] != Three().x[1] else rosenbrock(x)

    engine, method, (result,) = run(spec_of("zo-sgd-block"), function, steps=1)
    assert [entry.part for entry in engine.committed] == [0, 2]
    assert (not result.applied, method.skipped) == (True, 1)
    assert engine.x[1] == Three().x[1]


@pytest.mark.parametrize("case", DEFINITIONS)
def test_a_kind_says_how_much_state_its_rule_keeps(case):
    """The predictor reads the kind, the engine the rule."""
    spec = spec_of(*case)
    kind, rule_of_kind = METHODS.get(spec.method), rule(spec)
    assert kind.travelling_states == (len(rule_of_kind.states) if rule_of_kind else 0)
    if rule_of_kind and rule_of_kind.states:
        width = kind.definition(spec).state_width
        assert rule_of_kind.state_dtype(torch.float16).itemsize == (width or 2)


def test_the_specs_momentum_reaches_its_rule():
    assert rule(spec_of("zo-sgd-mmt", momentum=0.5)).beta == 0.5


def test_schedules_by_formula():
    steps = range(11)

    def rates(schedule):
        spec = spec_of("zo-sgd", lr=0.5, lr_schedule=schedule)
        return [learning_rate(spec, step, 10) for step in steps]

    assert rates("constant") == [0.5] * 11
    assert rates("linear") == pytest.approx([0.5, 0.45, 0.4, 0.35, 0.3, 0.25, 0.2, 0.15, 0.1, 0.05, 0.0])
    assert rates("cosine") == pytest.approx([0.25 * (1 + np.cos(np.pi * s / 10)) for s in steps])
