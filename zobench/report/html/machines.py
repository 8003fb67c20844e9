"""The machines of a report: what each is, and the environment that its runs recorded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from zobench.result import Result
from zobench.store import machine_of

_UNITS = {
    "_bytes_per_second": (1e9, "GB/s"),
    "_flops_per_second": (1e9, "GFLOP/s"),
    "_elements_per_second": (1, "elements/s"),
    "_bytes": (2**30, "GiB"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """``outcomes``: (outcome, count); ``environment``: (dotted name, every different value that its runs recorded)."""

    name: str
    about: str
    outcomes: tuple[tuple[str, int], ...]
    environment: tuple[tuple[str, tuple[str, ...]], ...]


def machines(results: Sequence[Result]) -> list[Machine]:
    """Every machine among ``results``, by name."""
    names = sorted({machine_of(result) for result in results})
    return [_machine(name, [result for result in results if machine_of(result) == name]) for name in names]


def _machine(name: str, results: Sequence[Result]) -> Machine:
    values: dict[str, dict[str, None]] = {}
    for result in results:
        for key, value in _leaves(result.environment):
            values.setdefault(key, {})[_text(key, value)] = None
    return Machine(
        name=name,
        about=" / ".join(values.get("description", {})),
        outcomes=tuple(sorted(Counter(str(result.outcome) for result in results).items())),
        environment=tuple((key, tuple(texts)) for key, texts in sorted(values.items())),
    )


def _leaves(values: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Everything in nested ``values`` under a dotted name; a list of plain values is one value."""
    for key, value in values.items():
        if isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
            value = {str(i): item for i, item in enumerate(value)}
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", value


def _text(key: str, value: Any) -> str:
    """``value`` in words; a quantity in the unit that its name tells."""
    if value is None:
        return "not available"
    if value in ([], {}, ""):
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, (int, float)):
        return _quantity(key, value)
    return str(value)


def _quantity(key: str, value: float) -> str:
    for ending, (scale, unit) in _UNITS.items():
        if any(part.endswith(ending) for part in key.split(".")):
            return f"{value / scale:.4g} {unit}"
    return str(value)
