"""A prompt with the names of columns in braces, and what a row has in them."""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from zobench.runspec import suggestion


@dataclass(frozen=True, slots=True)
class Template:
    """``pieces``: of each the text that comes first, and the column that follows it, or None after the last."""

    pieces: tuple[tuple[str, str | None], ...]

    @classmethod
    def of(cls, text: str, columns: Sequence[str]) -> Template:
        """The template ``{title}: {body}``; ``{{`` and ``}}`` are braces. Raises ``ValueError`` for a column that the
        data does not have."""
        try:
            pieces = tuple(string.Formatter().parse(text))
        except ValueError as error:
            raise ValueError(
                f"`prompt.template` must be text with {{columns}}, but {error}; write {{{{ for a brace"
            ) from error
        for _, name, layout, conversion in pieces:
            if name is not None:
                if layout or conversion or not name:
                    raise ValueError(
                        f"`prompt.template` must name a column, but got {{{name}}}; write {{column}} alone"
                    )
                check_column("prompt.template", name, columns)
        return cls(tuple((before, name) for before, name, _, _ in pieces))

    def fill(self, row: Mapping[str, Any]) -> str:
        """The prompt of ``row``. Raises ``ValueError`` where a column is no text and no number."""
        return "".join(before + ("" if name is None else text_of(row, name)) for before, name in self.pieces)


def check_column(key: str, name: str, columns: Sequence[str]) -> None:
    """Raises ``ValueError`` if ``name``, or what stands before its first dot, is none of the data's ``columns``."""
    if name not in columns and name.partition(".")[0] not in columns:
        raise ValueError(f"`{key}` must name columns of the data, but got {name!r}; {suggestion(name, columns)}")


def value_of(row: Mapping[str, Any], name: str) -> Any:
    """What ``row`` has in a column; ``answers.text`` is the part ``text`` of the column ``answers``."""
    if name in row:
        return row[name]
    value: Any = row
    for part in name.split("."):
        if not isinstance(value, Mapping) or part not in value:
            raise ValueError(f"a row must have the column {name}, but got columns {', '.join(row)}")
        value = value[part]
    return value


def text_of(row: Mapping[str, Any], name: str) -> str:
    """The text or the number in a column, as text."""
    value = value_of(row, name)
    if not isinstance(value, (str, int, float)):
        raise ValueError(f"the column {name} must have text or a number, but got {value!r}")
    return str(value)
