"""Runs the cells of a plan one after the other, each in a fresh process, and stores each result at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from zobench.execute.outcome import failed
from zobench.execute.plan import Step, duration
from zobench.execute.process import run_in_process
from zobench.result import Outcome, Result
from zobench.store import Store, StoreError


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
) -> Summary:  # fmt: skip
    """Runs ``steps`` in order. ``budget`` and ``timeout`` (of one cell) in seconds.

    ``calibration``: the machine's rates, which travel with every new result (what share of the floor it reached).
    A cell whose estimate does not fit what is left of the budget is skipped; a running cell may use all that is left.
    One bad cell never ends a sweep; a KeyboardInterrupt ends it with what is done so far.
    """
    progress, summary, started = progress or SweepHooks(), Summary(), time.monotonic()
    for step in steps:
        left = None if budget is None else budget - (time.monotonic() - started)
        try:
            progress.begin(step)
            result = perform(step, left, timeout, disk_dir, calibration, progress.tick)
            summary.results.append(result)
            if not (budget is not None and step.action == "run" and result.outcome is Outcome.SKIPPED):
                try:
                    save(step, result, store)  # that a budget left a cell out says nothing about the machine
                except StoreError as error:
                    summary.unsaved.append(error.strerror or str(error))
            progress.end(step, result)
        except KeyboardInterrupt:
            summary.interrupted = True
            break
    return summary


def save(step: Step, result: Result, store: Store) -> None:
    """Stores a new result. That a cell was skipped does not replace an earlier result of it.

    Raises :class:`StoreError` if the disk refuses.
    """
    if step.action == "keep" or (result.outcome is Outcome.SKIPPED and step.earlier is not None):
        return
    store.save(result)


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
    assert step.estimate is not None
    if left is not None and step.estimate.seconds > left:
        return failed(step.spec, Outcome.SKIPPED, over_budget(step, left))
    bounds = [bound for bound in (left, timeout) if bound is not None]
    bound = min(bounds, default=None)
    result = run_in_process(step.spec, timeout=bound, disk_dir=disk_dir, while_waiting=tick)
    if result.outcome is Outcome.TIMEOUT and bound is not None and bound == left:
        # skipped, so that the same sweep with a larger budget runs it
        return failed(step.spec, Outcome.SKIPPED, f"was stopped after {duration(bound)}, when the budget was used up")
    return result


def over_budget(step: Step, left: float) -> str:
    """The reason why a cell was skipped whose estimate exceeds the budget's ``left`` seconds."""
    assert step.estimate is not None
    return (
        f"needs {duration(step.estimate.seconds)} of the budget, {duration(max(0, left))} are left "
        f"(need predicted: {duration(step.estimate.step_seconds)} a step, from {step.estimate.source})"
    )
