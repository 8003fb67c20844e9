"""Whether a checkpoint's config.json is that of the registered model whose weights it is said to hold."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

from zobench.models import identity
from zobench.models.build import build_config
from zobench.models.registry import get

_SAYS_NOTHING = (
    "_name_or_path", "architectures", "chunk_size_feed_forward", "dtype", "id2label", "label2id", "layerdrop",
    "initializer_range", "init_std", "is_encoder_decoder", "output_attentions", "output_hidden_states",
    "pretraining_tp", "problem_type", "return_dict", "transformers_version", "use_cache",
)  # fmt: skip
"""Of a configuration: what changes no loss of a model without dropout; so do ids of tokens and shares of dropout."""


@functools.cache
def check(name: str, tied: bool | None, folder: str) -> None:
    """Raises ``ValueError``, one line, if ``folder`` has a config.json that differs from the registered model's.

    A folder without one says nothing, and neither does it of ``tied``, where the run decides that itself.
    """
    path = Path(folder).expanduser()
    if not (path / "config.json").is_file():
        return
    from transformers import AutoConfig

    wanted, kind = get(name), identity.read_config(path)["model_type"]
    if kind != wanted.model_type:
        differs = [f"model_type={kind} and not {wanted.model_type}"]
    else:
        ours, theirs = _told(build_config(name)), _told(AutoConfig.from_pretrained(str(path), trust_remote_code=False))
        keys = [key for key in ours if key != "tie_word_embeddings" or tied is None]
        differs = [f"{key}={theirs.get(key)} and not {ours[key]}" for key in keys if theirs.get(key) != ours[key]]
    if differs:
        raise ValueError(
            f"`weights_path` must hold {wanted.name}, but {folder}/config.json has {', '.join(differs)}; "
            f"use --model {folder}"
        )


def _told(config: Any) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(config.to_json_string(use_diff=False))
    return {
        key: value
        for key, value in values.items()
        if key not in _SAYS_NOTHING and not key.endswith("_token_id") and "dropout" not in key
    }
