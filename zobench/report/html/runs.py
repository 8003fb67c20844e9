"""The runs of a report: one line each, and each run's complete JSON, embedded once."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from zobench.report.quantity import rounded
from zobench.result import Result
from zobench.store import machine_of, metrics

if TYPE_CHECKING:
    from markupsafe import Markup

MIB = 2**20

_ESCAPED = {ord(character): f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Number:
    """A number as it is shown, and ``exact`` for sorting; both empty where there is none."""

    text: str = ""
    exact: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One line of the list. ``name`` is its place on the page; ``json`` is what its file holds, on one line."""

    name: str
    result: Result
    engine: str
    dtype: str
    settings: str
    throughput: Number
    seconds: Number
    memory: Number
    accuracy: Number
    machine: str
    json: Markup


def runs(results: Sequence[Result]) -> list[Run]:
    """Every result in the given order."""
    seen: Counter[str] = Counter()
    return [_run(result, seen) for result in results]


def _run(result: Result, seen: Counter[str]) -> Run:
    spec, told = result.spec, metrics(result)
    engine, dtype, *settings = spec.label.removeprefix(f"{spec.model} ").split(" ")
    seen[spec.hash] += 1  # the same spec on a second machine has the same hash
    return Run(
        name=f"run-{spec.hash}" + (f"-{seen[spec.hash]}" if seen[spec.hash] > 1 else ""),
        result=result,
        engine=engine,
        dtype=dtype,
        settings=" ".join(settings),
        throughput=_number(told.get("throughput"), 1, ".0f"),
        seconds=_number(told.get("step_seconds"), 1, ".2f"),
        memory=_number(told.get("device_peak_bytes"), MIB, ".0f"),
        accuracy=_number(told.get("accuracy"), 0.01, ".1f"),
        machine=machine_of(result),
        json=embedded(result),
    )


def _number(value: float | None, scale: float, form: str) -> Number:
    return Number() if value is None else Number(text=rounded(value / scale, form), exact=repr(value))


def embedded(result: Result) -> Markup:
    """The JSON of ``result`` for a script element: whatever a string in it says, it cannot end that element."""
    from markupsafe import Markup

    text = json.dumps(result.to_dict(), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return Markup(text.translate(_ESCAPED))
