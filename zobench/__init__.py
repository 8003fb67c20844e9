"""zobench measures what zeroth-order fine-tuning of a language model costs, and compares it with what papers report.

What ``dir(zobench)`` shows is public, and so are :mod:`zobench.hf`, :mod:`zobench.testing` and what the pages of docs/
import: it changes only with a line in CHANGELOG.md under "Changed". Everything else may change without one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zobench.version import __version__ as __version__

if TYPE_CHECKING:
    from zobench import models as models
    from zobench.data.batch import stream as stream
    from zobench.engine import Batch as Batch
    from zobench.engine import Engine as Engine
    from zobench.engine import EngineConfig as EngineConfig
    from zobench.engine import Entry as Entry
    from zobench.engine import Point as Point
    from zobench.execute.monitor import Monitor as Monitor
    from zobench.methods import ZOSGD as ZOSGD
    from zobench.methods import StepResult as StepResult
    from zobench.models.weights import RandomWeights as RandomWeights
    from zobench.programs import run as run
    from zobench.result import Result as Result
    from zobench.runspec import RunSpec as RunSpec
    from zobench.session.matrices import SweepOptions as SweepOptions
    from zobench.session.session import Session as Session
    from zobench.session.session import compare as compare
    from zobench.session.session import plan as plan
    from zobench.session.session import sweep as sweep
    from zobench.store import Store as Store
    from zobench.store import frame as frame
    from zobench.training import Callback as Callback
    from zobench.training import finetune as finetune

_HOMES = {
    "Batch": "zobench.engine",
    "Callback": "zobench.training",
    "Engine": "zobench.engine",
    "EngineConfig": "zobench.engine",
    "Entry": "zobench.engine",
    "Monitor": "zobench.execute.monitor",
    "Point": "zobench.engine",
    "RandomWeights": "zobench.models.weights",
    "Result": "zobench.result",
    "RunSpec": "zobench.runspec",
    "Session": "zobench.session.session",
    "StepResult": "zobench.methods",
    "Store": "zobench.store",
    "SweepOptions": "zobench.session.matrices",
    "ZOSGD": "zobench.methods",
    "compare": "zobench.session.session",
    "finetune": "zobench.training",
    "frame": "zobench.store",
    "models": "zobench",
    "plan": "zobench.session.session",
    "run": "zobench.programs",
    "stream": "zobench.data.batch",
    "sweep": "zobench.session.session",
}
"""Public name -> the module that it is in."""
__all__ = [*_HOMES, "__version__"]


def __dir__() -> list[str]:
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    """Public names are imported at first use, so that ``import zobench`` loads no torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'zobench' has no attribute {name!r}")
    from importlib import import_module

    home = _HOMES[name]
    return import_module(f"{home}.{name}") if home == __name__ else getattr(import_module(home), name)
