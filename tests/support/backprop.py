"""A resident engine that backpropagates, and sources of its weights and state."""

from tests.support.slopes import select
from zobench import EngineConfig, models
from zobench.engine.backprop import Backprop
from zobench.models import weights

RESIDENT = EngineConfig(placement="resident")


def backprop(name="opt-tiny", tied=True, config=RESIDENT, train=lambda name: True, **options):
    model = select(models.build(name, "fp32", tied), train)
    return Backprop(model, config, weights=weights.RandomWeights(model, 3), **options)


BEFORE = {
    "opt-tiny": {"model.decoder.embed_tokens.weight", "model.decoder.embed_positions.weight"},
    "opt350-tiny": {
        *("model.decoder.embed_tokens.weight", "model.decoder.embed_positions.weight"),
        "model.decoder.project_in.weight",
    },
    "qwen3-tiny": {"model.embed_tokens.weight"},
    "llama-tiny": {"model.embed_tokens.weight"},
}
