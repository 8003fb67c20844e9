"""The hybrid against a hand-written loop: MeZO's arithmetic below, torch's SGD above, both from the same weights."""

import pytest
import torch

from tests.support.reference import draw_seeds, g_of, perturb, update
from tests.support.slopes import BEFORE, MODELS, backprop, batches, filled, plain_loss
from zobench import EngineConfig
from zobench.methods.first_order import FirstOrder, Hybrid

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
            for move in (1, -2):
                perturb(model, seed, move, EPS, names)
                with torch.no_grad():
                    pair.append(plain_loss(model, batch).item())
            perturb(model, seed, 1, EPS, names)
        g_values = [g_of(plus, minus, EPS) for _, (plus, minus) in directions]
        for n, ((seed, _), g) in enumerate(zip(directions, g_values, strict=True)):
            update(model, seed, g / queries, LR, 0.0 if n else decay, names)
        with torch.no_grad():
            for key, p in above.items():
                rate = 0.0 if any(word in key for word in ("bias", "layer_norm", "layernorm")) else decay
                p.sub_(LR * (gradients[key] + rate * p))
        losses.append(loss.item())
        gs.append(g_values)
    return losses, gs


@pytest.mark.parametrize(("decay", "queries"), [(0.0, 1), (0.1, 2)])
@pytest.mark.parametrize("layers", [1, 3])
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
        for step, g in zip(steps, gs, strict=True):
            assert step.gradients == pytest.approx(g, abs=5e-3)  # 4 roundings of the losses over 2 eps
        for key, tensor in engine.named_tensors():
            assert torch.allclose(tensor, model.get_parameter(key), rtol=0, atol=5e-4), key


@pytest.mark.parametrize("autocast", ["none", "fp16"])
def test_without_layers_below_it_is_first_order_sgd(autocast):
    runs = []
    for method in (Hybrid(lr=0.1, seed=SEED, weight_decay=0.1), FirstOrder(lr=0.1, weight_decay=0.1)):
        config = EngineConfig(placement="resident", autocast=autocast)
        with backprop("opt-tiny", config=config, zo_layers=0) as engine:
            runs.append(([method.step(engine, batch) for batch in batches(3)], dict(engine.named_tensors())))
    (steps, tensors), (others, expected) = runs
    assert steps == others
    assert all(torch.equal(tensors[key], expected[key]) for key in expected)
