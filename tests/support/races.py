"""A tiny OPT of so many blocks, and the numbers of a few of its steps: what every order of operations must leave."""

import functools

import torch
from transformers import OPTConfig, OPTForCausalLM

from zobench import ZOSGD, Batch, Engine, EngineConfig
from zobench.models.weights import RandomWeights

STEPS = 3


def model(n_blocks):
    config = OPTConfig(
        num_hidden_layers=n_blocks, hidden_size=16, ffn_dim=32, num_attention_heads=2, vocab_size=40,
        max_position_embeddings=16, word_embed_proj_dim=16, dropout=0.0, use_cache=False,
    )  # fmt: skip
    with torch.device("meta"):
        return OPTForCausalLM(config)


def trace(n_blocks, *, lanes=None, **config):
    """Losses of three steps, an evaluation between, and the final weights."""
    skeleton = model(n_blocks)
    engine = Engine(skeleton, EngineConfig(**config), weights=RandomWeights(skeleton, 0), lanes=lanes)
    if lanes is not None:
        lanes.pipeline = engine.pipeline
    ids = torch.arange(10).view(1, 10) % 40
    batch, method, numbers = Batch(ids, ids), ZOSGD(lr=1e-2, seed=3, weight_decay=0.1), []
    with engine:
        for _ in range(STEPS):
            result = method.step(engine, batch)
            numbers += [result.loss, result.projected_grad]
        numbers.append(engine.evaluate(batch))
        numbers.append(method.step(engine, batch).loss)
        return numbers, {name: tensor.numpy().tobytes() for name, tensor in engine.named_tensors()}


@functools.cache
def resident(n_blocks):
    return trace(n_blocks, placement="resident")
