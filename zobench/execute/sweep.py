"""Runs the cells of a plan, one by one or in turns, each in a fresh process, and stores each result at once."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from zobench.execute.monitor import Monitor
from zobench.execute.plan import HOST_RESERVE, Step
from zobench.execute.process import run_in_process
from zobench.execute.together import run_together
from zobench.machine.texts import duration
from zobench.measure.environment import failed, fingerprint_without_torch
from zobench.result import Outcome, Result
from zobench.store import Store, StoreError

PROCESS_BYTES = 1 << 29
"""Host memory of the interpreter and the libraries of a process, of which several run side by side."""
SETTLE_SECONDS = 2.0
"""A job that is ended gets SIGTERM in all its processes; the cell's can be gone before this one has been told."""
GRACE = 15.0  # seconds that a cell has beyond its budget to end the step that it is in and to write its result


@dataclass
class Summary:
    """The outcome of a sweep. ``results``: this sweep's and the kept ones; ``unsaved``: why results were not stored;
    ``waiting``: how many cells of the matrix, or runs of the campaign's parts that did not begin, need more time;
    ``lost_repeats``: how many runs of cells that ended ok in an earlier round failed."""

    results: list[Result] = field(default_factory=list)
    unsaved: list[str] = field(default_factory=list)
    interrupted: bool = False
    waiting: int = 0
    lost_repeats: int = 0

    @property
    def counts(self) -> str:
        """How many cells ended how: ``7 ok, 1 oom``."""
        counts = Counter(result.ending for result in self.results)
        return ", ".join(f"{count} {outcome}" for outcome, count in counts.items()) or "none finished"

    @property
    def is_broken(self) -> bool:
        """Whether a cell, or a repeat of one, failed, or a result could not be stored."""
        failed = any(result.outcome is Outcome.FAILED for result in self.results)
        return failed or bool(self.unsaved or self.lost_repeats)


def sweep(
    steps: Sequence[Step], store: Store, *, budget: float | None = None, timeout: float | None = None,
    disk_dir: Path | None = None, calibration: Mapping[str, Any] | None = None, monitor: Monitor | None = None,
    learned: Callable[[Step, Sequence[Result]], Step] = lambda step, results: step,
    finished: Callable[[Result], Result] = lambda result: result,
) -> Summary:  # fmt: skip
    """Runs ``steps`` in order. ``budget`` and ``timeout`` (of one cell) in seconds.

    ``calibration``: the machine's rates, which travel with every new result. ``learned``: a step as it is expected
    after the results of this sweep so far. ``finished``: what is stored of a new result. Cells that are predicted not
    to fit what is left of the budget come last and get what is left then, if it holds one step; where nothing fits, the
    shortest is tried: it may be faster. One bad cell never ends a sweep; a KeyboardInterrupt ends it with what is done.
    A result that the disk refuses is told when its cell ends, and saved at the end of the sweep if it can be then.
    """
    machine, done, refused = fingerprint_without_torch().machine, dict[int, Result](), list[Result]()
    monitor, summary, end = monitor or Monitor(), Summary(), None if budget is None else time.monotonic() + budget
    for index, step, left, over in _in_order(steps, end, lambda step: learned(step, list(done.values()))):
        try:
            monitor.begin(step)
            result = (
                _left_out(step, over) if over else perform(
                    step, left, timeout, disk_dir, calibration, monitor.tick, store.draft(step.spec, machine)
                )
            )  # fmt: skip
            ran_out = budget is not None and step.action == "run" and result.outcome is Outcome.SKIPPED
            done[index], shown = _kept(step, result, store, finished, refused, says_nothing=ran_out)
            monitor.end(step, shown)
        except KeyboardInterrupt:
            summary.interrupted = True
            break
    summary.unsaved = [reason for result in refused if (reason := _saved(result, store))]
    summary.results = [done[index] for index in sorted(done)]
    return summary


