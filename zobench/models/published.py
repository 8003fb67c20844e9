"""Published models of which only the configuration is here, and no weights: names for planning and for random weights.

Each is the ``config.json`` that its authors publish on the hub, without what does not decide the computation;
``_name_or_path`` is its id there. No torch.
"""

from __future__ import annotations

import functools
from pathlib import Path

from zobench.models.identity import read_config

_CONFIGS = Path(__file__).parent / "configs"


@functools.cache
def names() -> tuple[str, ...]:
    """Their names, in order."""
    return tuple(sorted(path.name for path in _CONFIGS.iterdir()))


def get(name: str) -> str | None:
    """The name of the model called so in any case, or None."""
    return next((known_name for known_name in names() if known_name.lower() == name.lower()), None)


def folder_of(name: str, weights: bool) -> Path:
    """The folder with the configuration of the model ``name``. Raises ``ValueError`` where its ``weights`` are needed
    too: those are to be had under its id on the hub."""
    if weights:
        hub_id = read_config(_CONFIGS / name)["_name_or_path"]
        raise ValueError(
            f"`weights=pretrained` needs a checkpoint, but {name} is a configuration alone; use --model {hub_id}, a "
            "folder that holds it, or weights=random"
        )
    return _CONFIGS / name
