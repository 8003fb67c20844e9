"""Every zeroth-order method on a tiny model through the engine, against its formula in plain torch."""

import math

import numpy as np
import pytest
import torch

from tests.support.formulas import DEFINITIONS, Formula
from tests.support.parity import batches, materialised
from tests.support.reference import direction, loss_at
from zobench import Engine, EngineConfig, RunSpec, models
from zobench.engine.backprop import Backprop
from zobench.methods import make, rule, thresholds
from zobench.methods.sparsity import layer_sparsity
from zobench.models import weights

LR, EPS, STEPS, SPARSITY = 1e-3, 1e-2, 3, 0.4
RATES = {"zo-sgd-sign": 1e-4, "zo-sgd-cons": 1e-2, "zo-adam": 1e-4}
MODES = {
    "torch resident": {"placement": "resident"},
    "torch offload": {"slots": 2},
    "counter offload": {"noise": "counter"},
    "counter resident": {"noise": "counter", "placement": "resident"},
}


def spec_of(name, definition="as-written", **changes):
    share = {"sparsity": SPARSITY} if name == "zo-sgd-sparse" else {}
    lr = RATES.get(name, LR)
    return RunSpec(model="opt-tiny", method=name, definition=definition, lr=lr, eps=EPS, seed=5, **share, **changes)


def engine_of(spec, mode, source=None, state=None):
    model = models.build("opt-tiny", "fp32")
    start = weights.RandomWeights(model, 3)
    return Engine(
        model, EngineConfig(**MODES[mode]), weights=source or start, rule=rule(spec), state=state,
        thresholds=thresholds(spec, model, start),
    )  # fmt: skip


def part_of(name):
    if "layers." in name:
        return 1 + int(name.split("layers.")[1].split(".")[0])
    return 4 if "final_layer_norm" in name else 0


class Directions:
    """What each slope belongs to: z, masked, of one part."""

    def __init__(self, spec, model, noise):
        self.spec, self.model, self.noise = spec, model, noise
        shares = thresholds(spec, model, weights.RandomWeights(model, 3))
        names = [name for name, _ in model.named_parameters()]
        self.thresholds = dict.fromkeys(names, -math.inf) if shares is None else shares

    def of(self, seeds):
        for n, seed in enumerate(seeds):
            z, other = (direction(self.model, s, self.noise) for s in (seed, seed + 10**9))
            kept = {name: (other[name] >= t) & self._in_part(name, n) for name, t in self.thresholds.items()}
            yield {name: torch.where(kept[name], z[name], 0.0) for name in z}

    def _in_part(self, name, n):
        return self.spec.method != "zo-sgd-block" or part_of(name) == n // self.spec.queries


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("name", "definition", "queries"),
    [(*case, 1) for case in DEFINITIONS] + [(name, "as-written", 3) for name in ("zo-sgd", "zo-adam", "zo-sgd-block")],
)
def test_each_step_is_the_formula(name, definition, queries, mode):
    spec = spec_of(name, definition, queries=queries)
    model, formula_model = materialised("opt-tiny", "fp32", True), models.build("opt-tiny", "fp32")
    directions = Directions(spec, formula_model, MODES[mode].get("noise", "torch"))
    formula, method = Formula(spec), make(spec)
    with engine_of(spec, mode) as engine:
        for batch in batches("opt-tiny", count=STEPS):
            before = loss_at(model, batch)
            result = method.step(engine, batch)
            us = list(directions.of(result.seeds))
            for g, u in zip(result.gradients, us, strict=True):
                slope = (loss_at(model, batch, u, EPS) - loss_at(model, batch, u, -EPS)) / (2 * EPS)
                assert g == pytest.approx(slope, abs=2e-3, rel=1e-3)
            update = formula.update(us, result.gradients)
            if name == "zo-sgd-cons":
                losses = [before, *(loss_at(model, batch, update, scale) for scale in (-spec.lr, spec.lr))]
                sign = (0, 1, -1)[int(np.argmin(losses))]
                update = {key: sign * value for key, value in update.items()}
            largest = 0.0
            found = dict(engine.named_tensors())
            for key, p in model.named_parameters():
                moved = (p.data.double() - spec.lr * update[key]).float()
                largest = max(largest, (moved - p.data).abs().max().item())
                torch.testing.assert_close(found[key], moved, rtol=1e-6, atol=1e-6)
                p.data = found[key]  # each step is judged on its own
            assert largest > 1e-5 or name == "zo-sgd-cons"


@pytest.mark.parametrize("definition", ["as-written", "as-shipped"])
@pytest.mark.parametrize("mode", ["torch offload", "counter offload"])
def test_the_share_of_weights_that_stay_is_the_definitions(definition, mode):
    """As written a tensor's share s of magnitude pruning stays, as shipped Phi(s); another share of it each step."""
    spec = spec_of("zo-sgd-sparse", definition).replace(lr=1e-1)
    model = models.build("opt-tiny", "fp32")
    shares = layer_sparsity(model, weights.RandomWeights(model, 3), SPARSITY)
    with engine_of(spec, mode) as engine:
        method, before, stayed = make(spec), dict(engine.named_tensors()), []
        for batch in batches("opt-tiny", count=2):
            assert abs(method.step(engine, batch).projected_grad) > 1e-2
            after = dict(engine.named_tensors())
            # torch noise leaves the rounding of MeZO's three moves on what was perturbed, far less than an update
            stayed.append({name: (after[name] - before[name]).abs() < 1e-6 for name in after})
            before = after
    for name, pruned in shares.items():
        share = pruned if definition == "as-written" else 0.5 * (1 + math.erf(pruned / math.sqrt(2)))
        count = stayed[0][name].numel()
        spread = 4.5 * math.sqrt(share * (1 - share) / count) + 2e-3  # few updates are below 1e-6 by themselves
        for mask in stayed:
            assert mask[name].double().mean().item() == pytest.approx(share, abs=spread)
    big = max(shares, key=lambda name: stayed[0][name].numel())
    assert (stayed[0][big] != stayed[1][big]).double().mean() > 0.2


@pytest.mark.parametrize(
    ("name", "need"),
    [
        ("eggroll", "a population"),
        ("forward-grad", "a forward derivative"),
        ("zo-sgd-block", "a method that moves parts of a model"),
    ],
)
def test_an_engine_without_what_a_method_needs_is_refused(name, need):
    """Of backpropagation, which has the losses at points alone."""
    spec, model = RunSpec(model="opt-tiny", method=name, noise="counter", queries=2), models.build("opt-tiny", "fp32")
    config = EngineConfig(placement="resident")
    with (
        Backprop(model, config, weights=weights.RandomWeights(model, 3), zo_layers=1) as engine,
        pytest.raises(ValueError, match=f"^{need} needs an Engine, but got Backprop; build that$"),
    ):
        make(spec).step(engine, batches("opt-tiny", count=1, kind="random")[0])
