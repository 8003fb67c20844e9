"""The hybrid against a hand-written loop: MeZO's arithmetic below, torch's SGD above, both from the same weights."""

import math

import pytest
import torch

from tests.support.backprop import BEFORE, RESIDENT, backprop
from tests.support.first_order import batches
from tests.support.reference import draw_seeds, g_of
from tests.support.slopes import MODELS, filled, padded, plain_loss
from zobench import Engine, EngineConfig, models
from zobench.methods.first_order import FirstOrder
from zobench.methods.hybrid import Hybrid
from zobench.models import weights

SEED, EPS, LR = 5, 1e-3, 1e-2


def below_of(model, name, layers):
    """The names of what is below, in ``named_parameters()`` order."""
    if not layers:
        return []
    return [
        key
        for key, _ in model.named_parameters()
        if key in BEFORE[name] or any(f".layers.{k}." in key for k in range(layers))
    ]


@torch.no_grad()
def shift(model, names, seed, scale):
    """MeZO's: one stream over the tensors below alone, each product and sum rounded."""
    torch.manual_seed(seed)
    for key in names:
        p = model.get_parameter(key)
        z = torch.normal(mean=0, std=1, size=p.size(), dtype=p.dtype)
        p.add_(scale * z)


@torch.no_grad()
def descend(model, names, seed, g, decay):
    torch.manual_seed(seed)
    for key in names:
        p = model.get_parameter(key)
        z = torch.normal(mean=0, std=1, size=p.size(), dtype=p.dtype)
        rate = 0.0 if any(word in key for word in ("bias", "layer_norm", "layernorm")) else decay
        p.sub_(LR * (g * z + rate * p))


def loop(model, name, layers, data, decay=0.0, queries=1):
    """(losses at the unperturbed weights, projected gradients), with the plain model's own loss from full logits."""
    names = below_of(model, name, layers)
    above = {key: p for key, p in model.named_parameters() if key not in names}
    seeds, losses, gs = iter(draw_seeds(SEED, 100)), [], []
    for batch in data:
        loss = plain_loss(model, batch)
        gradients = dict(zip(above, torch.autograd.grad(loss, above.values()), strict=True))
        directions = [(next(seeds), []) for _ in range(queries if names else 0)]
        for seed, pair in directions:
            for move in (EPS, -2 * EPS):
                shift(model, names, seed, move)
                with torch.no_grad():
                    pair.append(plain_loss(model, batch).item())
            shift(model, names, seed, EPS)
        own = [g_of(plus, minus, EPS) for _, (plus, minus) in directions]
        for n, ((seed, _), g) in enumerate(zip(directions, own, strict=True)):
            descend(model, names, seed, g / queries, 0.0 if n else decay)
        with torch.no_grad():
            for key, p in above.items():
                rate = 0.0 if any(word in key for word in ("bias", "layer_norm", "layernorm")) else decay
                p.sub_(LR * (gradients[key] + rate * p))
        losses.append(loss.item())
        gs.append(own)
    return losses, gs


@pytest.mark.parametrize(("decay", "queries"), [(0.0, 1), (0.1, 2)])
@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("name", MODELS)
def test_both_halves_are_those_of_a_plain_loop(name, tied, layers, decay, queries):
    model, data = filled(name, tied), list(batches(3))
    losses, gs = loop(model, name, layers, data, decay, queries)
    with backprop(name, tied, zo_layers=layers) as engine:
        method = Hybrid(lr=LR, eps=EPS, seed=SEED, weight_decay=decay, queries=queries)
        steps = [method.step(engine, batch) for batch in data]
        assert [step.loss for step in steps] == pytest.approx(losses, rel=1e-4)
        assert [step.seeds for step in steps] == list(
            zip(*[iter(draw_seeds(SEED, 3 * queries))] * queries, strict=True)
        )
        for step, own in zip(steps, gs, strict=True):
            assert step.gradients == pytest.approx(own, abs=5e-3)  # 4 roundings of the losses over 2 eps
        for key, tensor in engine.named_tensors():
            assert torch.allclose(tensor, model.get_parameter(key), rtol=0, atol=5e-4), key


@pytest.mark.parametrize("name", ["opt-tiny", "llama-tiny"])
def test_the_lower_half_moves_as_mezo_moves_it(name):
    """Bit for bit, given g: the same stream, the same roundings, the drift of +eps, -2 eps, +eps with them."""
    model = filled(name)
    names = below_of(model, name, 2)
    with backprop(name, zo_layers=2) as engine:
        for batch in batches(4):
            method = Hybrid(lr=LR, eps=EPS, seed=SEED, weight_decay=0.1)
            step = method.step(engine, batch)
            for move in (EPS, -2 * EPS, EPS):
                shift(model, names, step.seed, move)
            descend(model, names, step.seed, step.gradients[0], 0.1)
        own = dict(engine.named_tensors())
        assert all(torch.equal(own[key], model.get_parameter(key)) for key in names)
        assert not any(torch.equal(own[key], p) for key, p in model.named_parameters() if key not in names)


@pytest.mark.parametrize("autocast", ["none", "bf16", "fp16"])
@pytest.mark.parametrize("name", MODELS)
def test_without_layers_below_it_is_first_order_sgd(name, autocast):
    found = []
    for method in (Hybrid(lr=0.1, seed=SEED, weight_decay=0.1), FirstOrder(lr=0.1, weight_decay=0.1)):
        config = EngineConfig(placement="resident", autocast=autocast)
        with backprop(name, config=config, zo_layers=0) as engine:
            found.append(([method.step(engine, batch) for batch in batches(3)], dict(engine.named_tensors())))
    (steps, tensors), (others, expected) = found
    assert steps == others
    assert all(torch.equal(tensors[key], expected[key]) for key in expected)


def test_with_all_of_an_adapter_below_it_is_zo_sgd():
    """Then nothing has gradients, and MeZO's step is all there is: that of an Engine on the same model."""
    from zobench import ZOSGD

    def adapter(name):
        return "q_proj" in name

    model = models.build("opt-tiny", "fp32", True)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(adapter(name))
    with Engine(model, RESIDENT, weights=weights.RandomWeights(model, 3)) as engine:
        method = ZOSGD(lr=LR, eps=EPS, seed=SEED)
        expected = [method.step(engine, batch) for batch in batches(3)]
        tensors = dict(engine.named_tensors())
    with backprop(train=adapter, zo_layers=3) as engine:
        method = Hybrid(lr=LR, eps=EPS, seed=SEED)
        steps = [method.step(engine, batch) for batch in batches(3)]
        assert [step.seeds for step in steps] == [step.seeds for step in expected]
        assert [step.gradients for step in steps] == [step.gradients for step in expected]
        assert all(torch.equal(tensor, tensors[key]) for key, tensor in engine.named_tensors())


def test_a_gradient_that_is_not_finite_leaves_the_lower_half_its_step(monkeypatch):
    with backprop(zo_layers=1) as engine:
        before = dict(engine.named_tensors())
        monkeypatch.setattr(engine, "gradient_norm", lambda: math.inf)
        method = Hybrid(lr=LR, eps=EPS, seed=SEED)
        assert not method.step(engine, padded()).applied
        moved = {key for key, tensor in engine.named_tensors() if not torch.equal(tensor, before[key])}
        assert moved == set(below_of(engine.model, "opt-tiny", 1))
        assert method.skipped == 1
