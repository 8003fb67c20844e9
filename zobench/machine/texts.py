"""JSON and TOML that may come from anybody: what no reader could take is a ``ValueError`` of one line."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

DEEPEST = 50
"""Levels of lists and sections in each other; what zobench writes has ten."""


def json_of(text: str | bytes) -> Any:
    """What a JSON text says. Raises ``ValueError`` where it is none, or is nested deeper than :data:`DEEPEST`."""
    try:
        return _checked(json.loads(text))
    except RecursionError:
        raise _too_deep() from None


def toml_of(path: Path) -> dict[str, Any]:
    """What a TOML file says. Raises ``ValueError`` as :func:`json_of` does, and ``OSError``."""
    try:
        body: dict[str, Any] = _checked(tomllib.loads(path.read_text(encoding="utf-8")))
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
