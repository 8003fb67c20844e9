"""``transformers.Trainer``, and TRL's ``SFTTrainer``, with zobench's steps: docs/trainer.md.

Data, schedule, logs and callbacks are theirs, the weights an engine's. Importing this imports transformers' Trainer,
for which accelerate must be installed.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

if find_spec("accelerate") is None:
    raise ImportError("zobench.hf needs accelerate, as transformers' Trainer does: pip install 'zobench[hf]'")

from zobench.hf.trainer import ZOMixin as ZOMixin
from zobench.hf.trainer import ZOTrainer as ZOTrainer


def __getattr__(name: str) -> Any:
    """``ZOSFTTrainer``, TRL's ``SFTTrainer`` with zobench's steps: made at its first use, because TRL is optional."""
    if name != "ZOSFTTrainer":
        raise AttributeError(f"module 'zobench.hf' has no attribute {name!r}")
    try:
        base = import_module("trl").SFTTrainer
    except ImportError as error:
        raise ImportError(f"ZOSFTTrainer needs trl ({error}): pip install trl") from error
    about = {"__doc__": "TRL's ``SFTTrainer`` with zobench's steps: see :class:`ZOMixin`.", "__module__": __name__}
    new_class = globals()[name] = type(name, (ZOMixin, base), about)
    return new_class
