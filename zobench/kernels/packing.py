"""What the kernels of scaled eight bits know of a unit: where its tensors lie among the weights and in a slot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

E4M3_MAX = 448.0


@dataclass(frozen=True, slots=True)
class Rows:
    """A tensor of ``rows`` rows of ``width`` elements: where it begins among the weights, and its values in the slot,
    and the float32 scales of its rows in the slot, in bytes; without scales it lies there as it is."""

    weights: int
    values: int
    scales: int | None
    rows: int
    width: int


@dataclass(frozen=True, eq=False, slots=True)
class Packing:
    """The tensors of one ``dtype`` in a flat buffer of bytes and in a slot. ``tables``: what a back end keeps of it."""

    dtype: torch.dtype
    pieces: Sequence[Rows]
    tables: dict[Any, Any] = field(default_factory=dict)
