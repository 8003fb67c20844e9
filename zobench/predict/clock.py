"""A virtual clock: executes a schedule's operations on lanes that only count seconds. No torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from zobench.engine.schedule import Key, Op


@dataclass(slots=True)
class Clock:
    """When each lane is free, and when the latest run of each operation ended, in seconds from 0."""

    lanes: dict[str, float] = field(default_factory=dict)
    ends: dict[Key, float] = field(default_factory=dict)

    def run(self, operations: Iterable[Op], seconds: Callable[[Op], float]) -> float:
        """Runs ``operations`` in the order of issue, each after its lane's last and after all that it waits for, and
        returns when the last of all ended."""
        for op in operations:
            waits = [self.ends[key] for key in op.after if key in self.ends]
            end = max([self.lanes.get(op.lane, 0.0), *waits]) + seconds(op)
            self.lanes[op.lane] = self.ends[op.key] = end
        return max(self.lanes.values(), default=0.0)
