"""Transfers alone: what is timed between the ranks' meetings, and that the weights stay as they were."""

import pytest
import torch

from zobench import ZOSGD, Batch, Engine, EngineConfig, models
from zobench.measure import observe
from zobench.models import weights


@pytest.mark.parametrize("reusable_memory", [True, False])
def test_weights_and_the_steps_after_are_those_without(reusable_memory):
    def run(measured):
        model = models.build("opt-tiny", "fp32")
        config = EngineConfig(slots=2, reusable_memory=reusable_memory)
        batch = Batch(torch.arange(12).view(2, 6) + 4, torch.arange(12).view(2, 6) + 4)
        with Engine(model, config, weights=weights.RandomWeights(model, 3)) as engine:
            method = ZOSGD(lr=1e-4, eps=1e-3, seed=1)
            method.step(engine, batch)
            if measured:
                engine.drain()
                engine.record()
                observe.alone(engine.pipeline, len(engine.blocks), repeats=1)
                kinds = [event[1] for event in engine.timeline()]
                assert kinds.count("offload") == len(engine.blocks)
                assert kinds.count("upload") == 3 * len(engine.blocks)
            return method.step(engine, batch).loss, dict(engine.named_tensors())

    (loss, tensors), (plain_loss, plain) = run(True), run(False)
    assert loss == plain_loss
    assert all(torch.equal(tensors[name], plain[name]) for name in plain)
