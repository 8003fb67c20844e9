"""Round: in which round of a sweep a run was taken, and at which place in it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Round:
    """When a run was taken. Round ``number`` (from 0) of a sweep ``began`` at that time (seconds since 1970), and this
    was the turn ``place`` (from 0) of its ``cells``, whose order ``seed`` and number shuffled.

    Two runs of one number and one beginning are of the same round, so that they can be paired.
    """

    number: int
    began: float
    place: int
    cells: int
    seed: int

    @classmethod
    def from_dict(cls, values: Any) -> Round:
        """The inverse of ``dataclasses.asdict``. Raises ``ValueError`` for anything else."""
        names = {field.name for field in dataclasses.fields(cls)}
        whole = isinstance(values, Mapping) and set(values) == names
        counts = [values[name] for name in sorted(names - {"began"})] if whole else []
        whole = whole and all(type(count) is int and 0 <= count < 2**63 for count in counts)
        if not (whole and _is_time(values["began"]) and values["place"] < values["cells"]):
            raise ValueError(f"`round` must hold {', '.join(sorted(names))}, whole and 0 or more, but does not")
        return cls(**values)


def _is_time(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < 2**35  # seconds since 1970, until the year 3058
