"""The papers' reported values: one CSV row each, looked up by their conditions."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass

from zobench import recipes

COLUMNS = (
    *("paper", "artifact", "model", "method", "metric", "unit", "value", "status", "dtype", "autocast", "wire_dtype"),
    *("switch", "batch_size", "seq_len", "steps", "gpus", "gpu", "task", "scheme", "setting"),
)

PAPERS = {
    "zo-offloading-neurips24": "ZO-Offloading, NeurIPS'24",
    "zo-offloading-iclr25": "ZO-Offloading, ICLR'25",
    "zo2": "ZO2",
    "distzo2": "DistZO2",
    "zo-bench": "ZO-Bench",
}
"""Short names of the papers and how a reader knows them, in reading order; any other is called by its short name."""


@dataclass(frozen=True, slots=True)
class Reference:
    """All reported values, in file order."""

    rows: tuple[Mapping[str, str], ...]

    @classmethod
    def load(cls) -> Reference:
        """The user's own, or those that travel with zobench; ``ValueError`` for a file of another kind."""
        path = recipes.find("paper", "reference")
        with open(path, newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            if tuple(reader.fieldnames or ()) != COLUMNS:
                raise ValueError(f"the header of {path.name} must be {','.join(COLUMNS)}, but got {reader.fieldnames}")
            return cls(tuple(reader))

    def find(self, conditions: Mapping[str, str]) -> Mapping[str, str] | None:
        """The one reported value under ``conditions``; None if there is none, ``ValueError`` if there are several."""
        matching = [row for row in self.rows if all(row[key] == value for key, value in conditions.items())]
        if len(matching) > 1:
            wanted = ", ".join(f"{key}={value}" for key, value in conditions.items())
            raise ValueError(f"one paper value must match, but {len(matching)} match {wanted}; narrow `reference`")
        return matching[0] if matching else None
