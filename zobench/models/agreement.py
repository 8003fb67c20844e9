"""Whether a checkpoint's config.json is that of the registered model whose weights it is said to hold."""

from __future__ import annotations

import functools
from pathlib import Path

from zobench.models import identity
from zobench.models.build import build_config
from zobench.models.inspection import config_of, values_of
from zobench.models.registry import get

_ALSO = ("activation_function", "hidden_act", "attention_bias", "mlp_bias", "enable_bias")
"""What decides the loss beside the values that the registry states, where a family has it."""


@functools.cache
def check(name: str, tied: bool | None, folder: str) -> None:
    """Raises ``ValueError``, one line, if ``folder`` has a config.json that differs from the registered model's.

    A folder without one says nothing, and neither does it of ``tied``, where the run decides that itself.
    """
    path = Path(folder).expanduser()
    if not (path / "config.json").is_file():
        return
    wanted, kind = get(name), identity.read_config(path)["model_type"]
    if kind != wanted.model_type:
        differs = [f"model_type={kind} and not {wanted.model_type}"]
    else:
        ours, given = (values_of(config) for config in (build_config(name), config_of(path)[0]))
        stated = [*wanted.settings(None, None), *(key for key in _ALSO if key in ours)]
        keys = [key for key in stated if not _says_nothing(key, tied)]
        differs = [f"{key}={given.get(key)} and not {ours[key]}" for key in keys if given.get(key) != ours[key]]
    if differs:
        raise ValueError(
            f"`weights_path` must hold {wanted.name}, but {folder}/config.json has {', '.join(differs)}; "
            f"use --model {folder}"
        )


def _says_nothing(key: str, tied: bool | None) -> bool:
    """Ids of special tokens change no loss, and a run may decide itself what is tied."""
    return key.endswith("_token_id") or (key == "tie_word_embeddings" and tied is not None)
