"""How a grid goes on beyond a best point at its end: the neighbours of that point which were not tried."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from zobench.runspec import DECLARED, METHODS, RunSpec, options_taken


def neighbours(points: Sequence[RunSpec], best: RunSpec, axes: Sequence[str]) -> list[RunSpec]:
    """The neighbours of ``best`` that are not among ``points``: on both sides of each of ``axes``, the others as they
    are. Empty: the best point is interior. A neighbour that no run can have is none."""
    tried = {tuple(point.value(key) for key in axes) for point in points}
    neighbours = [_changed(best, key, value) for key in axes for value in _around(key, points, best)]
    return [spec for spec in neighbours if spec and tuple(spec.value(key) for key in axes) not in tried]


def _changed(spec: RunSpec, key: str, value: float | None) -> RunSpec | None:
    """``spec`` with ``value`` under ``key``; None without one, where it is out of its range, or where the method is
    another with it."""
    try:
        new = None if value is None else spec.replace(**{key: value})
    except ValueError:
        return None
    return None if new is None or METHODS.get(new.method).nothing(new) else new


def _around(key: str, points: Sequence[RunSpec], best: RunSpec) -> tuple[float | None, float | None]:
    """The values below and above that of ``best``: of those tried with the other axes at any value, else new ones."""
    values = sorted({point.value(key) for point in points})
    index = values.index(best.value(key))
    declared = options_taken(best)[key.partition(".")[2]] if key.startswith("options.") else DECLARED[key]
    below = values[index - 1] if index else _beyond(declared, values[::-1])
    return below, values[index + 1] if index + 1 < len(values) else _beyond(declared, values)


def _beyond(declared: Any, values: Sequence[float]) -> float | None:
    """The value after the last of ``values``, at the grid's spacing; None after a single one.

    The factors of the grid come in turn, so that 0.3, 1, 3, 10 goes on with 30 and 100. What is ``declared`` to be
    below 1, as sparsity or a beta, is spaced by what it leaves: 0.5, 0.75 goes on with 0.875, so that a best point at
    the last one is an end still. A range that ends with a value that may be reached ends there. Whole numbers stay
    whole.
    """
    if len(values) < 2:
        return None
    new = _spaced(values, share=getattr(declared, "below", None) == 1)
    if new is None:
        return None
    highest = getattr(declared, "highest", None)
    return min(max(round(new), 1) if isinstance(values[0], int) else new, math.inf if highest is None else highest)


def _spaced(values: Sequence[float], *, share: bool) -> float | None:
    """The number after the last of ``values`` at their spacing, or at that of what they leave of 1. A 0 spaces nothing:
    after 0 and another number comes twice that. None where the last is 0."""
    numbers = [1 - value if share else value for value in values]
    spacing = [number for number in numbers if number][-3:]
    if not numbers[-1]:
        return None
    factor = spacing[1] / spacing[0] if len(spacing) > 1 else 2.0
    new = float(f"{spacing[-1] * factor:.6g}")
    return float(f"{1 - new:.6g}") if share else new
