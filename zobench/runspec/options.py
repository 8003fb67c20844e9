"""The options of a spec: constants that plug-ins declare, by name, hashed and shown only where they are not default."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any

from zobench.runspec.words import suggestion


@dataclass(frozen=True, slots=True)
class Option:
    """A plug-in's declaration of an option: its ``default`` and the values that it may have, ``choices``, or numbers in
    a range as a field's (:func:`check_range`). A default that stands alone declares no range."""

    default: Any
    _: KW_ONLY
    lowest: float | None = None
    above: float | None = None
    below: float | None = None
    highest: float | None = None
    choices: tuple[Any, ...] = ()

    @classmethod
    def of(cls, declared: Any) -> Option:
        """``declared`` itself, or an option with this default."""
        return declared if isinstance(declared, cls) else cls(declared)

    @property
    def written(self) -> str:
        """The default as ``--set`` and TOML take it: ``true``, not ``True``."""
        return str(self.default).lower() if isinstance(self.default, bool) else str(self.default)

    def checked(self, key: str, value: Any) -> Any:
        """``value`` with the type of the default. Raises ``ValueError`` for another type, or out of range."""
        typed, usual = _like(self.default, value), f"{key}={self.written}"
        if typed is None:
            name = type(self.default).__name__
            raise ValueError(f"`{key}` must be of type {name}, but got {value!r}; for example {usual}")
        if self.choices and typed not in self.choices:
            remedy = suggestion(typed, self.choices) if isinstance(typed, str) else f"use {usual}"
            raise ValueError(f"`{key}` must be one of {', '.join(map(str, self.choices))}, but got {typed!r}; {remedy}")
        check_range(
            key, typed, f"use {usual}", lowest=self.lowest, above=self.above, below=self.below, highest=self.highest
        )
        return typed


def check_range(
    key: str, value: Any, remedy: str, *,
    lowest: float | None, above: float | None, below: float | None, highest: float | None,
) -> None:  # fmt: skip
    """Raises ``ValueError`` out of range, in which ``lowest`` and ``highest`` are, ``above`` and ``below`` are not."""
    for holds, sign, end in (
        (above is None or value > above, ">", above),
        (lowest is None or value >= lowest, ">=", lowest),
        (below is None or value < below, "<", below),
        (highest is None or value <= highest, "<=", highest),
    ):
        if not holds:
            raise ValueError(f"`{key} {sign} {end}` must hold, but got {key}={value}; {remedy}")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Options(Mapping[str, Any]):
    """Texts, numbers and truth values by name, in the order of the alphabet; hashable, as a spec must be."""

    pairs: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Options:
        """The options that ``values`` give."""
        return cls(tuple(sorted(values.items())))

    def __getitem__(self, name: str) -> Any:
        for key, value in self.pairs:
            if key == name:
                return value
        raise KeyError(f"{name!r} is not among the options that are not at their default; read spec.option({name!r})")

    def __iter__(self) -> Iterator[str]:
        return iter(dict(self.pairs))

    def __len__(self) -> int:
        return len(self.pairs)

    def __hash__(self) -> int:
        return hash(self.pairs)

    def __str__(self) -> str:
        return json.dumps(dict(self.pairs))

    __repr__ = __str__


def check_scalar(key: str, value: Any) -> Any:
    """``value``, if an option can have it; -0.0 becomes 0.0."""
    if not isinstance(value, (str, bool, int, float)):
        raise ValueError(f"`{key}` must be text, a number, true or false, but got {value!r}; write {key}=0.5")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"`{key}` must be finite, but got {value}; write {key}=0.5")
    return value + 0.0 if isinstance(value, float) else value


def read_scalar(text: str) -> Any:
    """``true``, ``3``, ``1e-3`` as JSON has them; anything else is text."""
    try:
        value = json.loads(text)
    except ValueError:
        return text.strip()
    return value if isinstance(value, (bool, int, float)) else text.strip()


def read_options(key: str, text: str) -> dict[str, Any]:
    """The options that a JSON object gives, by name."""
    try:
        values = json.loads(text)
    except ValueError:
        values = None
    if not isinstance(values, dict):
        raise ValueError(f"`{key}` must be a table, but got {text!r}; write {key}.NAME=VALUE")
    return values


def flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """``values`` with each option in the table ``options`` as a value of its own, ``options.NAME``."""
    if not isinstance(inside := values.get("options"), Mapping):
        return dict(values)
    rest = {name: value for name, value in values.items() if name != "options"}
    return rest | {f"options.{name}": value for name, value in inside.items()}


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of :func:`flat`."""
    alone = {name.partition(".")[2]: value for name, value in values.items() if name.startswith("options.")}
    rest = {name: value for name, value in values.items() if not name.startswith("options.")}
    return rest | ({"options": {**rest.get("options", {}), **alone}} if alone else {})


def settled(key: str, given: Mapping[str, Any], declared: Mapping[str, Option], takers: str) -> Options:
    """``given`` with each value as its default in ``declared`` has it, without those that equal it. Raises
    ``ValueError`` for an option of another type, out of range, or that none of ``takers`` has declared."""
    kept = {}
    for name, value in given.items():
        if name not in declared:
            remedy = suggestion(name, declared) if declared else f"leave {key}.{name} out"
            raise ValueError(f"unknown option {name!r} of {takers}; {remedy}")
        typed = declared[name].checked(f"{key}.{name}", value)
        if typed != declared[name].default:
            kept[name] = typed
    return Options.of(kept)


def _like(default: Any, value: Any) -> Any:
    """``value`` with the type of ``default``; None if it has another. A whole number where a float is expected becomes
    one, and a number or truth value where text is expected is that text."""
    if isinstance(default, str):
        return value if isinstance(value, str) else json.dumps(value)
    if isinstance(default, float) and isinstance(value, int) and not isinstance(value, bool):
        return float(value) if abs(value) < 1e300 else None
    return value if type(value) is type(default) else None
