"""The one reader of tables in TOML files that people write: type hints say which keys a table has and of what types."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import sys
import types
from collections.abc import Callable, Collection, Mapping
from datetime import date
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from zobench.runspec import suggestion

T = TypeVar("T")

_EXAMPLES = {str: '"..."', int: "1", float: "1", bool: "true", date: "2026-01-31"}


def read(kind: Callable[..., T], data: Any, section: str, **given: Any) -> T:
    """Calls ``kind``, a dataclass or a function, with the table ``data`` and returns the outcome. Its keys are the
    arguments, needed where they have no default; ``given`` are arguments that are no keys. Raises ``ValueError`` as
    :func:`checked` does."""
    hints, needed = _keys(kind)
    hints = {key: hint for key, hint in hints.items() if key not in given}
    return kind(**checked(data, hints, section, needed & hints.keys()), **given)


def checked(data: Any, hints: Mapping[str, Any], section: str, needed: Collection[str] = ()) -> dict[str, Any]:
    """The values of the table ``data``, each of the type that ``hints`` has for its key.

    ``section`` is what messages call the table: "the file", "[axes]", "[[columns]]". A hint is ``str``, ``int``,
    ``float``, ``bool``, ``date``, ``dict``, a dataclass, a ``Literal`` of texts, a ``list`` or ``tuple`` of those, or
    one of them ``| None``. ``Annotated[hint, f]`` stands for what ``f`` makes of the key, the section and the value.
    Raises ``ValueError``, one line with constraint, value and remedy, for a key that is unknown, or ``needed`` and
    missing or empty, and for a value of another type.
    """
    if not isinstance(data, dict):
        raise ValueError(f"{section} must be a table of keys, but got {data!r}; its keys are {', '.join(hints)}")
    check_keys(data, hints, section)
    for key in hints:
        if key in needed and data.get(key, "") in ("", []):
            problem = f"got {data[key]!r}" if key in data else "is missing"
            remedy = _remedy(key, section, hints[key])
            raise ValueError(f"`{key}` must be given in {section}, but {problem}; {remedy}")
    return {key: _value(key, section, hints[key], value) for key, value in data.items()}


def check_keys(data: Mapping[str, Any], allowed: Collection[str], section: str) -> None:
    """Raises ``ValueError``, one line, for a key of the table ``data`` that is not among the ``allowed``."""
    for key in data:
        if key not in allowed:
            raise ValueError(f"unknown key {key!r} in {section}; {suggestion(key, allowed)}")


def not_negative(key: str, section: str, value: Any, sign: str = ">=") -> Any:
    """For ``Annotated[int, not_negative]``: raises ``ValueError`` for a number below 0."""
    if value < 0 or (value == 0 and sign == ">"):
        raise ValueError(f"`{key} {sign} 0` must hold in {section}, but got {value!r}; raise it")
    return value


positive = functools.partial(not_negative, sign=">")
"""For ``Annotated[int, positive]``: raises ``ValueError`` for 0 too."""


def _value(key: str, section: str, hint: Any, value: Any) -> Any:
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return inner[1](key, section, _value(key, section, inner[0], value))
    if inner[1:] == (types.NoneType,):  # TOML has no null
        return _value(key, section, inner[0], value)
    if dataclasses.is_dataclass(hint):
        return read(hint, value, f"[{_path(key, section)}]")  # type: ignore[arg-type]  # to mypy it may be an instance
    if inner and dataclasses.is_dataclass(inner[0]) and isinstance(value, list):
        return tuple(read(inner[0], item, f"[[{_path(key, section)}]]") for item in value)  # type: ignore[arg-type]
    if not _fits(hint, value):
        remedy = suggestion(value, inner) if origin is Literal else _remedy(key, section, hint)
        raise ValueError(f"`{key}` in {section} must be {_form(hint)[0]}, but got {value!r}; {remedy}")
    return tuple(value) if origin is tuple else value


def _fits(hint: Any, value: Any) -> bool:
    origin, inner = get_origin(hint) or hint, get_args(hint)
    if origin is Literal:
        return isinstance(value, str) and value in inner
    if origin in (list, tuple):
        fixed = origin is tuple and inner[1:] != (...,)
        return (
            isinstance(value, list) and (not fixed or len(value) == len(inner))
            and all(_fits(inner[0], item) for item in value)
        )  # fmt: skip
    if origin is float and isinstance(value, int):
        return not isinstance(value, bool) and abs(value) <= sys.float_info.max
    finite = not isinstance(value, float) or math.isfinite(value)
    return finite and isinstance(value, origin) and isinstance(value, bool) == (origin is bool)


def _form(hint: Any) -> tuple[str, str]:
    """Returns the name of a value of the type in a message, and how to write one."""
    origin, inner = get_origin(hint) or hint, get_args(hint)
    if origin is Literal:
        return f"one of {', '.join(inner)}", f'"{inner[0]}"'
    if origin in (list, tuple):
        noun, example = _form(inner[0])
        if origin is tuple and inner[1:] != (...,):
            return f"a list of {len(inner)}, each {noun}", f"[{', '.join([example] * len(inner))}]"
        return f"a list, each {noun}", f"[{example}, ...]"
    if inner and origin not in (Mapping, dict):  # Annotated, or None beside it
        return _form(inner[0])
    noun = f"of type {'number' if hint is float else hint.__name__}" if hint in _EXAMPLES else "a table"
    return noun, _EXAMPLES.get(hint, "{ ... }")


def _remedy(key: str, section: str, hint: Any) -> str:
    """How a file gives a value of the type: ``write [on.cpu]``, ``write [[parts]]``, ``write title = "..."``."""
    example, path = _form(hint)[1], _path(key, section)
    tables = {"{ ... }": f"[{path}]", "[{ ... }, ...]": f"[[{path}]]"}
    return f"write {tables.get(example, f'{key} = {example}')}"


def _path(key: str, section: str) -> str:
    return f"{section.strip('[]')}.{key}" if section.startswith("[") else key


@functools.cache
def _keys(kind: Callable[..., Any]) -> tuple[dict[str, Any], frozenset[str]]:
    """The type of each argument, and the arguments without a default."""
    hints, arguments = get_type_hints(kind, include_extras=True), inspect.signature(kind).parameters
    needed = [name for name, argument in arguments.items() if argument.default is argument.empty]
    return {name: hints[name] for name in arguments}, frozenset(needed)
