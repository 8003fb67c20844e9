"""Fields of a spec that are numbers: whole or not, steps or never, bytes."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar, TypeVar

from zobench.runspec.fields import SpecField
from zobench.runspec.options import check_range

T = TypeVar("T")


@dataclass(frozen=True)
class NumberField(SpecField[T]):
    """A number, whole where its default is. ``lowest`` may be reached, ``above`` and ``below`` may not."""

    lowest: float | None = None
    above: float | None = None
    below: float | None = None
    highest: int = 2**31 - 1  # of whole numbers: no run counts more, and no sum over it overflows

    @property
    def wanted(self) -> str:
        return "a whole number" if int in self.types else "a number"

    def check(self, value: Any) -> Any:
        """A whole number where a float is expected becomes one, and -0.0 becomes 0.0."""
        if float in self.types and isinstance(value, int) and not isinstance(value, bool):
            value = float(value) if abs(value) < 2**1000 else math.inf
        value, name = super().check(value), self.name
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"`{name}` must be finite, but got {value}; {self.remedy}")
        highest = None if isinstance(value, float) else self.highest
        check_range(name, value, self.remedy, lowest=self.lowest, above=self.above, below=self.below, highest=highest)
        return value + 0.0 if isinstance(value, float) else value

    def parse(self, text: str) -> Any:
        try:
            return self.types[0](text)
        except ValueError:
            raise ValueError(
                f"`{self.name}` must be {self.wanted}, but got {text!r}; for example {self.name}={self.default}"
            ) from None


@dataclass(frozen=True)
class IntervalField(NumberField[int | str]):
    """A number of steps, or inf for never."""

    noun, wanted = "integer or inf", "a whole number or inf"
    types = (int, str)

    def check(self, value: Any) -> Any:
        if value in ("inf", math.inf):  # TOML's and Python's own infinity too
            return "inf"
        if isinstance(value, str):
            raise ValueError(f"`{self.name}` must be {self.wanted}, but got {value!r}; {self.remedy}")
        return super().check(value)

    def parse(self, text: str) -> Any:
        return "inf" if text.strip().lower() == "inf" else super().parse(text)


_UNITS = {"": 1, **{f"{prefix}{i}b": base**power for i, base in (("", 1000), ("i", 1024))
                    for power, prefix in enumerate("kmgt", start=1)}}  # fmt: skip


@dataclass(frozen=True)
class SizeField(NumberField[int]):
    """Bytes, which text may give with a unit."""

    highest: int = 2**63 - 1
    size: ClassVar[bool] = True
    noun = "bytes"

    def check(self, value: Any) -> int:
        return int(super().check(self.parse(value) if isinstance(value, str) else value))

    def parse(self, text: str) -> int:
        return parse_size(self.name, text)

    def write(self, value: Any) -> str:
        return size_text(value)


def parse_size(key: str, text: str) -> int:
    """Bytes of ``8GB`` (8e9), ``512MB``, ``4GiB`` (4 * 2**30) or a plain number of bytes, for field ``key``."""
    number = re.fullmatch(r"(-?\d+(?:\.\d+)?) *([a-z]*)", text.strip().lower())
    unit = _UNITS.get(number[2]) if number else None
    if number is None or unit is None:
        raise ValueError(f"`{key}` must be a size, but got {text!r}; write {key}=8GB, 512MB or 4GiB")
    return int(Fraction(number[1]) * unit)


def size_text(nbytes: int) -> str:
    """``nbytes`` in the largest unit that holds it as a whole number: ``8GB``, ``4GiB``, ``1500MB``."""
    for unit in ("GB", "GiB", "MB", "MiB"):
        if nbytes and nbytes % _UNITS[unit.lower()] == 0:
            return f"{nbytes // _UNITS[unit.lower()]}{unit}"
    return str(nbytes)