def sweep_in_turns(
    steps: Sequence[Step], store: Store, *, free_bytes: int | None, timeout: float | None = None,
    disk_dir: Path | None = None, calibration: Mapping[str, Any] | None = None, monitor: Monitor | None = None,
    finished: Callable[[Result], Result] = lambda result: result,
) -> Summary:  # fmt: skip
    """Runs ``steps`` side by side, as many at a time as ``free_bytes`` of host memory hold, in turns whose order the
    seed of the round, its number and that of the group make. The rest as :func:`sweep`."""
    monitor, summary, done, refused = monitor or Monitor(), Summary(), dict[int, Result](), list[Result]()
    for number, group in enumerate(_groups(steps, free_bytes)):
        now = steps[group[0]].round
        order = random.Random(f"{now.seed} {now.number} {number}" if now else number)
        try:
            for index in group:
                monitor.begin(steps[index])
            together = [index for index in group if steps[index].action == "run"]
            results = run_together(
                [steps[index].spec for index in together], order=order, timeout=timeout, disk_dir=disk_dir,
                while_waiting=monitor.tick,
            ) if together else [perform(steps[index], None, timeout, None, None) for index in group]  # fmt: skip
            _settle(results)
            for index, result in zip(group, results, strict=True):
                with_rates = _with_rates(result, calibration) if together else result
                done[index], shown = _kept(steps[index], with_rates, store, finished, refused)
                monitor.end(steps[index], shown)
        except KeyboardInterrupt:
            summary.interrupted = True
            break
    summary.unsaved = [reason for result in refused if (reason := _saved(result, store))]
    summary.results = [done[index] for index in sorted(done)]
    return summary


def _groups(steps: Sequence[Step], free_bytes: int | None) -> list[list[int]]:
    """The places of ``steps`` that run at the same time: each that does not run alone, the others in as few groups,
    in order, as ``free_bytes`` of host memory allow; a cell that fits alone is never left out."""
    groups, used = [[index] for index, step in enumerate(steps) if step.action != "run"], 0
    room, open_group = None if free_bytes is None else free_bytes - HOST_RESERVE, list[int]()
    for index, step in enumerate(steps):
        if step.action != "run":
            continue
        guess = step.estimate
        need = PROCESS_BYTES + (0 if guess is None else guess.device_bytes + guess.host_bytes)
        if open_group and room is not None and used + need > room:
            groups, open_group, used = [*groups, open_group], [], 0
        open_group, used = [*open_group, index], used + need
    return [*groups, open_group] if open_group else groups


def _kept(
    step: Step, result: Result, store: Store, finished: Callable[[Result], Result], refused: list[Result],
    says_nothing: bool = False,
) -> tuple[Result, Result]:  # fmt: skip
    """Returns the ``result`` of ``step`` as it is kept, and as it is shown. It is stored unless it ``says_nothing``
    about the machine, as that a budget left a cell out: one that the store refuses goes to ``refused`` and says so."""
    result = result if result is step.earlier else finished(replace(result, round=step.round))
    if says_nothing or not is_news(step, result) or not (reason := _saved(result, store)):
        return result, result
    refused.append(result)
    return result, replace(result, warnings=[*result.warnings, f"not saved yet, tried again at the end: {reason}"])


def _saved(result: Result, store: Store) -> str:
    """Stores ``result``; why it could not be, or "" if it was."""
    try:
        store.save(result)
    except StoreError as error:
        return error.strerror or str(error)
    return ""


