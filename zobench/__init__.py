"""zobench measures what zeroth-order fine-tuning of a language model costs, and compares it with what papers report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zobench.version import __version__ as __version__

if TYPE_CHECKING:
    from zobench.engine import Batch as Batch
    from zobench.engine import Engine as Engine
    from zobench.engine import EngineConfig as EngineConfig
    from zobench.engine import Entry as Entry
    from zobench.engine import Point as Point
    from zobench.methods import ZOSGD as ZOSGD
    from zobench.methods import StepResult as StepResult
    from zobench.programs import run as run
    from zobench.result import Result as Result
    from zobench.runspec import RunSpec as RunSpec

_HOMES = {
    "Batch": "zobench.engine",
    "Engine": "zobench.engine",
    "EngineConfig": "zobench.engine",
    "Entry": "zobench.engine",
    "Point": "zobench.engine",
    "run": "zobench.programs",
    "StepResult": "zobench.methods",
    "ZOSGD": "zobench.methods",
    "Result": "zobench.result",
    "RunSpec": "zobench.runspec",
}
__all__ = [*_HOMES, "__version__"]


def __getattr__(name: str) -> Any:
    """Public names are imported at first use, so that ``import zobench`` loads no torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'zobench' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)
