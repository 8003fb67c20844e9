"""The record of a run: what it has come to so far, as a snapshot keeps it beside the tensors."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

from zobench.finetune.progress import Evaluation


@dataclass
class Record:
    """``step``: steps taken; ``curve``: [step, loss, accuracy] of each evaluation on dev, ``count`` examples each.

    ``entries``: updates in the journal; ``method``: its state; ``samples``: as in :class:`zobench.result.Result`.
    """

    step: int = 0
    curve: list[list[float]] = field(default_factory=list)
    count: int = 0
    entries: int = 0
    method: dict[str, Any] = field(default_factory=dict)
    samples: dict[str, list[float | None]] = field(
        default_factory=lambda: {"step_seconds": [], "loss": [], "projected_grad": []}
    )

    def to_dict(self) -> dict[str, Any]:
        """Its fields; JSON but for floats that are not finite, which Python's own JSON keeps."""
        return asdict(self)

    @property
    def evaluated(self) -> set[int]:
        """After how many steps dev was looked at."""
        return {int(row[0]) for row in self.curve}

    @property
    def best(self) -> list[float] | None:
        """The row of the curve that is kept: see :func:`best`."""
        return best(self.curve)

    def at(self, step: int) -> Evaluation:
        """The evaluation after ``step`` steps."""
        row = next(row for row in self.curve if row[0] == step)
        return Evaluation(split="dev", step=step, loss=row[1], accuracy=row[2], count=self.count, best=row == self.best)


def best(curve: list[list[float]]) -> list[float] | None:
    """Of the rows [step, loss, accuracy] after training began, that of the lowest loss, as ZO-Bench selects.

    Of equal losses the higher accuracy counts, then the earlier step; a loss that is not finite is the highest. Step 0
    is the start and not a result: a run that only lost is told as it is.
    """
    rows = [row for row in curve if row[0] > 0]
    return min(rows, key=lambda row: (row[1] if math.isfinite(row[1]) else math.inf, -row[2], row[0]), default=None)
