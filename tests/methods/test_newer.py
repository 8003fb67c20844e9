"""The methods of 2024 and later against their formulas, written out in NumPy and in plain torch."""

import copy
import functools
import math

import numpy as np
import pytest
import torch

from tests.support.formulas import DEFINITIONS, NEWER, Three, rosenbrock
from tests.support.formulas import z_of as three_of
from tests.support.parity import batches, materialised
from tests.support.reference import direction, g_of, loss_at, z_of
from zobench import Engine, EngineConfig, RunSpec, models
from zobench.engine.directions.shapes import Rademacher
from zobench.methods import make, rule, thresholds
from zobench.methods.adaptive import warmed_up
from zobench.methods.sparsity import magnitude_quantiles
from zobench.models import weights
from zobench.runspec import METHODS

LR, EPS, SEED, STEPS, FEW, SMOOTH, THETA, BETA, ZETA = 1e-3, 1e-2, 11, 7, 5, 1e-3, 1.2, 0.8, 1e-3
OWN = {
    "fzoo": {"queries": FEW}, "hizoo": {"options": {"smooth": SMOOTH}}, "sparse-mezo": {"noise": "counter"},
    "conmezo": {"options": {"theta": THETA, "beta": BETA}}, "meazo": {"queries": 2, "options": {"beta": 0.7}},
    "es": {"queries": FEW}, "r-adazo": {"options": {"beta2": 0.9, "zeta": ZETA}},
    "adamezo": {"options": {"horizon": 3, "zeta": ZETA}},
}  # fmt: skip
LIMIT = 0.55
CASES = [
    (name, definition)
    for name in NEWER
    for definition in ("as-written", "as-shipped")
    if definition == "as-written" or METHODS.get(name).as_shipped
]


def spec_of(name, definition="as-written", **changes):
    settings = {"lr": LR, "eps": EPS, "seed": SEED, **OWN.get(name, {}), **changes}
    return RunSpec(model="opt-tiny", method=name, definition=definition, **settings)


def three(spec, function=rosenbrock):
    return Three(function, rule(spec), limit=LIMIT if spec.method == "sparse-mezo" else math.inf)


