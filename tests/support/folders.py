"""Folders of models that are not in zobench's list: a config.json each, of the smallest sizes that say something."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_SIZES = {
    "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 96, "vocab_size": 128,
    "max_position_embeddings": 64,
}  # fmt: skip
_GROUPED = {**_SIZES, "num_key_value_heads": 2}

CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "gpt2": {"n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 64, "vocab_size": 128},
    "gpt_neox": _SIZES,
    "phi": _GROUPED,
    "gemma2": {**_GROUPED, "head_dim": 16, "sliding_window": 16, "query_pre_attn_scalar": 16},
    "mixtral": {**_GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen2": _GROUPED,
    "olmo": _GROUPED,
    "bloom": {"hidden_size": 64, "n_layer": 3, "n_head": 4, "vocab_size": 128},
    "mpt": {"d_model": 64, "n_layers": 3, "n_heads": 4, "vocab_size": 128, "max_seq_len": 64, "expansion_ratio": 2},
}
"""By their word in transformers; each writes its sizes in its own way."""


def written(folder: Path, config: Mapping[str, Any]) -> Path:
    """``folder``, made with this config.json alone."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def of_family(parent: Path, family: str) -> Path:
    """A folder in ``parent`` with the small model of ``family``."""
    tokens = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    return written(parent / family, {"model_type": family, **tokens, **CONFIGS[family]})
