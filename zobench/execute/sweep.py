"""Runs the cells of a plan one after the other, each in a fresh process, and stores each result at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from zobench.execute.outcome import failed
from zobench.execute.plan import Step, duration
from zobench.execute.process import run_in_process
from zobench.result import Outcome, Result
from zobench.store import Store, StoreError

GRACE = 15.0
"""Seconds that a cell has beyond its budget to end the step that it is in and to write its result."""


@dataclass
class SweepHooks:
    """Callbacks of a sweep: a cell begins, time passes (about ten times a second), a cell has ended."""

    begin: Callable[[Step], None] = lambda step: None
    tick: Callable[[], None] = lambda: None
    end: Callable[[Step, Result], None] = lambda step, result: None


@dataclass
class Summary:
    """The outcome of a sweep. ``results``: this sweep's and the kept ones; ``unsaved``: why results were not stored."""

    results: list[Result] = field(default_factory=list)
    unsaved: list[str] = field(default_factory=list)
    interrupted: bool = False


def sweep(
    steps: Sequence[Step], store: Store, *, budget: float | None = None, timeout: float | None = None,
    disk_dir: Path | None = None, calibration: Mapping[str, Any] | None = None, progress: SweepHooks | None = None,
    learned: Callable[[Step, Sequence[Result]], Step] = lambda step, results: step,
) -> Summary:  # fmt: skip
    """Runs ``steps`` in order. ``budget`` and ``timeout`` (of one cell) in seconds.

    ``calibration``: the machine's rates, which travel with every new result (what share of the floor it reached).
    ``learned``: a step as it is expected after the results of this sweep so far, asked before each turn.
    Cells that are predicted not to fit what is left of the budget come last and get what is left then, if it holds one
    step: they end early with the steps that they took. Where nothing fits, the first is tried: it may be faster.
    One bad cell never ends a sweep; a KeyboardInterrupt ends it with what is done so far.
    """
    progress, summary, end = progress or SweepHooks(), Summary(), None if budget is None else time.monotonic() + budget
    done: dict[int, Result] = {}
    for place, step, left, over in _in_order(steps, end, lambda step: learned(step, list(done.values()))):
        try:
            progress.begin(step)
            done[place] = result = (
                _left_out(step, over) if over else perform(step, left, timeout, disk_dir, calibration, progress.tick)
            )
            if not (budget is not None and step.action == "run" and result.outcome is Outcome.SKIPPED):
                try:
                    save(step, result, store)  # that a budget left a cell out says nothing about the machine
                except StoreError as error:
                    summary.unsaved.append(error.strerror or str(error))
            progress.end(step, result)
        except KeyboardInterrupt:
            summary.interrupted = True
            break
    summary.results = [done[place] for place in sorted(done)]
    return summary


def _in_order(
    steps: Sequence[Step], end: float | None, now: Callable[[Step], Step]
) -> Iterator[tuple[int, Step, float | None, str]]:
    """(place, step, seconds that it may take, why it is left out or "") of each step, in the order of their turns.

    ``end``: of the budget, by ``time.monotonic()``. None of a step's seconds: as many as it wants. ``now``: a step as
    it is expected when its turn comes.
    """
    if end is None:
        yield from ((place, now(step), None, "") for place, step in enumerate(steps))
        return
    late, hopeless = [], True
    for place, step in ((place, now(step)) for place, step in enumerate(steps)):
        if step.action == "run" and step.estimate is not None and step.estimate.seconds > end - time.monotonic():
            late.append((place, step))
        else:
            hopeless = hopeless and step.action == "skip"
            yield place, step, end - time.monotonic(), ""
    for place, step in ((place, now(step)) for place, step in late):
        assert step.estimate is not None
        left = end - time.monotonic()
        over = "" if hopeless or _worth(step) <= left else over_budget(step, left)
        hopeless = False
        yield place, step, left, over


def _worth(step: Step) -> float:
    """The seconds from which on a part of the cell is worth its time: more steps than are known of it already."""
    assert step.estimate is not None
    known = len(step.earlier.measured_seconds) if step.earlier is not None and step.earlier.partial else 0
    return step.estimate.least_seconds + known * step.estimate.step_seconds


def _left_out(step: Step, why: str) -> Result:
    """The result of a step that the budget leaves out: what an earlier, smaller budget has kept of it, if anything."""
    if step.earlier is not None and step.earlier.partial:
        return step.earlier
    return failed(step.spec, Outcome.SKIPPED, why)


def save(step: Step, result: Result, store: Store) -> None:
    """Stores a new result. That a cell was skipped does not replace an earlier result of it.

    Raises :class:`StoreError` if the disk refuses.
    """
    if step.action != "keep" and not _says_less(result, step.earlier):
        store.save(result)


def _says_less(result: Result, earlier: Result | None) -> bool:
    """Whether the ``earlier`` result of the same cell should stay: this one never ran, or has no more steps of it."""
    if earlier is None or result is earlier:
        return earlier is not None
    shorter = earlier.outcome is Outcome.OK and len(result.measured_seconds) <= len(earlier.measured_seconds)
    return result.outcome is Outcome.SKIPPED or (result.partial and shorter)


def perform(
    step: Step, left: float | None, timeout: float | None, disk_dir: Path | None, calibration: Mapping[str, Any] | None,
    tick: Callable[[], None] = lambda: None,
) -> Result:  # fmt: skip
    """The result of ``step``: kept, skipped, or measured with the machine's rates. ``left``: seconds of budget left."""
    result = _one(step, left, timeout, disk_dir, tick)
    if calibration is None or step.action != "run":
        return result
    return replace(result, environment={**result.environment, "calibration": dict(calibration)})


def _one(
    step: Step, left: float | None, timeout: float | None, disk_dir: Path | None, tick: Callable[[], None]
) -> Result:
    if step.action == "keep":
        assert step.earlier is not None
        return step.earlier
    if step.action == "skip":
        return failed(step.spec, Outcome.SKIPPED, step.reason)
    last = None if left is None else left + GRACE
    bound = min((one for one in (last, timeout) if one is not None), default=None)
    result = run_in_process(step.spec, timeout=bound, disk_dir=disk_dir, while_waiting=tick, enough=left)
    if result.outcome is Outcome.TIMEOUT and left is not None and bound == last:
        # skipped, so that the same sweep with a larger budget runs it
        return failed(step.spec, Outcome.SKIPPED, f"was stopped after {duration(left)}, when the budget was used up")
    return result


def over_budget(step: Step, left: float) -> str:
    """The reason why a cell was skipped whose estimate exceeds the budget's ``left`` seconds."""
    assert step.estimate is not None
    return (
        f"needs {duration(_worth(step))} of the budget, {duration(max(0, left))} are left "
        f"(need predicted: {duration(step.estimate.step_seconds)} a step, from {step.estimate.source})"
    )
