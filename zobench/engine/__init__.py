"""The one shared offload engine. Its vocabulary imports no torch; the engine itself is imported at first use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zobench.engine.base import BASE as BASE
from zobench.engine.base import EngineConfig as EngineConfig
from zobench.engine.base import Entry as Entry
from zobench.engine.base import Point as Point

if TYPE_CHECKING:
    from zobench.data import Batch as Batch
    from zobench.engine.core import Engine as Engine

_HOMES = {"Batch": "zobench.data", "Engine": "zobench.engine.core"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'zobench.engine' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)
