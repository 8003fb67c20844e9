"""Backprop against torch's autograd on the plain model with its own loss, and against itself where bits must agree."""

import itertools
import math

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

from tests.support.slopes import BEFORE, MODELS, backprop, choosing, filled, padded, plain_loss
from zobench import EngineConfig, Entry
from zobench.engine.backprop import OPTIMIZERS
from zobench.models import blocks

BATCHES = {"causal": padded, "choice": lambda: choosing("choice"), "lm": lambda: choosing("lm")}


def gradients(engine):
    return {name: p.grad.clone() for name, p in engine.model.named_parameters() if p.grad is not None}


def of_plain_model(model, batch):
    loss = plain_loss(model, batch)
    names = [name for name, p in model.named_parameters() if p.requires_grad]
    return loss.item(), dict(zip(names, torch.autograd.grad(loss, map(model.get_parameter, names)), strict=True))


def assert_close(mine, theirs, rel=1e-5):
    assert mine.keys() == theirs.keys()
    for name in theirs:
        assert (mine[name] - theirs[name]).norm() <= rel * theirs[name].norm() + 1e-7, name


@pytest.mark.parametrize("kind", BATCHES)
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_those_of_the_plain_model(name, tied, kind):
    batch = BATCHES[kind]()
    loss, expected = of_plain_model(filled(name, tied), batch)
    with backprop(name, tied) as engine:
        assert engine.backward(batch) == pytest.approx(loss, rel=1e-6)
        assert_close(gradients(engine), expected)
        norm = math.sqrt(sum(g.double().square().sum().item() for g in expected.values()))
        assert engine.gradient_norm() == pytest.approx(norm, rel=1e-5)


def test_frozen_parameters_have_no_gradient_and_stay():
    with backprop(train=lambda name: "q_proj" in name) as engine:
        before = dict(engine.named_tensors())
        engine.backward(padded())
        expected = of_plain_model(filled("opt-tiny", train=lambda name: "q_proj" in name), padded())[1]
        assert_close(gradients(engine), expected)
        engine.update("sgd", lr=1.0)
        moved = {name for name, tensor in engine.named_tensors() if not torch.equal(tensor, before[name])}
        assert moved == set(expected)


def kept(engine, batch):
    """Bytes that the forward keeps for the backward, each storage once, the parameters left out."""
    addresses = {p.untyped_storage().data_ptr() for p in engine.model.parameters()}
    storages = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in addresses:
            storages[storage.data_ptr()] = (storage.nbytes(), tensor)  # held: an address is not used again
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        engine.backward(batch)
    return sum(nbytes for nbytes, _ in storages.values())


@pytest.mark.parametrize("name", MODELS)
def test_checkpointing_changes_nothing_but_memory(name):
    with backprop(name) as plain, backprop(name, checkpointing=True) as checkpointed:
        assert checkpointed.backward(padded()) == plain.backward(padded())
        mine, theirs = gradients(checkpointed), gradients(plain)
        assert all(torch.equal(mine[key], theirs[key]) for key in theirs)
        assert kept(checkpointed, padded()) < 0.5 * kept(plain, padded())
        assert checkpointed.evaluate(padded()) == plain.evaluate(padded())
    assert not any("forward" in vars(block) for block in blocks(checkpointed.model))


@pytest.mark.parametrize(("autocast", "rel"), [("bf16", 0.15), ("fp16", 0.02)])
def test_autocast_is_close(autocast, rel):
    loss, expected = of_plain_model(filled("opt-tiny"), padded())
    config = EngineConfig(placement="resident", autocast=autocast)
    with backprop(config=config, checkpointing=True) as engine:
        assert engine.backward(padded(), 2.0**10) == pytest.approx(loss, rel=1e-3)
        mine = gradients(engine)
        assert all(gradient.dtype == torch.float32 for gradient in mine.values())
        # what belongs to no token's loss in exact arithmetic, a key's bias, is nothing but rounding
        exact = {name for name in expected if expected[name].norm() > 1e-4}
        assert_close({name: mine[name] for name in exact}, {name: expected[name] for name in exact}, rel)
        assert not any(torch.equal(mine[name], expected[name]) for name in exact)


def test_scaling_the_loss_saves_small_gradients_from_fp16():
    """Weights so small that gradients on their way are below fp16's smallest number, 6e-8."""
    lost = {}
    for scale in (1.0, 2.0**16):
        config = EngineConfig(placement="resident", autocast="fp16")
        with backprop("llama-tiny", False, config) as engine:
            with torch.no_grad():
                engine.model.get_output_embeddings().weight.mul_(1e-5)
            engine.backward(padded(), scale)
            gradient = engine.model.get_parameter("model.layers.0.self_attn.v_proj.weight").grad
            lost[scale] = (gradient == 0).float().mean().item()
    assert lost[2.0**16] < 0.01 < 0.5 < lost[1.0]


def test_bytes_of_state():
    """FO-SGD has none, FO-Adam two numbers per weight and a count per tensor: ZO-Bench, table 5."""
    seen = {}
    for name in OPTIMIZERS:
        with backprop() as engine:
            engine.backward(padded())
            engine.update(name, lr=1e-3)
            seen[name] = sum(tensor.nbytes for _, tensor in engine.state_tensors())
            trained = [tensor.nbytes for _, tensor in engine.named_tensors()]
    assert seen == {"sgd": 0, "adam": 2 * sum(trained) + 4 * len(trained)}


@pytest.mark.parametrize("layers", [0, 1, 2, 3])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("name", MODELS)
def test_gradients_reach_the_first_layer_that_is_not_below(name, tied, layers):
    with backprop(name, tied, zo_layers=layers) as engine:
        below = {key for key, _ in engine.model.named_parameters() for k in range(layers) if f".layers.{k}." in key}
        below |= BEFORE[name] if layers else set()
        engine.backward(padded())
        expected = of_plain_model(filled(name, tied), padded())[1]
        assert_close(gradients(engine), {key: expected[key] for key in expected if key not in below})
        assert ("lm_head.weight" in gradients(engine)) is not tied
        before = dict(engine.named_tensors())
        engine.commit([Entry(step=0, seed=3, g=1.0, lr=0.1)] if layers else [])
        moved = {key for key, tensor in engine.named_tensors() if not torch.equal(tensor, before[key])}
        assert moved == below
        assert engine.moves == bool(layers)
    assert all(parameter.requires_grad for parameter in engine.model.parameters())


@pytest.mark.parametrize("name", ["opt-tiny", "llama-tiny"])
def test_nothing_is_kept_of_the_layers_below(name):
    sizes = []
    for layers in range(4):
        with backprop(name, zo_layers=layers) as engine:
            sizes.append(kept(engine, padded()))
    first, second, third = (more - less for more, less in itertools.pairwise(sizes))
    assert first >= 0.9 * second > 0
    assert second == pytest.approx(third, rel=0.1)
    assert sizes[3] > 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"config": EngineConfig(placement="resident", noise="counter")},
         "needs placement=resident and noise=torch, but got placement=resident, noise=counter"),
        ({"config": EngineConfig(placement="resident", noise="stored")}, "and noise=torch, but got .*, noise=stored"),
        ({"zo_layers": 4}, "`0 <= zo_layers <= 3` must hold for this model, but got zo_layers=4"),
        ({"train": lambda name: False}, "some parameter must require gradients, but none does"),
    ],
)  # fmt: skip
def test_what_cannot_be_built(options, words):
    with pytest.raises(ValueError, match=words):
        backprop(**options)
