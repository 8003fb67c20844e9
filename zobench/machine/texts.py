"""JSON and TOML that may come from anybody: what no reader could take is a ``ValueError`` of one line."""

from __future__ import annotations

import csv
import json
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

DEEPEST = 50
"""Levels of lists and sections in each other; what zobench writes has ten."""

LARGEST = 1_000_000
"""Characters of a TOML file, which people write: tomllib takes seconds for more."""


class CsvWriter:
    """Writes CSV in which no cell is a formula for the spreadsheet that opens it: text of others could be one.

    With ``columns`` it begins with them, and a row maps a column to its value; a column that it has not stays empty.
    """

    def __init__(self, stream: TextIO, columns: Sequence[str] = ()) -> None:
        self._columns, self._writer = columns, csv.writer(stream, lineterminator="\n")
        if columns:
            self._writer.writerow(columns)

    def writerow(self, row: Iterable[Any] | Mapping[str, Any]) -> None:
        """Writes one row."""
        if isinstance(row, Mapping):
            assert row.keys() <= set(self._columns), row
            row = [row.get(name, "") for name in self._columns]
        self._writer.writerow(map(not_a_formula, row))


def not_a_formula(value: Any) -> Any:
    """``value``; text that a spreadsheet would compute gets an apostrophe in front. Numbers are none."""
    if not isinstance(value, str) or len(value) < 2 or value[0] not in "=+-@\t\r":
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value


def json_of(text: str | bytes) -> Any:
    """What a JSON text says. Raises ``ValueError`` where it is none, or is nested deeper than :data:`DEEPEST`."""
    try:
        return _checked(json.loads(text))
    except RecursionError:
        raise _too_deep() from None


def toml_of(path: Path) -> dict[str, Any]:
    """What a TOML file says. Raises ``ValueError`` as :func:`json_of` does, and for a file larger than :data:`LARGEST`,
    and ``OSError``."""
    text = path.read_text(encoding="utf-8")
    if len(text) > LARGEST:
        raise ValueError(f"a TOML file must have at most {LARGEST:,} characters, but this has {len(text):,}; cut it")
    try:
        body: dict[str, Any] = _checked(tomllib.loads(text))
        return body
    except RecursionError:
        raise _too_deep() from None


def _checked(tree: Any, depth: int = 0) -> Any:
    if depth > DEEPEST:
        raise _too_deep()
    for inner in tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ():
        _checked(inner, depth + 1)
    return tree


def _too_deep() -> ValueError:
    return ValueError(f"lists and sections must be nested {DEEPEST} levels at most, but are more; mend the file")
