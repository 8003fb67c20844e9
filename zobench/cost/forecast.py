"""A predicted number: with its range, the GPU and the program that it is for, and what must be known of it."""

from __future__ import annotations

from dataclasses import dataclass

from zobench.cost.hardware import Gpu


def bounds(value: float, share: float, slower: float = 0.0, faster: float = 0.0) -> tuple[float, float]:
    """What a predicted ``value`` would be within in nine of ten cases; ``share``: the error that nine of ten held-out
    values stay within; of a rate, ``slower``: by how much more a step may take, ``faster``: by how much less, as shares
    of it."""
    return value / (1 + share + slower), value / (1 - share) / (1 - faster)


@dataclass(frozen=True, kw_only=True, slots=True)
class Forecast:
    """A predicted ``value`` in the base unit, None for out of memory, on ``gpu``. ``share``: the error that nine of ten
    held-out values stay within. ``of_engine``: of zobench's engine, not of the paper's program. ``notes``: what a
    reader must know of it."""

    value: float | None
    share: float
    gpu: Gpu
    of_engine: bool
    notes: tuple[str, ...] = ()

    @property
    def interval(self) -> tuple[float, float] | None:
        """What the value would be within in nine of ten cases; None for out of memory."""
        if self.value is None:
            return None
        return bounds(self.value, self.share)
