"""After how many steps ``writeback_every=inf`` writes pending updates: the cost of draws against that of the link."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from zobench.cost.footprint import consolidate_after, run_passes, streamed_layers, wire_width
from zobench.runspec import RunSpec
from zobench.runspec.kinds import TIERS, WIRES
from zobench.runspec.order import current

INTERVALS = (16, 32, 64, 128, 256)
"""Steps that are tried."""
SAME = 1.02
"""Steps of training that differ by less are called equally long, and the simpler settings are chosen."""
LONG_RUN = 256
"""Steps of the run that is planned for, however short the one at hand is: a benchmark measures what a long one does."""

Way = TypeVar("Way")


@dataclass(frozen=True, slots=True)
class Consolidation:
    """Pending updates are written into the weights at rest every ``steps`` steps; ``reason``: a line on the choice."""

    steps: int
    reason: str


def simplest(choices: Iterable[Way], seconds: Callable[[Way], float]) -> Way:
    """The first of ``choices``, the simplest first, whose ``seconds`` are within :data:`SAME` of the least."""
    priced = [(way, seconds(way)) for way in choices]
    limit = min(price for _, price in priced) * SAME
    return next(way for way, price in priced if price <= limit)


def chosen(spec: RunSpec, seconds: Callable[[RunSpec], float]) -> Consolidation | None:
    """When updates of ``spec`` are written by which a step takes the fewest ``seconds``, in the mean of a long run.

    Fewer pending updates are fewer draws, fewer write-backs fewer bytes. The usual interval stays where no other is
    faster by :data:`SAME`; in 16 bits and less at rest none is shorter than that, because each write-back rounds. None
    where there is nothing to choose.
    """
    if not is_open(spec):
        return None
    usual = consolidate_after(spec)
    shortest = INTERVALS[0] if wire_width(spec) == 4 else usual
    tried = [usual, *(steps for steps in INTERVALS if steps != usual and steps >= shortest)]
    run = spec.replace(steps=max(spec.steps, LONG_RUN))
    step_seconds = {steps: seconds(run.replace(writeback_every=steps)) for steps in tried}
    best = simplest(tried, step_seconds.__getitem__)
    others = [usual] if best != usual else sorted(step_seconds.keys() - {best}, key=step_seconds.__getitem__)[:1]
    parts = [f"written every {best} steps, a step takes {step_seconds[best]:.3g} s"]
    parts += [f"every {steps} steps it takes {step_seconds[steps]:.3g} s" for steps in others]
    return Consolidation(best, f"writeback_every=inf: {', '.join(parts)} (predicted)")


def is_open(spec: RunSpec) -> bool:
    """Whether there is something to choose: with another ``writeback_every`` there is not, nor where weights stay or
    are only read, where a run ends before, and on several nodes, which plan apart."""
    written = TIERS[spec.tier].is_filled and not WIRES[spec.wire].is_read_only and run_passes(spec) > INTERVALS[0]
    return spec.writeback_every == "inf" and spec.nodes == 1 and streamed_layers(spec) > 0 and written


def as_run(spec: RunSpec, plan: Consolidation | None) -> RunSpec:
    """``spec`` as it runs where :func:`chosen` has ``plan`` that: as it is if it ends before anything is written."""
    if plan is None or run_passes(spec) <= min(plan.steps, consolidate_after(spec)):
        return spec
    return spec.replace(writeback_every=plan.steps)


def ordered() -> Consolidation | None:
    """Returns the interval that this process was started with, or None."""
    running = current()
    return None if running is None or running.consolidation is None else Consolidation(*running.consolidation)
