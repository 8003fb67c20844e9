"""The fields of a spec by their names: lists of them, the values that they may have, and labels of several specs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from zobench.runspec.fields import LabelForm, SpecField, field_of, options_of
from zobench.runspec.run import DECLARED, RunSpec

FIELDS = tuple(DECLARED)  # names of all fields of a spec, in order


def named(of: Callable[[SpecField[Any]], bool]) -> tuple[str, ...]:
    """The names of the fields of which ``of`` is true, in order."""
    return tuple(name for name in FIELDS if of(DECLARED[name]))


INCIDENTAL = named(lambda field: field.incidental)  # fields whose values change nothing of what is measured


def check_key(key: str) -> None:
    """Raises ``ValueError`` naming the nearest fields if ``key`` is no field of a spec, nor ``options.NAME``."""
    field_of(DECLARED, key)


def check_value(key: str, value: Any) -> Any:
    """``value`` as field ``key`` holds it. Raises ``ValueError`` for a wrong type, an unknown word, or out of range."""
    return field_of(DECLARED, key).check(value)


def parse_value(key: str, text: str) -> Any:
    """The value of ``--set key=text``: text read as the field's type (``true``, ``3``, ``1e-3``, ``auto``, ``8GB``)."""
    return field_of(DECLARED, key).parse(text)


def value_in(values: Mapping[str, Any], key: str) -> Any:
    """The value that a spec of ``values`` has under ``key``, checked; of an option that none declares, None."""
    name, _, part = key.partition(".")
    if key not in values and part:
        option = options_of(DECLARED, values).get(part)
        return None if option is None else option.default
    return check_value(key, values.get(key, DECLARED[name].default))


_VALUES = (LabelForm.VALUE, LabelForm.PAIR, LabelForm.CONTRAST)
"""The forms of fields whose usual value a label hides; a switch that is not named is on."""


def labels(specs: Sequence[RunSpec]) -> list[str]:
    """The label of each spec; of one that differs from another in a single field it shows that field's usual value too:
    of an axis of a matrix every value is shown, ``seed=0`` beside ``seed=1``."""
    varied = [name for name in DECLARED if len({getattr(spec, name) for spec in specs}) > 1]
    rows = [tuple(getattr(spec, name) for name in varied) for spec in specs]
    shown: list[list[str]] = [[] for _ in specs]
    for column, name in enumerate(varied):
        for number in _alone(rows, column) if DECLARED[name].label in _VALUES else ():
            shown[number].append(name)
    return [spec.label_with(also) for spec, also in zip(specs, shown, strict=True)]


def distinct(specs: Sequence[RunSpec]) -> tuple[list[str], dict[str, str]]:
    """The words that the labels of all ``specs`` have in common, and by its hash what each has besides."""
    words = [label.split() for label in labels(specs)]
    shared = [word for word in words[0] if all(word in other for other in words)] if len(specs) > 1 else []
    rest = (" ".join(word for word in row if word not in shared) or "defaults" for row in words)
    return shared, {spec.hash: name for spec, name in zip(specs, rest, strict=True)}


def _alone(rows: Sequence[tuple[Any, ...]], column: int) -> Iterable[int]:
    """The numbers of the rows that differ from another one in ``column`` and in nothing else."""
    alike: dict[tuple[Any, ...], dict[Any, list[int]]] = {}
    for number, row in enumerate(rows):
        alike.setdefault((*row[:column], *row[column + 1 :]), {}).setdefault(row[column], []).append(number)
    for values in alike.values():
        if len(values) > 1:
            yield from (number for numbers in values.values() for number in numbers)
