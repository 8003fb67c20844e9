"""What a step reads: batches of token ids, and where they come from. Tasks are described without torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zobench.data.batch import IGNORED as IGNORED
    from zobench.data.batch import Batch as Batch
    from zobench.data.batch import Choices as Choices


def __getattr__(name: str) -> Any:
    """A batch is of torch's tensors, so its names are imported at first use."""
    if name not in ("IGNORED", "Batch", "Choices"):
        raise AttributeError(f"module 'zobench.data' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module("zobench.data.batch"), name)
