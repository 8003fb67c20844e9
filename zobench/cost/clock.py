"""A virtual clock: executes a schedule's operations on lanes that only count seconds. No torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from zobench.engine.transfers.schedule import Key, Op


@dataclass(slots=True)
class Clock:
    """When each lane is free, and when the latest run of each operation ended, in seconds from 0."""

    lanes: dict[str, float] = field(default_factory=dict)
    ends: dict[Key, float] = field(default_factory=dict)
    issued: float = 0.0

    def run(
        self, operations: Iterable[Op], seconds: Callable[[Op], float], halts: Callable[[Op], float] = lambda _: 0.0
    ) -> float:
        """Runs ``operations`` in the order of issue, each after its lane's last and after all that it waits for, and
        returns when the last of all ended. ``halts(op)``: seconds that the host takes before it issues an operation,
        with all lanes idle; what comes later begins after them."""
        for op in operations:
            if halt := halts(op):
                self.issued = max(self.lanes.values(), default=self.issued) + halt
            waits = [self.ends[key] for key in op.after if key in self.ends]
            end = max([self.issued, self.lanes.get(op.lane, 0.0), *waits]) + seconds(op)
            self.lanes[op.lane] = self.ends[op.key] = end
        return max(self.lanes.values(), default=0.0)
