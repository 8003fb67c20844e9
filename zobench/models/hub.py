"""A model on the hub: its files, downloaded once into the hub's own cache. No torch."""

from __future__ import annotations

import functools
from pathlib import Path

from zobench.machine.errors import first_line

DESCRIBED = ("*.json", "*.model", "*.txt")
"""The files that hold a model's configuration and its tokenizer."""
WEIGHTS = "*.safetensors"


def downloaded(hub_id: str, what: str, remedy: str, *, weights: bool = True) -> Path:
    """The folder of ``hub_id`` (owner/name) in the hub's cache, with its ``weights`` or only what describes it.

    Raises ``ValueError``, one line that begins "cannot get ``what``" and ends in ``remedy``, if there is no way to it.
    """
    try:
        return _snapshot(hub_id, weights)
    except (OSError, ValueError) as error:  # offline, no such repository, no access; no repository's name
        raise ValueError(f"cannot get {what} from the hub ({first_line(error)}); {remedy}") from error


@functools.cache
def _snapshot(hub_id: str, weights: bool) -> Path:
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(hub_id, allow_patterns=[*DESCRIBED, *[WEIGHTS] * weights]))
