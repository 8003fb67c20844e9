"""The papers' reported values: one CSV row each, looked up by their conditions."""

from __future__ import annotations

import csv
import functools
import itertools
import operator
import re
from collections.abc import Mapping
from dataclasses import dataclass

from zobench import recipes

COLUMNS = (
    *("paper", "artifact", "model", "method", "metric", "unit", "value", "status", "dtype", "autocast", "wire_dtype"),
    *("switch", "batch_size", "seq_len", "steps", "gpus", "gpu", "task", "scheme", "setting"),
)
_NUMBERS = dict.fromkeys(("batch_size", "seq_len", "steps", "gpus"), "[0-9]{1,18}")
_NUMBERS["value"] = r"-?(?=\.?[0-9])[0-9]{0,18}(\.[0-9]*)?([eE][+-]?[0-9]{1,2})?"

PAPERS = {
    "zo-offloading-neurips24": "ZO-Offloading, NeurIPS'24",
    "zo-offloading-iclr25": "ZO-Offloading, ICLR'25",
    "zo2": "ZO2",
    "distzo2": "DistZO2",
    "zo-bench": "ZO-Bench",
}
"""Short names of the papers and how a reader knows them, in reading order; any other is called by its short name."""


@dataclass(frozen=True)
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
            return cls(tuple(_checked(row, f"line {reader.line_num} of {path.name}") for row in reader))

    def find(self, conditions: Mapping[str, str]) -> Mapping[str, str] | None:
        """The one reported value under ``conditions``; None if there is none, ``ValueError`` if there are several."""
        rows = self.rows
        if "paper" in conditions and "artifact" in conditions:
            rows = self._of_tables.get((conditions["paper"], conditions["artifact"]), ())
        matching = [row for row in rows if all(row[key] == value for key, value in conditions.items())]
        if len(matching) > 1:
            wanted = ", ".join(f"{key}={value}" for key, value in conditions.items())
            raise ValueError(f"one paper value must match, but {len(matching)} match {wanted}; narrow `reference`")
        return matching[0] if matching else None

    @functools.cached_property
    def _of_tables(self) -> Mapping[tuple[str, str], tuple[Mapping[str, str], ...]]:
        """(paper, table or figure) -> its rows: a report looks thousands of values up."""
        table_of = operator.itemgetter("paper", "artifact")
        return {table: tuple(rows) for table, rows in itertools.groupby(sorted(self.rows, key=table_of), table_of)}


def _checked(row: dict[str, str], line: str) -> Mapping[str, str]:
    """``row``, which ``line`` has; ``ValueError`` if it has other columns, or text for a number."""
    if None in row or None in row.values():
        raise ValueError(f"{line} must have {len(COLUMNS)} columns, as the header has, but has more or fewer")
    for name, pattern in _NUMBERS.items():
        if row[name] and not re.fullmatch(pattern, row[name]):
            raise ValueError(f"`{name}` must be a number or empty, but {line} has {row[name][:80]!r}; correct it")
    return row
