"""The order that the process of a cell gets from whoever starts it: the cell, and how this one run of it goes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from zobench.runspec.run import RunSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class Order:
    """A cell to run: its resolved ``spec``, and what holds for this run of it alone. ``end``: when it ends with the
    steps that it has, by ``time.monotonic()``; None: after its last. ``consolidation``: after how many steps pending
    updates are written, and why. ``slowdown``: a share by which each step is lengthened on purpose. ``turn``: the file
    descriptors where it is given a turn and says what it wants (:mod:`zobench.measure.threads`). ``journal``: the file
    to which that of a fine-tuning run is copied. ``disk_dir``: of the disk tier; None: as ``ZOBENCH_DISK_DIR`` says,
    else the system's temporary one. Raises ``ValueError`` for a slowdown that is no share."""

    spec: RunSpec
    end: float | None = None
    consolidation: tuple[int, str] | None = None
    slowdown: float = 0.0
    turn: tuple[int, int] | None = None
    journal: str | None = None
    disk_dir: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.slowdown, int | float) or not 0 <= self.slowdown <= 1:
            raise ValueError(f"`slowdown` must be a share from 0 to 1, but got {self.slowdown!r}; leave it out")

    def to_dict(self) -> dict[str, Any]:
        """The order as JSON has it."""
        return {**asdict(self), "spec": self.spec.to_dict()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Order:
        """The inverse of :meth:`to_dict`."""
        pairs = {name: values[name] and tuple(values[name]) for name in ("consolidation", "turn")}
        return cls(**{**values, **pairs, "spec": RunSpec.from_dict(values["spec"])})


_current: Order | None = None


def begin(order: Order) -> None:
    """Makes ``order`` the one that this process runs from now on."""
    global _current
    _current = order


def current() -> Order | None:
    """The order that this process was started with; None in any other."""
    return _current


def seconds_left() -> float | None:
    """Seconds until this process should end; None if nobody has said."""
    return None if _current is None or _current.end is None else _current.end - time.monotonic()
