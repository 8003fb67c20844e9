"""Small causal models of transformers, by family, with random weights; a batch whose rows begin alike and have
candidates, and points at which its losses are asked for."""

import torch
import transformers

from zobench import Batch
from zobench.data.batch import IGNORED, Choices
from zobench.engine.base import BASE, Point

SIZES = {"vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2, "pad_token_id": 0}
CONFIGS = {
    "llama": lambda: transformers.LlamaConfig(intermediate_size=64, num_key_value_heads=1, **SIZES),
    "opt": lambda: transformers.OPTConfig(ffn_dim=64, word_embed_proj_dim=32, max_position_embeddings=64, **SIZES),
    "qwen3": lambda: transformers.Qwen3Config(intermediate_size=64, num_key_value_heads=1, head_dim=16, **SIZES),
    "gemma3": lambda: transformers.Gemma3TextConfig(intermediate_size=64, num_key_value_heads=1, head_dim=16, **SIZES),
}


def with_bias(**sizes: int) -> torch.nn.Module:
    """Phi, whose head has a bias and is not tied."""
    torch.manual_seed(3)
    model = transformers.PhiForCausalLM(transformers.PhiConfig(intermediate_size=64, **{**SIZES, **sizes})).eval()
    torch.nn.init.normal_(model.lm_head.bias)
    return model


def model_of(name: str) -> torch.nn.Module:
    """A float32 model of three layers, the same at every call."""
    torch.manual_seed(3)
    return transformers.AutoModelForCausalLM.from_config(CONFIGS[name]()).eval()


POINTS = [BASE, Point(7, 1e-2), Point(7, -1e-2)]


def batch_of(loss: str = "choice", left: bool = True) -> Batch:
    """Two examples with two candidates of two and three tokens behind prompts of 9 and 4 tokens, and one whose
    candidates are one token each, in one row."""
    prompts = [list(range(10, 19)), [10, 11, 40, 41], [10, 50, 51, 52, 53, 54]]
    rows = [[*prompts[0], 60], [*prompts[0], 61, 62], [*prompts[1], 60], [*prompts[1], 61, 62], prompts[2]]
    spans = [
        (0, 8, (60, 70)),
        (1, 8, (61, 62, 71)),
        (2, 3, (60, 70)),
        (3, 3, (61, 62, 71)),
        (4, 5, (60,)),
        (4, 5, (61,)),
    ]
    width = max(map(len, rows)) + 1
    shifts = [width - len(row) if left else 0 for row in rows]
    ids, mask = torch.zeros(len(rows), width, dtype=torch.int64), torch.zeros(len(rows), width, dtype=torch.int64)
    for number, (row, shift) in enumerate(zip(rows, shifts, strict=True)):
        ids[number, shift : shift + len(row)], mask[number, shift : shift + len(row)] = torch.tensor(row), 1
    places = [(row, start + shifts[row] + i) for row, start, tokens in spans for i in range(len(tokens))]
    choices = Choices(
        torch.tensor(places), torch.tensor([token for *_, tokens in spans for token in tokens]),
        torch.tensor([owner for owner, (*_, tokens) in enumerate(spans) for _ in tokens]),
        torch.tensor([0, 0, 1, 1, 2, 2]), torch.tensor([1, 2, 5]), loss,
    )  # fmt: skip
    return Batch(ids, torch.full_like(ids, IGNORED), mask, choices)
