"""A predicted number: with its range, the GPU and the program that it is for, and what must be known of it."""

from __future__ import annotations

from dataclasses import dataclass

from zobench.predict.hardware import Gpu


@dataclass(frozen=True, kw_only=True, slots=True)
class Forecast:
    """A predicted ``value`` in the base unit, None for out of memory, on ``gpu``. ``share``: the error that nine of ten
    held-out values stay within. ``own``: of zobench's engine, not of the paper's program. ``notes``: what a reader must
    know of it."""

    value: float | None
    share: float
    gpu: Gpu
    own: bool
    notes: tuple[str, ...] = ()

    @property
    def interval(self) -> tuple[float, float] | None:
        """What the value would be within in nine of ten cases; None for out of memory."""
        if self.value is None:
            return None
        return self.value / (1 + self.share), self.value / (1 - self.share)
