"""Timelines of steps that nobody ran, from the file that ``python -m tools.timelines`` writes: the real
engine and savers on a virtual clock. The report draws them where nothing was recorded. No torch."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zobench import models
from zobench.runspec import RunSpec

DATA = Path(__file__).with_suffix(".json")
GPU, DISK = "a100-80gb-sxm", 3e9
"""What they are for; bytes/s of the disk that checkpoints go to."""
EVERY = 4
"""Steps from one checkpoint to the next."""
BASE: Mapping[str, Any] = {"model": "OPT-1.3B", "dtype": "fp32", "engine": "offload"}
FORMS: tuple[Mapping[str, Any], ...] = (
    {}, {"overlap": False}, {"fused_update": False},
    *({"checkpoint": kind, "checkpoint_every": EVERY} for kind in ("async", "journal", "sync")),
)  # fmt: skip
"""What differs in each from :data:`BASE`."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """Operations of one step of ``spec``, or of the two beside a checkpoint, as a run records them."""

    spec: RunSpec
    events: tuple[tuple[str, str, int, float, float], ...]


def spec_of(form: Mapping[str, Any]) -> RunSpec:
    """One of :data:`FORMS` as a cell."""
    return models.checked(RunSpec.from_dict({**BASE, **form}), "cuda:0")


@functools.cache
def stored() -> tuple[Timeline, ...]:
    """Those of the file, in the order of :data:`FORMS`."""
    rows = json.loads(DATA.read_text(encoding="utf-8"))
    return tuple(
        Timeline(spec_of(form), tuple(tuple(event) for event in rows[number])) for number, form in enumerate(FORMS)
    )
