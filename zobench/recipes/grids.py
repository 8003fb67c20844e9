"""Grids that grow: which points lie next to the best one, so that no optimum is an end of what was tried."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from zobench.runspec import DECLARED, METHODS, RunSpec


def untried(points: Sequence[RunSpec], best: RunSpec, axes: Sequence[str]) -> list[dict[str, Any]]:
    """What of ``axes`` to change in ``best`` for each neighbour that is not among ``points``: on both sides of each
    axis, the others as they are. Empty: the best point is interior. A neighbour that no run can have is none."""
    tried = {_coordinates(point, axes) for point in points}
    changes = [{key: value} for key in axes for value in _beside(key, points, best) if value is not None]
    return [change for change in changes if (new := _changed(best, change)) and _coordinates(new, axes) not in tried]


def _coordinates(point: RunSpec, axes: Sequence[str]) -> tuple[Any, ...]:
    return tuple(point.value(key) for key in axes)


def _changed(spec: RunSpec, changes: dict[str, Any]) -> RunSpec | None:
    """``spec`` with ``changes``; None where a value is out of its range, or where the method is another with it."""
    try:
        new = spec.replace(**changes)
    except ValueError:
        return None
    return None if METHODS.get(new.method).nothing(new) else new


def _beside(key: str, points: Sequence[RunSpec], best: RunSpec) -> tuple[float | None, float | None]:
    """The values below and above that of ``best``: of those tried with the other axes at any value, else new ones."""
    values = sorted({point.value(key) for point in points})
    place = values.index(best.value(key))
    below = values[place - 1] if place else _beyond(key, values[::-1])
    return below, values[place + 1] if place + 1 < len(values) else _beyond(key, values)


def _beyond(key: str, values: Sequence[float]) -> float | None:
    """The value after the last of ``values``, at the grid's spacing; None after a single one.

    The factors of the grid come in turn, so that 0.3, 1, 3, 10 goes on with 30 and 100. A share below 1, as sparsity,
    is spaced by what it leaves: 0.5, 0.75 goes on with 0.875. Whole numbers stay whole.
    """
    if len(values) < 2:
        return None
    share = getattr(DECLARED.get(key), "below", None) == 1
    a, b, c = (1 - value if share else value for value in (values[-3:] if len(values) > 2 else (values[0], *values)))
    if not a or not b:
        return None
    new = float(f"{c * (b / a if len(values) > 2 else c / b):.6g}")
    new = float(f"{1 - new:.6g}") if share else new
    return max(round(new), 1) if isinstance(values[0], int) else new
