"""The known traps of public ZO programs, each shown not to be repeated here."""

import pytest
import torch
from transformers import EsmConfig, EsmForMaskedLM

from tests.support.causal import SIZES
from tests.support.parity import batches, engine_of, materialised
from tests.support.reference import draw_seeds, mezo
from zobench import ZOSGD, Engine, EngineConfig, Point, RunSpec, models, run
from zobench.models import weights


def test_seed_zero_is_a_direction_like_any_other():
    batch = batches("opt-tiny", count=1)[0]
    with engine_of() as mine:
        base = mine.evaluate(batch)
        moved = mine.probe(batch, [Point(0, 1e-2), Point(1, 1e-2)])
    assert len({base, *moved}) == 3


def test_a_model_of_which_no_engine_could_be_built_computes_what_it_did():
    """The head's holder adds a bias, which the head adopts while there is an engine."""
    torch.manual_seed(0)
    sizes = {**SIZES, "intermediate_size": 64, "mask_token_id": 32, "position_embedding_type": "rotary"}
    model = EsmForMaskedLM(EsmConfig(**sizes, token_dropout=False)).eval()
    torch.nn.init.normal_(model.lm_head.bias)
    ids = torch.arange(4, 18).view(2, 7)
    with torch.no_grad():
        before = model(input_ids=ids, labels=ids).loss
        with pytest.raises(ValueError, match="`resident_blocks <= 3` must hold"):
            Engine(model, EngineConfig(noise="counter", resident_blocks=9))
        assert torch.equal(model(input_ids=ids, labels=ids).loss, before)


def test_the_frameworks_random_state_neither_matters_nor_changes():
    data = batches("opt-tiny", count=3)
    runs = []
    for noise in (False, True):
        torch.manual_seed(0)
        with engine_of() as mine:
            method, losses = ZOSGD(lr=1e-2, seed=2), []
            for batch in data:
                if noise:
                    torch.randn(7)
                before = torch.get_rng_state()
                losses.append(method.step(mine, batch).loss)
                assert torch.equal(torch.get_rng_state(), before)
        runs.append(losses)
    assert runs[0] == runs[1]


def test_blocks_called_in_another_order_than_they_are_stored_get_their_own_noise():
    """The stream is positioned by unit, not by call order: a model that runs its blocks backwards still equals MeZO."""
    data = batches("opt-tiny", count=4)

    def reversed_model(model):
        layers = model.model.decoder.layers
        stored = list(layers)
        layers.__class__ = type("Backwards", (type(layers),), {"__iter__": lambda self: iter(stored[::-1])})
        return model

    plain = reversed_model(materialised("opt-tiny", "fp32", False))
    losses, _ = mezo(plain, data, draw_seeds(4, 4), eps=1e-3, lr=1e-2)
    model = reversed_model(models.build("opt-tiny", "fp32", False))
    with Engine(model, EngineConfig(placement="resident"), weights=weights.RandomWeights(model, 3)) as mine:
        method = ZOSGD(lr=1e-2, eps=1e-3, seed=4)
        assert [method.step(mine, batch).loss for batch in data] == losses


def test_parameters_that_are_not_contiguous_are_taken_over_by_value():
    model, twin = materialised("opt-tiny", "fp32", False), materialised("opt-tiny", "fp32", False)
    linear = model.model.decoder.layers[0].fc1
    linear.weight = torch.nn.Parameter(linear.weight.detach().t().contiguous().t())
    assert not linear.weight.is_contiguous()
    data = batches("opt-tiny", count=3)
    losses, _ = mezo(twin, data, draw_seeds(4, 3), eps=1e-3, lr=1e-2)
    with Engine(model, EngineConfig()) as mine:
        method = ZOSGD(lr=1e-2, eps=1e-3, seed=4)
        assert [method.step(mine, batch).loss for batch in data] == losses


def test_a_parameter_shared_by_two_blocks_is_refused():
    model = materialised("opt-tiny", "fp32", False)
    layers = model.model.decoder.layers
    layers[1].fc1.weight = layers[0].fc1.weight
    with pytest.raises(ValueError, match="a block must not share parameters"):
        Engine(model, EngineConfig())


def test_lost_updates_are_told():
    spec = RunSpec(model="opt-tiny", seq_len=16, steps=2, dtype="bf16", device="cpu")
    lost, kept = run(spec), run(spec.replace(lr=1e-2))
    assert any(w.startswith("bf16 updates are lost: lr * g = ") for w in lost.warnings)
    assert not any("updates are lost" in w for w in kept.warnings)
