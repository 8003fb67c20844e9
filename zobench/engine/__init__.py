"""The one shared offload engine. Its vocabulary imports no torch; the engine itself is imported at first use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zobench.data.batch import Batch as Batch
    from zobench.engine.base import BASE as BASE
    from zobench.engine.base import EngineConfig as EngineConfig
    from zobench.engine.base import Entry as Entry
    from zobench.engine.base import Point as Point
    from zobench.engine.core import Engine as Engine

_HOMES = {
    "Batch": "zobench.data.batch",
    "BASE": "zobench.engine.base",
    "Engine": "zobench.engine.core",
    "EngineConfig": "zobench.engine.base",
    "Entry": "zobench.engine.base",
    "Point": "zobench.engine.base",
}
__all__ = ["BASE", "Batch", "Engine", "EngineConfig", "Entry", "Point"]


def __getattr__(name: str) -> Any:
    """Names are imported at first use, so that the interface and the vocabulary load no torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'zobench.engine' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)
