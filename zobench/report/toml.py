"""What several kinds of recipe files have in common: conditions, checked as a spec would check them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from zobench import models
from zobench.recipes.reference import COLUMNS
from zobench.runspec import check_key, check_value, suggestion


def where(key: str, section: str, data: Mapping[str, Any]) -> Mapping[str, tuple[Any, ...]]:
    """Conditions with every value checked as RunSpec would check it, so that a typing mistake cannot match nothing."""
    conditions = {}
    for field, value in data.items():
        check_key(field)
        values = tuple(value) if isinstance(value, list) else (value,)
        if not values:
            raise ValueError(f"`{key}.{field}` must allow a value, but got [] in {section}; leave it out to allow all")
        checked = (check_value(field, item) for item in values)
        conditions[field] = tuple(models.shown_name(item) if field == "model" else item for item in checked)
    return conditions


def reference(key: str, section: str, data: Mapping[str, Any]) -> Mapping[str, str]:
    """Checked conditions on columns of the papers' values, as text."""
    for column in data:
        if column not in COLUMNS:
            raise ValueError(f"unknown key {column!r} in `{key}` of {section}; {suggestion(column, COLUMNS)}")
    return {column: str(value) for column, value in data.items()}


Where = Annotated[Mapping[str, tuple[Any, ...]], where]
"""Field of RunSpec -> the values that it may have, the preferred one first."""
Reported = Annotated[Mapping[str, str], reference]
"""Column of the papers' values -> its value."""


def different(what: str, headers: Sequence[str]) -> None:
    """Raises ``ValueError`` if two of ``headers`` are equal."""
    if len(set(headers)) < len(headers):
        raise ValueError(f"{what} headers must differ, but got {', '.join(headers)}; rename one")
