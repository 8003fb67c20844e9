"""The runs of a report: one line each, and each run's complete JSON, embedded once; and the machines they ran on."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from zobench.report.sheet import rounded
from zobench.result import Result
from zobench.store import machine_of, metrics

if TYPE_CHECKING:
    from markupsafe import Markup

_ESCAPED = {ord(character): f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"}
_NUMBERS = (
    ("throughput", 1, ".0f"), ("step_seconds", 1, ".2f"), ("device_peak_bytes", 2**20, ".0f"),
    ("accuracy", 0.01, ".1f"),
)  # fmt: skip
"""(key, base units of the printed unit, format) of the numbers in a run's line."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """``outcomes``: (outcome, count)."""

    name: str
    about: str
    outcomes: tuple[tuple[str, int], ...]


def machines(results: Sequence[Result]) -> list[Machine]:
    """Every machine among ``results``, by name."""
    groups: dict[str, list[Result]] = {}
    for result in results:
        groups.setdefault(machine_of(result), []).append(result)
    return [
        Machine(
            name=name,
            about=" / ".join(sorted({run.environment.description for run in groups[name]} - {""})),
            outcomes=tuple(sorted(Counter(str(run.outcome) for run in groups[name]).items())),
        )
        for name in sorted(groups)
    ]


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One line of the list. ``name`` is its id on the page; ``numbers`` are (text, exact value to sort by) of
    throughput, step time, memory and accuracy, empty where there is none; ``json`` is what its file holds, on one
    line."""

    name: str
    result: Result
    engine: str
    dtype: str
    settings: str
    numbers: tuple[tuple[str, str], ...]
    machine: str
    json: Markup


def runs(results: Sequence[Result]) -> list[Run]:
    """Every result in the given order."""
    seen: Counter[str] = Counter()
    listed = []
    for result in results:
        spec, values = result.spec, metrics(result)
        engine, dtype, *settings = spec.label.removeprefix(f"{spec.model} ").split(" ")
        seen[spec.hash] += 1  # the same spec on a second machine has the same hash
        listed.append(Run(
            name=f"run-{spec.hash}" + (f"-{seen[spec.hash]}" if seen[spec.hash] > 1 else ""), result=result,
            engine=engine, dtype=dtype, settings=" ".join(settings), machine=machine_of(result), json=embedded(result),
            numbers=tuple(_number(values.get(key), scale, form) for key, scale, form in _NUMBERS),
        ))  # fmt: skip
    return listed


def _number(value: float | None, scale: float, form: str) -> tuple[str, str]:
    return ("", "") if value is None else (rounded(value / scale, form), repr(value))


def embedded(result: Result) -> Markup:
    """The JSON of ``result`` for a script element: whatever a string in it says, it cannot end that element."""
    from markupsafe import Markup

    text = json.dumps(result.to_dict(), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return Markup(text.translate(_ESCAPED))
