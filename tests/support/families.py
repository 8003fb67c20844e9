"""Small models of many families of transformers, with random weights: their checkpoints differ in what is in them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM

from zobench.models.checkpoint import persistent_buffers

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SIZES = {
    "vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
    "max_position_embeddings": 64, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
GPT = {
    "vocab_size": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
KV = {**SIZES, "num_key_value_heads": 2}
EXPERTS = {  # more than ten, so that their numbers sort otherwise than their names
    **KV, "num_experts": 12, "num_local_experts": 12, "n_routed_experts": 12, "num_experts_per_tok": 2,
    "moe_intermediate_size": 24, "shared_expert_intermediate_size": 24, "n_group": 2, "topk_group": 1,
    "first_k_dense_replace": 0, "head_dim": 8,
}  # fmt: skip
CONFIGS = {
    "opt": {**SIZES, "ffn_dim": 48, "word_embed_proj_dim": 32},
    "gpt2": GPT,
    "gpt_neox": SIZES,
    "llama": KV,
    "qwen2": KV,
    "phi": SIZES,
    "gemma2": {**KV, "head_dim": 8},
    "olmo": SIZES,
    "bloom": {"vocab_size": 64, "hidden_size": 32, "n_layer": 2, "n_head": 4},
    "mpt": {"vocab_size": 64, "d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 64},
    "mixtral": EXPERTS,
    "qwen2_moe": EXPERTS,
    "phimoe": EXPERTS,
    "glm4_moe": EXPERTS,  # each router has a persistent buffer
    "nemotron_h": SIZES,  # its body has another name on the disk
    "hrm_text": {**SIZES, "head_dim": 8},  # two layers of the model are one on the disk
    "roberta": SIZES,
    "mamba2": {  # one of its values is infinite
        "vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_heads": 4, "head_dim": 16, "state_size": 8,
        "n_groups": 1, "chunk_size": 4,
    },
    "gemma4_text": {  # its layers differ in the width of a head
        **KV, "head_dim": 8, "global_head_dim": 16, "vocab_size_per_layer_input": 64, "hidden_size_per_layer_input": 4,
        "layer_types": ["sliding_attention", "full_attention"], "num_kv_shared_layers": 0,
    },
    "apertus": KV,  # its activation has buffers that only its own constructor knows
}  # fmt: skip


def made(name: str, tied: bool | None = None, seed: int = 0) -> PreTrainedModel:
    """A model of the family, on the CPU in float32; ``tied``: whether head and embedding are one, None for its own way.

    Its persistent buffers, which a fresh model has as zeros, get values of their own.
    """
    settings = {} if tied is None else {"tie_word_embeddings": tied}
    config = AutoConfig.for_model(name, **CONFIGS[name], **settings)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        family = AutoModelForMaskedLM if name == "roberta" else AutoModelForCausalLM
        model: PreTrainedModel = family.from_config(config).eval()  # type: ignore[no-untyped-call]
        for _, buffer in persistent_buffers(model):
            buffer.uniform_(-1e-2, 1e-2)
    return model
