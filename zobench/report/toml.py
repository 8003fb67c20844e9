"""Strict reading of recipe files: every key known, every condition checked, every mistake one line that names it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zobench.recipes.reference import COLUMNS
from zobench.runspec import check_key, check_value, suggestion

Where = Mapping[str, tuple[Any, ...]]
"""Field of RunSpec -> the values that it may have, the preferred one first."""


def check(place: str, data: Any, needed: Mapping[str, type], optional: Mapping[str, type] | None = None) -> None:
    """Raises ``ValueError`` unless ``data`` has all of ``needed``, perhaps some of ``optional``, and nothing else."""
    known = {**needed, **(optional or {})}
    if not isinstance(data, dict):
        raise ValueError(f"{place} must be a table of keys, but got {data!r}; its keys are {', '.join(known)}")
    for key, value in data.items():
        if key not in known:
            raise ValueError(f"unknown key {key!r} in {place}; {suggestion(key, known)}")
        if not isinstance(value, known[key]) or (isinstance(value, bool) and known[key] is not bool):
            raise ValueError(f"`{key}` in {place} must be of type {_noun(known[key])}, but got {value!r}")
        if known[key] in (str, list) and not value:
            raise ValueError(f"`{key}` in {place} must not be empty; give it a value or see the shipped tables")
    for key in needed:
        if key not in data:
            raise ValueError(f"`{key}` must be given in {place}, but is missing; see the shipped tables for examples")


def _noun(kind: Any) -> str:
    return "number" if kind == NUMBER else str(kind.__name__)


NUMBER: Any = (int, float)
"""Type of a key that holds a number, for :func:`check`."""


def where(place: str, data: Mapping[str, Any]) -> Where:
    """Conditions with every value checked as RunSpec would check it, so that a typing mistake cannot match nothing."""
    conditions = {}
    for field, value in data.items():
        check_key(field)
        values = tuple(value) if isinstance(value, list) else (value,)
        if not values:
            raise ValueError(f"`{place}.{field}` must allow a value, but got []; leave it out to allow all")
        conditions[field] = tuple(check_value(field, item) for item in values)
    return conditions


def reference(data: Mapping[str, Any]) -> Mapping[str, str]:
    """Conditions on the papers' values, as the text that stands there."""
    for key in data:
        if key not in COLUMNS:
            raise ValueError(f"unknown key {key!r} in `reference`; {suggestion(key, COLUMNS)}")
    return {key: str(value) for key, value in data.items()}


def texts(place: str, values: list[Any]) -> tuple[str, ...]:
    """``values`` as texts; ``ValueError`` if one is something else."""
    if not all(isinstance(value, str) for value in values):
        raise ValueError(f"{place} must be a list of texts, but got {values!r}; write headers in quotes")
    return tuple(values)


def different(what: str, headers: list[str]) -> None:
    """Raises ``ValueError`` if two of ``headers`` are equal."""
    if len(set(headers)) < len(headers):
        raise ValueError(f"{what} headers must differ, but got {', '.join(headers)}; rename one")
