"""Strict reading of recipe files: every key known, every condition checked, every mistake one line that names it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zobench import models
from zobench.recipes.reference import COLUMNS
from zobench.runspec import check_key, check_value, suggestion

Where = Mapping[str, tuple[Any, ...]]
"""Field of RunSpec -> the values that it may have, the preferred one first."""


def check(section: str, data: Any, needed: Mapping[str, type], optional: Mapping[str, type] | None = None) -> None:
    """Raises ``ValueError`` unless ``data`` has all of ``needed``, perhaps some of ``optional``, and nothing else."""
    kinds = {**needed, **(optional or {})}
    if not isinstance(data, dict):
        raise ValueError(f"{section} must be a table of keys, but got {data!r}; its keys are {', '.join(kinds)}")
    for key, value in data.items():
        if key not in kinds:
            raise ValueError(f"unknown key {key!r} in {section}; {suggestion(key, kinds)}")
        if not isinstance(value, kinds[key]) or (isinstance(value, bool) and kinds[key] is not bool):
            raise ValueError(f"`{key}` in {section} must be of type {_noun(kinds[key])}, but got {value!r}")
        if kinds[key] in (str, list) and not value:
            raise ValueError(f"`{key}` in {section} must not be empty; give it a value or see the shipped tables")
    for key in needed:
        if key not in data:
            raise ValueError(f"`{key}` must be given in {section}, but is missing; see the shipped tables for examples")


def _noun(kind: Any) -> str:
    return "number" if kind == NUMBER else str(kind.__name__)


NUMBER: Any = (int, float)
"""Type of a key that holds a number, for :func:`check`."""


def where(section: str, data: Mapping[str, Any]) -> Where:
    """Conditions with every value checked as RunSpec would check it, so that a typing mistake cannot match nothing."""
    conditions = {}
    for field, value in data.items():
        check_key(field)
        values = tuple(value) if isinstance(value, list) else (value,)
        if not values:
            raise ValueError(f"`{section}.{field}` must allow a value, but got []; leave it out to allow all")
        checked = (check_value(field, item) for item in values)
        conditions[field] = tuple(models.shown_name(item) if field == "model" else item for item in checked)
    return conditions


def reference(data: Mapping[str, Any]) -> Mapping[str, str]:
    """Checked conditions on columns of the papers' values, as text."""
    for key in data:
        if key not in COLUMNS:
            raise ValueError(f"unknown key {key!r} in `reference`; {suggestion(key, COLUMNS)}")
    return {key: str(value) for key, value in data.items()}


def texts(section: str, values: list[Any]) -> tuple[str, ...]:
    """``values`` as texts; ``ValueError`` if one is something else."""
    if not all(isinstance(value, str) for value in values):
        raise ValueError(f"{section} must be a list of texts, but got {values!r}; write headers in quotes")
    return tuple(values)


def different(what: str, headers: list[str]) -> None:
    """Raises ``ValueError`` if two of ``headers`` are equal."""
    if len(set(headers)) < len(headers):
        raise ValueError(f"{what} headers must differ, but got {', '.join(headers)}; rename one")