class Formula:
    """The updates of a method by its paper, on tensors by name: no part of the package has a share in them.

    ``tensors``: the weights, which whoever steps changes; ``limits``: the thresholds of masks. An update is name ->
    what is subtracted, but for the learning rate, and the slopes that the result tells. ``loss(move, scale)``: the loss
    at the weights moved by ``scale`` times ``move``, or at them.
    """

    def __init__(self, spec, tensors, limits):
        self.spec, self.shipped, self.tensors, self.limits = spec, spec.definition == "as-shipped", tensors, limits
        self.norm, self.v, self.t, self.past = 0.0, 0.0, 0, []
        self.h = {name: torch.ones(w.shape, dtype=torch.float64) for name, w in tensors.items()}
        self.m = {name: 0 * state for name, state in self.h.items()}
        self.count = sum(w.numel() for w in tensors.values())

    def update(self, loss, us):
        self.t += 1
        us = [{name: u.double() for name, u in z.items()} for z in us]
        return getattr(self, self.spec.method.replace("-", "_"))(loss, us)

    def pair(self, loss, z):
        plus, minus = (loss(z, scale) for scale in (EPS, -EPS))
        return plus, minus, g_of(plus, minus, EPS)

    def fzoo(self, loss, us):
        """The one-sided estimate over sigma, the deviation of N losses with N - 1 in its denominator."""
        signs = [{name: u.sign() for name, u in z.items()} for z in us]
        slopes = [(loss(z, EPS) - loss()) / EPS for z in signs]
        spread = len(us) * float(np.std(slopes, ddof=0 if self.shipped else 1))
        return {n: sum(g * z[n] for g, z in zip(slopes, signs, strict=True)) / spread for n in self.h}, slopes

    def hizoo(self, loss, us):
        """Algorithm 1, for Sigma^-1 = diag(h)."""
        (u,) = us
        z = {name: u[name] / self.h[name].sqrt() for name in u}
        plus, minus, g = self.pair(loss, z)
        curvature = abs(plus + minus - 2 * loss()) / (2 * EPS**2)
        self.h = {n: (1 - SMOOTH) * h + SMOOTH * curvature * h * u[n] ** 2 for n, h in self.h.items()}
        return {name: g * u[name] / self.h[name].sqrt() for name in u}, [g]

    def sparse_mezo(self, loss, us):
        (u,) = us
        mask = {name: w.data.abs() <= self.limits[name] for name, w in self.tensors.items()}
        z = {name: torch.where(kept, u[name], 0.0) for name, kept in mask.items()}
        _, _, g = self.pair(loss, z)
        return {name: g * z[name] for name in z}, [g]

    def conmezo(self, loss, us):
        """The cone's axis is the momentum, whose length is as expected of independent normal numbers."""
        (u,) = us
        z, beta = u, warmed_up(BETA)(self.t - 1) if self.shipped else BETA
        if self.norm:
            scale = math.sqrt(self.count) * math.cos(THETA) / self.norm
            z = {name: scale * self.m[name] + math.sin(THETA) * u[name] for name in u}
        _, _, g = self.pair(loss, z)
        self.m = {name: beta * m + (1 - beta) * g * z[name] for name, m in self.m.items()}
        along, aside = (math.cos(THETA), math.sin(THETA)) if self.norm else (0.0, 1.0)
        length = beta * self.norm + math.sqrt(self.count) * (1 - beta) * g * along
        self.norm = math.hypot(length, math.sqrt(self.count) * (1 - beta) * g * aside)
        return {name: g * z[name] for name in z}, [g]

    def meazo(self, loss, us):
        slopes = [self.pair(loss, u)[2] for u in us]
        self.v = 0.7 * self.v + 0.3 * (sum(slopes) / len(slopes)) ** 2
        size = math.sqrt(self.v / (1 - 0.7**self.t)) + 1e-8
        return {n: sum(g * u[n] for g, u in zip(slopes, us, strict=True)) / len(us) / size for n in self.h}, slopes

    def es(self, loss, us):
        """Algorithm 2: R_n of theta + sigma eps_n, z-scored; theta + alpha / N sum of Z_n eps_n."""
        losses = np.array([loss(z, EPS) for z in us])
        scores = ((losses - losses.mean()) / losses.std()).tolist()
        return {n: sum(s * z[n] for s, z in zip(scores, us, strict=True)) / len(us) for n in self.h}, scores

    def r_adazo(self, loss, us):
        slopes = [(loss(z, EPS) - loss()) / EPS for z in us]
        ghat = {n: sum(g * z[n] for g, z in zip(slopes, us, strict=True)) / len(us) for n in self.h}
        self.m = {n: 0.9 * m + 0.1 * ghat[n] for n, m in self.m.items()}
        self.v = {n: 0.1 * m**2 + (0.9 * self.v[n] if self.v else 0.0) for n, m in self.m.items()}
        return {n: m / (self.v[n] + ZETA).sqrt() for n, m in self.m.items()}, slopes

    def adamezo(self, loss, us):
        """Adam's moments, unrolled and cut off after three steps."""
        self.past = [(self.pair(loss, us[0])[2], us[0]), *self.past[:2]]
        m, v = (
            {n: sum((1 - b) * b**k * (g * z[n]) ** p for k, (g, z) in enumerate(self.past)) for n in self.h}
            for b, p in ((0.7, 1), (0.9, 2))
        )
        return {n: m[n] / (v[n] + ZETA).sqrt() for n in self.h}, [self.past[0][0]]


@pytest.mark.parametrize("decay", [0.0, 0.5])
@pytest.mark.parametrize(("name", "definition"), CASES)
def test_each_step_is_the_formula(name, definition, decay):
    spec = spec_of(name, definition, weight_decay=decay)
    engine, method, draws = three(spec), make(spec), np.random.default_rng(SEED)
    formula, masks = Formula(spec, {"x": engine.w}, {"x": LIMIT}), set()
    for _ in range(STEPS):
        before = engine.x
        masks.add(tuple(np.abs(before) <= LIMIT))
        us = [{"x": torch.from_numpy(three_of(int(draws.integers(10**9))))} for _ in range(spec.queries)]

        def loss(move=None, scale=0.0, before=before):
            return rosenbrock(before if move is None else before + scale * move["x"].numpy())

        update = formula.update(loss, us)[0]["x"].numpy()
        result = method.step(engine, None)
        np.testing.assert_allclose(engine.x, before - LR * (update + decay * before), rtol=1e-5, atol=2e-6)
        assert result.applied
        assert np.abs(engine.x - before).max() > 1e-5
    assert method.skipped == 0
    assert len(engine.probed) == STEPS  # one pass over the model serves all points
    kind = METHODS.get(name)
    assert len(engine.probed[0]) == 2 * kind.pairs(spec, 3) + (kind.singles(spec) if kind.singles else 0)
    if name == "sparse-mezo":
        assert len(masks) > 1  # a weight has come below its threshold, or above


