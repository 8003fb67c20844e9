"""Reads one result file and checks everything that later readers rely on: a file may come from anywhere."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence, Set
from operator import le
from pathlib import Path
from typing import Any, NoReturn

from zobench.result import Result
from zobench.result.examples import checked
from zobench.runspec.registries import METRICS

_KINDS: dict[str, type] = {
    "reason": str, "samples": dict, "warmup": dict, "memory": dict, "power": dict, "parts": dict,
    "timeline": list, "trace": dict, "evaluation": dict, "warnings": list, "skipped_updates": int, "traceback": str,
}  # fmt: skip
_REAL = {int, float}
_NUMBER = {*_REAL, type(None)}
_LARGEST = 2**63
"""The bound of every number that is no sample: what a column of whole numbers holds, in a data frame or in Parquet."""
_SHORTEST, _LONGEST = 1e-9, 1e9
"""Seconds of a step, and of times on a timeline."""
_DEEPEST = 20
"""Levels of lists and objects; a result has six."""
LARGEST = 64 << 20
"""Bytes of a run's file: it is read whole."""
_TEXT = 16 << 20
"""Bytes of the texts in a run's file, and of a file that has other characters than ASCII, as zobench's have none: with
one such character Python takes four bytes for each of a text."""
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
_HALF = re.compile(rb"\\u[dD]")
"""The beginning of an escape that may be half of a pair."""
_MANY_ROWS, _MANY_ITEMS = 500_000, 4_000_000
"""Lists and objects of a run's file, and items in them, as many as fit some 300 MB of memory: a million steps do."""


def read(path: Path) -> Result:
    """The result in file ``path``, upgraded to the current schema version.

    Raises ``OSError`` if it cannot be read, and ``ValueError``, one line, if it is not a whole and sound result.
    """
    if not path.is_file():
        raise ValueError("a result must be a file, but this is none")
    if path.stat().st_size > LARGEST:
        raise ValueError(f"a result must be a file of {LARGEST >> 20} MiB at most, but this is larger")
    return parsed(path.read_bytes())


def parsed(data: bytes) -> Result:
    """The result that a file of ``data`` holds; as :func:`read`. What is in it is counted before it is parsed."""
    rows, items = data.count(b"[") + data.count(b"{"), data.count(b",")
    if rows > _MANY_ROWS or items > _MANY_ITEMS:
        raise ValueError(
            f"a result must hold at most {_MANY_ROWS:,} lists and {_MANY_ITEMS:,} items, but this has {rows:,} "
            f"and {items:,}"
        )
    if not data.isascii() and len(data) > _TEXT:
        raise ValueError(
            f"a result with other characters than ASCII must have at most {_TEXT >> 20} MiB; this has more"
        )
    if len(data) > _TEXT or _HALF.search(data):
        _check_texts(data)
    try:  # of bytes json takes halves of characters
        return _checked(json.loads(data.decode(), parse_constant=_no_constant))
    except json.JSONDecodeError as error:
        whole = error.doc.rstrip()
        is_cut = whole[:1] in ("", "{") and (not whole.endswith("}") or error.pos >= len(whole))
        wrong = "is cut off" if is_cut else f"is none ({error.msg})"
        raise ValueError(
            f"a result must be whole JSON, but this {wrong} at line {error.lineno}, column {error.colno}; delete it, "
            "and the next sweep measures it again"
        ) from None
    except (OverflowError, RecursionError):  # as json, and int(...) of floats, name them
        raise ValueError("a number must fit 64 bits, and nesting 20 levels, but one does not") from None


def _check_texts(data: bytes) -> None:
    """Raises ``ValueError`` for more text than a reader takes, and for half of a pair of escapes, a character that
    nothing can print or store."""
    size = 0
    for text in _STRING.finditer(data):
        size += text.end() - text.start()
        if size > _TEXT:
            raise ValueError(f"a result must have at most {_TEXT >> 20} MiB of text, but this has more")
        if _HALF.search(data, *text.span()):
            str(json.loads(text[0].decode())).encode()


def _no_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON")


def _checked(values: Any) -> Result:
    if not isinstance(values, dict) or not isinstance(values.get("spec", {}), dict):
        raise ValueError("this file is not a zobench result")
    result = Result.from_dict(values)
    for name, kind in _KINDS.items():
        if type(getattr(result, name)) is not kind:
            raise ValueError(f"`{name}` must be of type {kind.__name__}, but is not; this file is not a zobench result")
    if set(map(type, result.warnings)) - {str}:
        raise ValueError("`warnings` must hold text, but do not")
    for name in ("samples", "warmup"):
        _check_series(name, getattr(result, name))
    _check_series("parts", result.parts, _REAL)
    if any(number < 0 for metric in METRICS.builtin() for number in result.parts.get(metric.part, [])):
        raise ValueError("`parts` must hold numbers of 0 or more for zobench's own metrics, but does not")
    for name in ("samples", "warmup"):
        numbers = getattr(result, name).get("step_seconds", [])  # reports divide by them and draw them
        if not all(_SHORTEST <= number <= _LONGEST for number in numbers if number is not None):
            raise ValueError(f"`{name}.step_seconds` must be {_SHORTEST:g} to {_LONGEST:g}, but one is not")
    if not all(map(_is_count, [*result.memory.values(), result.skipped_updates])):
        raise ValueError("`memory` must hold numbers of 64 bits, 0 or more, or null, but does not")
    _check_plain(result.environment.to_dict(), 0)
    _check_plain(result.power, 0)
    powers = ("energy_joules", "mean_power_watts", "other_cpu_cores")
    sound = {f"power.{name}": _is_count(result.power.get(name)) for name in powers}
    gpus = (result.environment.hardware or {}).get("gpus", [])
    sound["environment.hardware.gpus"] = type(gpus) is list and not set(map(type, gpus)) - {dict, str}
    for name in (name for name, is_sound in sound.items() if not is_sound):
        raise ValueError(f"`{name}` must be as zobench writes it, but is not; this file is not a zobench result")
    if result.timeline and not _is_timeline(result.timeline):
        raise ValueError("`timeline` must hold rows of [lane, kind, block, start, end], but does not")
    _check_trace(result.trace)
    _check_plain(result.evaluation, 0)
    _check_evaluation(result.evaluation)
    return result