def _in_order(
    steps: Sequence[Step], end: float | None, now: Callable[[Step], Step]
) -> Iterator[tuple[int, Step, float | None, str]]:
    """(place, step, seconds that it may take, why it is left out or "") of each step, in the order of their turns.

    ``end``: of the budget, by ``time.monotonic()``. None of a step's seconds: as many as it wants. ``now``: a step as
    it is expected when its turn comes.
    """
    if end is None:
        yield from ((index, now(step), None, "") for index, step in enumerate(steps))
        return
    late, hopeless = [], time.monotonic() < end
    for index, step in ((index, now(step)) for index, step in enumerate(steps)):
        if step.action == "run" and step.estimate is not None and step.estimate.seconds > end - time.monotonic():
            late.append((index, step))
        else:
            hopeless = hopeless and step.action == "skip"
            yield index, step, end - time.monotonic(), ""
    if hopeless:
        late.sort(key=lambda item: _worth(item[1]))
    for index, step in ((index, now(step)) for index, step in late):
        assert step.estimate is not None
        left = end - time.monotonic()
        over = "" if hopeless or _worth(step) <= left else over_budget(step, left)
        hopeless = False
        yield index, step, left, over


def _worth(step: Step) -> float:
    """The seconds from which on a part of the cell is worth its time: more steps than are known of it already."""
    assert step.estimate is not None
    count = len(step.earlier.measured_seconds) if step.earlier is not None and step.earlier.partial else 0
    return step.estimate.least_seconds + count * step.estimate.step_seconds


def _left_out(step: Step, why: str) -> Result:
    """The result of a step that the budget leaves out: what an earlier, smaller budget has kept of it, if anything."""
    kept = step.earlier
    return kept if kept is not None and kept.partial else failed(step.spec, Outcome.SKIPPED, why)


def is_news(step: Step, result: Result) -> bool:
    """Whether ``result`` is to be stored: not one that was kept, nor, in place of an earlier one, one that was
    skipped or was cut off with no more steps."""
    earlier = step.earlier
    if step.action == "keep":
        return False
    if earlier is None:
        return True
    shorter = earlier.outcome is Outcome.OK and len(result.measured_seconds) <= len(earlier.measured_seconds)
    return not (result is earlier or result.outcome is Outcome.SKIPPED or (result.partial and shorter))


def perform(
    step: Step, left: float | None, timeout: float | None, disk_dir: Path | None, calibration: Mapping[str, Any] | None,
    tick: Callable[[], None] = lambda: None, journal: Path | None = None,
) -> Result:  # fmt: skip
    """The kept, skipped or measured result of ``step``. ``left``: seconds of budget. ``journal``: of fine-tuning."""
    if step.action == "keep":
        assert step.earlier is not None
        return step.earlier
    if step.action == "skip":
        return failed(step.spec, Outcome.SKIPPED, step.reason)
    last = None if left is None else left + GRACE
    bound = min((limit for limit in (last, timeout) if limit is not None), default=None)
    written = None if step.estimate is None else step.estimate.consolidation
    result = run_in_process(
        step.spec, timeout=bound, disk_dir=disk_dir, while_waiting=tick, enough=left, written=written, journal=journal
    )  # fmt: skip
    _settle([result])
    if result.outcome is Outcome.TIMEOUT and left is not None and bound == last:
        # skipped, so that the same sweep with a larger budget runs it
        why = f"was stopped after {duration(left)}, when the budget was used up"
        result = failed(step.spec, Outcome.SKIPPED, why)
    return _with_rates(result, calibration)


def _settle(results: Sequence[Result]) -> None:
    """Waits where a signal has ended a cell's process: if that was the end of the job, this one is interrupted here."""
    if any(result.outcome is Outcome.FAILED and "ended by SIG" in result.reason for result in results):
        time.sleep(SETTLE_SECONDS)


def _with_rates(result: Result, calibration: Mapping[str, Any] | None) -> Result:
    """The result with the machine's rates, where these are known."""
    return result if calibration is None else result.with_facts(calibration=dict(calibration))


def over_budget(step: Step, left: float) -> str:
    """The reason why a cell was skipped whose estimate exceeds the budget's ``left`` seconds."""
    assert step.estimate is not None
    return (
        f"needs {duration(_worth(step))} of the budget, {duration(max(0, left))} are left "
        f"(need predicted: {duration(step.estimate.step_seconds)} a step, from {step.estimate.source})"
    )