@pytest.mark.parametrize(
    ("name", "definition"), [*CASES, *(case for case in DEFINITIONS if case[0] in ("zo-adam", "zo-sgd-mmt"))]
)
@pytest.mark.parametrize("at", [0, -1])
def test_a_loss_that_is_not_finite_changes_nothing_but_the_count(name, definition, at):
    spec, broken = spec_of(name, definition, weight_decay=0.1), [math.inf]

    def function(x):
        broken[0] -= 1
        return math.nan if broken[0] == 0 else rosenbrock(x)

    engine, method = three(spec, function), make(spec)
    for _ in range(2):
        method.step(engine, None)
    whole, before, states = copy.deepcopy(method.state()), engine.x, [state.clone() for state in engine.states]
    broken[0] = 1 if at == 0 else len(engine.probed[0])
    result = method.step(engine, None)
    assert not result.applied
    assert method.skipped == 1
    assert (engine.x == before).all()
    assert all((kept == other).all() for kept, other in zip(engine.states, states, strict=True))
    moved = {"step", "skipped", "seeds"}
    assert {key: value for key, value in method.state().items() if key not in moved} == {
        key: value for key, value in whole.items() if key not in moved
    }
    assert method.step(engine, None).applied


def test_a_momentum_that_is_lost_whole_leaves_no_direction():
    spec, flat = spec_of("conmezo", options={"beta": 0.0}), []
    engine, method = three(spec, lambda x: 1.0 if flat else rosenbrock(x)), make(spec)
    method.step(engine, None)
    flat.append(engine.states[0].abs().sum() > 0)
    method.step(engine, None)
    assert (flat, method.extra, engine.states[0].tolist()) == ([True], 0, [0.0] * 3)


@pytest.mark.parametrize(
    ("name", "mode"),
    [(name, {"noise": "counter", "slots": 2}) for name in NEWER] + [("hizoo", {"placement": "resident"})],
    ids=str,
)
def test_each_step_on_a_model_is_the_formula(name, mode):
    """And ConMeZO's momentum, of 162,496 numbers, is as long as the formula expects."""
    lr = LR if name in ("hizoo", "sparse-mezo", "conmezo") else 1e-4
    spec = spec_of(name, lr=lr, **({"sparsity": 0.4} if name == "sparse-mezo" else {}))
    model, built = materialised("opt-tiny", "fp32", True), models.build("opt-tiny", "fp32")
    start = weights.RandomWeights(built, 3)
    limits, method = thresholds(spec, built, start), make(spec)
    formula = Formula(spec, dict(model.named_parameters()), limits)
    with Engine(built, EngineConfig(**mode), weights=start, rule=rule(spec), thresholds=limits) as engine:
        for batch in batches("opt-tiny", count=3):
            result = method.step(engine, batch)
            us = [direction(model, seed, mode.get("noise", "torch")) for seed in result.seeds]
            update, slopes = formula.update(functools.partial(loss_at, model, batch), us)
            assert result.gradients == pytest.approx(slopes, abs=2e-3, rel=3e-3)
            tensors, largest = dict(engine.named_tensors()), 0.0
            scale = max(float(change.abs().max()) for change in update.values())
            for key, p in model.named_parameters():
                change = (p.data - tensors[key]).double() / lr
                assert float((change - update[key]).abs().max()) < 6e-3 * scale + 3e-7 / lr, key
                largest = max(largest, float((tensors[key] - p.data).abs().max()))
                p.data = tensors[key]  # each step is judged on its own
            assert largest > 1e-5
            if name == "conmezo":
                states = dict(engine.state_tensors())
                assert sum(float(m.square().sum()) for m in states.values()) / formula.count == pytest.approx(
                    1, abs=2e-2
                )


@pytest.mark.parametrize("share", [0.25, 1.0])
def test_a_threshold_is_the_quantile_of_its_own_tensor(share):
    model = models.build("opt-tiny", "fp32")
    start = weights.RandomWeights(model, 3)
    limits = magnitude_quantiles(model, start, share)
    for name, parameter in model.named_parameters():
        values = torch.empty(parameter.shape)
        start.fill(name, values)
        kept = float((values.abs() <= limits[name]).double().mean())
        tied = values.unique().numel() < 3  # norms and biases begin as ones and zeros
        assert kept == 1 if tied else kept == pytest.approx(share, abs=2e-2), name


def test_signs_are_plus_and_minus_one_in_equal_shares():
    z = Rademacher().shape(z_of(7, 0, torch.empty(1 << 18)).clone(), torch.empty(0), [], math.inf)
    assert set(z.unique().tolist()) == {-1.0, 1.0}
    assert float(z.mean()) == pytest.approx(0, abs=5 / 512)
    assert Rademacher().shape(torch.tensor([0.0, -0.0]), z, [], math.inf).tolist() == [1.0, -1.0]


def test_beta_warms_up_as_the_program_has_it():
    beta = warmed_up(0.99)
    assert [beta(0), beta(200)] == pytest.approx([0.1, 0.1])
    assert beta(1100) == pytest.approx(0.99 - 0.89 / (1 + 8 * 0.5**1.8) ** 3)
    assert beta(2000) == pytest.approx(0.99 - 0.89 / 9**3)  # the program jumps to the value itself a step later
    assert beta(2001) == beta(20_000) == 0.99
