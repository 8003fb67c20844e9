"""Which of several results a cell shows: the preferred one, or all that differ in one field alone, as their mean."""

from __future__ import annotations

import math
import statistics
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from zobench.report.table import Metric, Where
from zobench.result import Outcome, Result
from zobench.result.quantity import Interval, Quantity
from zobench.runspec import DECLARED, FIELDS, RunSpec

_LISTED = 3
_LONGEST = 200
_IDENTITY = tuple(name for name, field in DECLARED.items() if not field.unhashed)


@dataclass(frozen=True, slots=True)
class ShownRuns:
    """The results that belong in a cell: ``shown``, one or several whose mean it shows, and the ``others``.

    ``over``: the field in which those shown may differ, or ""; ``asked``: how many values of it the table asks for.
    """

    shown: tuple[Result, ...] = ()
    others: tuple[Result, ...] = ()
    over: str = ""
    asked: int = 0

    @property
    def first(self) -> Result | None:
        """The result that stands for the cell where one run has to: its spec, its machine, its outcome."""
        return self.shown[0] if self.shown else None

    def value(self, quantity: Quantity, base: Result | None = None) -> float | None:
        """The cell's ``quantity`` in its base unit: of several results their mean; None if no result has it. ``base``:
        the baseline's result, for a quantity that compares two results."""
        if quantity.beside is not None:
            return None if self.first is None or base is None else quantity.beside(self.first, base)
        values = self._values(quantity)
        return statistics.fmean(values) if values else None

    def interval(self, quantity: Quantity) -> Interval | None:
        """The 95 % interval of one result, or the least and the greatest value of several; None without any."""
        if len(self.shown) > 1:
            values = self._values(quantity)
            return (min(values), max(values)) if values else None
        return quantity.interval(self.shown[0]) if self.shown else None

    def _values(self, quantity: Quantity) -> list[float]:
        return [value for result in self.shown if (value := quantity.of(result)) is not None]

    def note(self, metric: Metric, quantity: Quantity | None) -> list[str]:
        """Sentences that say over how many results a mean is taken, and which of several fitting results is shown, with
        the values in ``quantity`` (or the outcomes) of those that are not."""
        said = []
        if len(self.shown) > 1:
            values = ", ".join(str(result.spec.value(self.over)) for result in self.shown)
            said.append(f"The mean over {self.over} {values}; in brackets the least and the most.")
        elif self.shown and self.over and self.asked > 1:
            only = self.shown[0].spec.value(self.over)
            said.append(f"Of {self.asked} values of {self.over} only {only} was measured yet.")
        if not self.others:
            return said
        every = (*self.shown, *self.others)
        differing = [key for key in FIELDS if len({getattr(result.spec, key) for result in every}) > 1]

        def words(result: Result) -> str:
            value = quantity.of(result) if quantity else None
            ending = str(result.outcome) if value is None else metric.text(value)
            return " ".join(f"{key}={getattr(result.spec, key)}" for key in differing) + f" ({ending})"

        firsts, rest = ("; ".join(map(words, results)) for results in (self.shown, self.others[:_LISTED]))
        more = f"; and {len(self.others) - _LISTED} more" if len(self.others) > _LISTED else ""
        chosen = ", by its loss on dev" if any(dev_loss(result) < math.inf for result in every) else ""
        return [*said, f"{len(every)} results match. Shown{chosen}: {firsts}. Not shown: {rest}{more}."]


def choose(where: Where, fitting: Sequence[Result], over: str) -> ShownRuns:
    """Which of the ``fitting`` results, which satisfy ``where``, the cell shows.

    Preferred are, in order: finished ones, those with the least loss on dev (as the papers choose among learning rates:
    the test set has no part in it), the values listed first in the table, fields at their usual values. ``over``: a
    field; then results that differ in nothing else count together, by their mean loss on dev.
    """
    ordered = sorted(fitting, key=lambda result: _preference(where, result)) if len(fitting) > 1 else list(fitting)
    groups: dict[Any, list[Result]] = {}
    for result in ordered:
        parts = tuple(getattr(result.spec, name) for name in _IDENTITY if name != over)
        groups.setdefault(parts if over else result.spec.hash, []).append(result)
    ranked = sorted(groups.values(), key=_rank) if over else list(groups.values())
    if not ranked:
        return ShownRuns(over=over)
    finished = [result for result in ranked[0] if result.outcome is Outcome.OK]
    shown = sorted(finished or ranked[0][:1], key=lambda result: str(result.spec.value(over)) if over else "")
    left = [result for result in ordered if result not in shown]
    return ShownRuns(tuple(shown), tuple(left), over, asked=len(where.get(over, ())))


def _rank(group: Iterable[Result]) -> tuple[int, float]:
    """Sorts groups: that with most finished results first, as one lucky seed is no mean; then by mean loss on dev."""
    losses = [dev_loss(result) for result in group if result.outcome is Outcome.OK]
    return -len(losses), statistics.fmean(losses) if losses else math.inf


def _preference(where: Where, result: Result) -> tuple[Any, ...]:
    values = result.spec.to_dict()
    listed = tuple(where[key].index(values[key]) for key in sorted(where))
    usual = RunSpec(model="any", engine=result.spec.engine).resolve(result.spec.device).to_dict()
    unusual = sum(values[key] != usual[key] for key in FIELDS if key not in where)
    return result.outcome is not Outcome.OK, dev_loss(result), listed, unusual, result.spec.hash


def dev_loss(result: Result) -> float:
    """The least loss on dev of a run with a task; infinite where there is none, or it was not finite."""
    return result.rank_on_dev[0]


def needed(result: Result) -> str:
    """``needs 27.2 GB``: what a skipped cell lacked, short enough for its place in the table, or ""."""
    head, of, _ = result.reason.partition(" of ")
    return head if result.outcome is Outcome.SKIPPED and of and head.startswith("needs ") else ""


def outcome_note(result: Result) -> str:
    """Why a result that is not ok has no value."""
    if needed(result):  # one note serves all cells that lacked the same thing
        return f"skipped, by prediction: {result.reason.partition(' of ')[2].partition(' (')[0]}"
    reason = textwrap.shorten(result.reason, _LONGEST, placeholder=" ...") or "no reason was recorded"
    name = {"oom": "out of memory"}.get(result.outcome, str(result.outcome))
    return f"{name}: {reason}"
