"""Small causal models of transformers, by family, with random weights."""

import torch
import transformers

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
