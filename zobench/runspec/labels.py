"""The labels of several specs beside one another: what tells one from the others is told, also where it is usual."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from zobench.runspec.fields import LabelForm
from zobench.runspec.run import DECLARED, RunSpec

_VALUES = (LabelForm.VALUE, LabelForm.PAIR, LabelForm.CONTRAST)
"""How the fields are told whose usual value a label hides; a switch that is not named is on as ever."""


def labels(specs: Sequence[RunSpec]) -> list[str]:
    """The label of each spec; of one that differs from another in a single field it tells that field's usual value too.

    ``seed=0`` beside ``seed=1``: of an axis of a matrix every value is shown, and not all but one.
    """
    varied = [name for name in DECLARED if len({getattr(spec, name) for spec in specs}) > 1]
    rows = [tuple(getattr(spec, name) for name in varied) for spec in specs]
    shown: list[list[str]] = [[] for _ in specs]
    for column, name in enumerate(varied):
        if DECLARED[name].label in _VALUES:
            for number in _alone(rows, column):
                shown[number].append(name)
    return [spec.label_with(also) for spec, also in zip(specs, shown, strict=True)]


def _alone(rows: Sequence[tuple[Any, ...]], column: int) -> Iterable[int]:
    """The numbers of the rows that differ from another one in ``column`` and in nothing else."""
    alike: dict[tuple[Any, ...], dict[Any, list[int]]] = {}
    for number, row in enumerate(rows):
        alike.setdefault((*row[:column], *row[column + 1 :]), {}).setdefault(row[column], []).append(number)
    for values in alike.values():
        if len(values) > 1:
            yield from (number for numbers in values.values() for number in numbers)
