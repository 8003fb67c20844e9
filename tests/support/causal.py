"""Small causal models of transformers, by family, with random weights."""

import torch
from transformers import AutoModelForCausalLM, Gemma3TextConfig, LlamaConfig, OPTConfig, Qwen3Config

SIZES = {"vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2, "pad_token_id": 0}
CONFIGS = {
    "llama": lambda: LlamaConfig(intermediate_size=64, num_key_value_heads=1, **SIZES),
    "opt": lambda: OPTConfig(ffn_dim=64, word_embed_proj_dim=32, max_position_embeddings=64, **SIZES),
    "qwen3": lambda: Qwen3Config(intermediate_size=64, num_key_value_heads=1, head_dim=16, **SIZES),
    "gemma3": lambda: Gemma3TextConfig(intermediate_size=64, num_key_value_heads=1, head_dim=16, **SIZES),
}


def model_of(name: str) -> torch.nn.Module:
    """A float32 model of three layers, the same at every call."""
    torch.manual_seed(3)
    return AutoModelForCausalLM.from_config(CONFIGS[name]()).eval()