def _bounded(value: Any) -> bool:
    return type(value) in _REAL and -_LARGEST < value < _LARGEST  # no NaN passes


def _is_count(value: Any) -> bool:
    """A number of 0 or more, or null."""
    return value is None or (_bounded(value) and value >= 0)


def _check_series(name: str, series: Mapping[str, Any], kinds: Set[type] = _NUMBER) -> None:
    for numbers in series.values():
        if type(numbers) is not list or not set(map(type, numbers)) <= kinds or not _finite(numbers):
            null = " or null" * (kinds is _NUMBER)
            raise ValueError(f"`{name}` must hold lists of finite numbers{null}, but does not")


def _finite(numbers: Sequence[Any]) -> bool:
    return all(map(math.isfinite, [number for number in numbers if number is not None]))


def _check_plain(value: Any, depth: int) -> None:
    """``value`` may be any JSON, but not deeper, and no number larger, than a reader can take."""
    if type(value) in (dict, list):
        if depth == _DEEPEST:
            raise RecursionError
        for item in value.values() if type(value) is dict else value:
            _check_plain(item, depth + 1)
    elif type(value) in _REAL and not _bounded(value):
        raise OverflowError


def _is_timeline(rows: list[Any]) -> bool:
    """Checked by columns, which is several times faster than by rows."""
    if set(map(type, rows)) != {list} or set(map(len, rows)) != {5}:
        return False
    lanes, kinds, blocks, starts, ends = zip(*rows, strict=True)
    times = starts + ends
    return (
        set(map(type, lanes + kinds)) == {str} and set(map(type, blocks)) == {int} and set(map(type, times)) <= _REAL
        and _finite(times) and max(map(abs, times)) <= _LONGEST
        and _bounded(min(blocks)) and _bounded(max(blocks)) and all(map(le, starts, ends))
    )  # fmt: skip


def _check_trace(trace: dict[str, Any]) -> None:
    _check_series("trace", trace)
    seconds = trace.get("seconds", [])
    if None in seconds or any(len(series) != len(seconds) for series in trace.values()):
        raise ValueError("`trace` must hold one number for each of its `seconds`, but does not")


def _check_evaluation(evaluation: Mapping[str, Any]) -> None:
    """Checks the evaluations of a fine-tuning run; before its end it has not looked at the test set."""
    points = [evaluation.get(name) for name in ("start", "best", *(["test"] if "test" in evaluation else []))]
    rows, majority = evaluation.get("curve"), evaluation.get("majority")
    scores = evaluation.get("scores", ["accuracy"])
    if evaluation and not (
        type(scores) is list and 0 < len(scores) <= 2 and set(map(type, scores)) == {str}
        and type(rows) is list and all(_is_row(row, scores) for row in rows)
        and all(_is_point(point, scores) for point in points)
        and type(majority) is dict and all(_is_majority(majority, name) for name in ("dev", "test"))
        and type(evaluation.get("definition")) is str
    ):  # fmt: skip
        raise ValueError("`evaluation` must hold what a fine-tuning run found on dev and test, but does not")
    checked(evaluation)


def _is_point(point: Any, scores: Sequence[str]) -> bool:
    if type(point) is not dict or type(count := point.get("count")) is not int or count < 1:
        return False
    return _is_row([point.get(name) for name in ("step", "loss", *scores)], scores)


def _is_row(row: Any, scores: Sequence[str]) -> bool:
    """``[step, loss, accuracy]``, or other scores in its place; a loss that was not finite is null."""
    if type(row) is not list or len(row) != 2 + len(scores):
        return False
    step, loss, *values = row
    are_scores = all(SCORES.get(name, _is_score)(value) for name, value in zip(scores, values, strict=True))
    return type(step) is int and 0 <= step < _LARGEST and (loss is None or _bounded(loss)) and are_scores


def _is_majority(majority: Mapping[str, Any], name: str) -> bool:
    """A share; null where the examples of a task have no answers in common."""
    return name in majority and (majority[name] is None or _is_share(majority[name]))


def _is_score(value: Any) -> bool:
    """A score of a plug-in's task."""
    return value is None or _bounded(value)


def _is_share(value: Any) -> bool:
    return _bounded(value) and 0 <= value <= 1


SCORES: Mapping[str, Callable[[Any], bool]] = {
    "accuracy": _is_share, "f1": _is_share, "exact_match": _is_share,
    "perplexity": lambda value: value is None or (_bounded(value) and value >= 1),
}  # fmt: skip
