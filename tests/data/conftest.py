"""A tokenizer of 500 tokens and a random OPT that reads what it makes."""

from typing import Any

import pytest
import torch
from transformers import OPTConfig, OPTForCausalLM

from tests.support.task_data import trained


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return trained()


@pytest.fixture(scope="module")
def model(tokenizer: Any) -> Any:
    torch.manual_seed(0)
    config = OPTConfig(
        vocab_size=len(tokenizer), hidden_size=32, ffn_dim=64, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=4096, word_embed_proj_dim=32, pad_token_id=1, init_std=0.5,
    )  # fmt: skip
    return OPTForCausalLM(config).double().eval()
