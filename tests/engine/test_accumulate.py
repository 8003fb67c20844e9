"""Micro-batches: one g at the same points, the losses and gradients of the whole batch, resumed bit for bit."""

import math

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.support.causal import CONFIGS, batch_of, model_of
from zobench import Batch, Engine, EngineConfig
from zobench.data.batch import IGNORED
from zobench.durable.replay import pass_records
from zobench.engine.backprop import Backprop
from zobench.engine.base import PassRecord, Point
from zobench.methods import ZOSGD
from zobench.methods.base import Taken

POINTS = [Point(7, 1e-2), Point(7, -1e-2)]


def batch() -> Batch:
    """Four rows, whose numbers of counted tokens differ."""
    ids = torch.randint(1, 96, (4, 9), generator=torch.Generator().manual_seed(1))
    labels = ids.clone()
    labels[1, :6] = IGNORED
    return Batch(ids, labels)


@pytest.mark.parametrize("noise", ["torch", "counter"])
@pytest.mark.parametrize("placement", ["resident", "offload"])
def test_losses_are_those_of_the_whole_batch(noise: str, placement: str) -> None:
    losses = []
    for count in (1, 4):
        config = EngineConfig(placement=placement, noise=noise, accumulate=count)
        with Engine(model_of("llama"), config) as engine:
            losses.append(engine.probe(batch(), POINTS))
            assert engine.passes == count
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)


def test_gradients_are_those_of_transformers_on_the_whole_batch() -> None:
    torch.manual_seed(3)
    plain = AutoModelForCausalLM.from_config(CONFIGS["llama"]())
    plain.eval()(input_ids=batch().input_ids, labels=batch().labels).loss.backward()
    with Backprop(model_of("llama"), EngineConfig(placement="resident", accumulate=2)) as engine:
        engine.backward(batch())
        for name, tensor in engine.model.named_parameters():
            torch.testing.assert_close(tensor.grad, plain.get_parameter(name).grad, rtol=1e-3, atol=1e-6)


def test_a_batch_in_which_nothing_counts_is_no_number() -> None:
    nothing = Batch(batch().input_ids, torch.full_like(batch().labels, IGNORED))
    for count in (1, 2):
        with Backprop(model_of("llama"), EngineConfig(placement="resident", accumulate=count)) as engine:
            assert math.isnan(engine.backward(nothing))


@pytest.mark.parametrize(
    "settings",
    [
        {"noise": "torch"},
        {"noise": "counter"},
        {"noise": "torch", "tier": "disk", "packed": True},
        {"noise": "counter", "granularity": "linear", "packed": True},
        {"noise": "counter", "writeback_every": 2, "packed": True, "attention": ((2048, "products"),)},
    ],
)
def test_a_run_is_retraced_bit_for_bit(settings: dict) -> None:
    count = 3 if settings.get("packed") else 2
    rows = batch_of() if settings.get("packed") else batch()
    config = EngineConfig(placement="offload", accumulate=count, **settings)
    method, taken = ZOSGD(lr=1e-2), []
    with Engine(model_of("llama"), config) as engine:
        for step in range(3):
            before, entries = engine.passes, len(engine.journal)
            result = method.step(engine, rows)
            taken.append(
                Taken(
                    step=step, loss=result.loss, lr=1e-2, seconds=0.0, applied=result.applied,
                    passes=engine.passes - before, directions=tuple(zip(result.seeds, result.parts, strict=True)),
                    gradients=result.gradients, entries=tuple(engine.journal[entries:]),
                )
            )  # fmt: skip
        ran = dict(engine.named_tensors())
    with Engine(model_of("llama"), config) as again:
        records = pass_records(again, ZOSGD(lr=1e-2), taken)
        assert [len(record.entries) for record in records] == [*[0] * (count - 1), 1] * 3
        assert isinstance(records[0], PassRecord)
        again.retrace(records)
        for name, tensor in again.named_tensors():
            assert torch.equal(tensor, ran[name]), name
