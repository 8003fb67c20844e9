"""A metric: how to get it from a result, its unit, its interval, and how the values of several ranks combine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from zobench.result.record import Outcome, Result

Interval = tuple[float, float]
ABSENT = ("n/a", "this machine cannot measure it")
"""The text of a table's cell whose run has no value, and its meaning, unless a metric says else."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Quantity:
    """``name`` in tables, figures and the papers' values; ``key`` in a data frame of results.

    ``value`` gets it from a result that ended ok, in ``base_unit``, None if it has none; ``bounds`` the ends of its
    95 % interval, None where there is none. ``units``: printed unit -> how many base units it is. ``about``: what a
    table says of it.
    A ``share`` is relative by itself: no ratios are shown, and no paper reports it. ``absent``: what stands where an
    ok result has none, and what that means. ``source``: "predicted" from what a result carries, not "measured".
    ``timed``: a median over steps, so that there is an interval from six steps on; ``rate``: tokens over such a time,
    not the time. ``per_run``: each process has a value of its own, so that ratios come from rounds, as those of times
    do; ``steady``: which hardly differs between processes, so that a ratio of two single ones means something.
    ``learned``: what a run's model has learned, of which another model's value says nothing.
    ``remarks``: what its value in a result must be read with, which its heading does not say. ``part``: the entry
    of ``Result.parts`` that it reads, and ``ranks`` what is kept of several ranks' values there; a plug-in's metric
    reads the part of its own name. Only zobench's own are columns of a data frame, by their ``key``.
    ``beside``: gets it, in place of ``value``, from a result and the result that a table's baseline column
    shows in the same row.
    ``beside_metric``: the metric whose values in the papers have this one's in a column of its name, as a condition.
    """

    name: str
    key: str
    value: Callable[[Result], float | None]
    base_unit: str
    units: Mapping[str, float]
    about: str = ""
    share: bool = False
    absent: tuple[str, str] = ABSENT
    source: str = "measured"
    bounds: Callable[[Result], Interval | None] = lambda result: None
    timed: bool = False
    rate: bool = False
    per_run: bool = False
    steady: bool = False
    learned: bool = False
    remarks: Callable[[Result], Sequence[str]] = lambda result: ()
    part: str = ""
    ranks: Callable[[Sequence[float]], float] = max
    beside: Callable[[Result, Result], float | None] | None = None
    beside_metric: str = ""

    def of(self, result: Result) -> float | None:
        """The value in the base unit, or None if this result has none: then it did not end ok, or lacks it."""
        return self.value(result) if result.outcome is Outcome.OK else None

    def interval(self, result: Result) -> Interval | None:
        """The 95 % interval of :meth:`of`, over steps or examples; None for others, or for too few steps."""
        return self.bounds(result) if result.outcome is Outcome.OK else None
