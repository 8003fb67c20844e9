"""Sweeps: one bad cell never ends one, a budget is kept, and what is finished is stored whatever happens then."""

import dataclasses
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.rates import CALIBRATION, RATES, estimate
from tests.support.submissions import MACHINE, cell
from tests.support.submissions import ended as result
from tests.support.watched import before
from zobench import cost
from zobench.cost.interval import Consolidation
from zobench.execute import sweep as module
from zobench.execute.monitor import Monitor
from zobench.execute.plan import Plan, Step
from zobench.execute.sweep import Summary, sweep
from zobench.result import Facts, Outcome, Result
from zobench.runspec import RunSpec
from zobench.store import Store, files

Behaviour = Callable[[RunSpec], Result]


def step(
    seed: int = 0, action: str = "run", reason: str = "", seconds: float = 10, earlier: Result | None = None,
    least: float | None = None,
) -> Step:  # fmt: skip
    guess = estimate(seconds, least_seconds=seconds if least is None else least)
    return Step(spec=cell(seed), action=action, reason=reason, estimate=guess, earlier=earlier)


def took(spec: RunSpec, steps: int, partial: bool = True) -> Result:
    return dataclasses.replace(result(spec), samples={"step_seconds": [1.0] * steps}, partial=partial)


class Runner:
    """Stands in for the process of a cell; ``behaviours``: by seed, what a cell does instead of being ok."""

    def __init__(self, **behaviours: Behaviour) -> None:
        self.behaviours = {int(name.removeprefix("cell")): behaviour for name, behaviour in behaviours.items()}
        self.ran: list[int] = []
        self.timeouts: list[float | None] = []
        self.enough: list[float | None] = []
        self.written: list[Consolidation | None] = []

    def __call__(
        self, spec: RunSpec, *, timeout: float | None, while_waiting: Any, enough: float | None,
        written: Consolidation | None, **_: Any,
    ) -> Result:  # fmt: skip
        self.ran.append(spec.seed)
        self.timeouts.append(timeout)
        self.enough.append(enough)
        self.written.append(written)
        while_waiting()
        return self.behaviours.get(spec.seed, result)(spec)


@pytest.fixture
def results(tmp_path: Path) -> Store:
    return Store(tmp_path / "results")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, results: Store) -> Callable[..., tuple[Summary, Runner]]:
    """Runs a sweep of fake cells on a clock that stands still unless a cell moves it."""
    monkeypatch.setattr("zobench.measure.environment.fingerprint_without_torch", lambda: Facts(machine=MACHINE))

    def run(steps: list[Step], runner: Runner | None = None, **options: Any) -> tuple[Summary, Runner]:
        runner = runner or Runner()
        monkeypatch.setattr(module, "run_in_process", runner)
        return sweep(steps, results, **options), runner

    return run


def outcomes(summary: Summary) -> list[str]:
    return [str(result.outcome) for result in summary.results]


def test_every_cell_is_stored_as_soon_as_it_is_done(run: Any, results: Store) -> None:
    seen: list[int] = []

    def look(spec: RunSpec) -> Result:
        seen.append(len(results.load()))
        return result(spec)

    summary, _ = run([step(n) for n in range(3)], Runner(cell0=look, cell1=look, cell2=look))
    assert seen == [0, 1, 2]
    assert outcomes(summary) == ["ok"] * 3
    assert (summary.unsaved, summary.interrupted) == ([], False)


def test_kept_and_skipped_cells_do_not_run_and_the_others_keep_the_machines_rates(run: Any, results: Store) -> None:
    kept = result(cell(0))
    steps = [step(0, "keep", "done", earlier=kept), step(1, "skip", "needs 9 GB of disk space"), step(2)]
    summary, runner = run(steps, calibration={"copy_bytes_per_second": 1.0})
    assert (runner.ran, outcomes(summary)) == ([2], ["ok", "skipped", "ok"])
    assert summary.results[0] is kept
    assert results.find(cell(0), MACHINE) is None
    assert results.find(cell(1), MACHINE).reason == "needs 9 GB of disk space"
    rates = [shown.environment.calibration for shown in summary.results]
    assert rates == [None, None, {"copy_bytes_per_second": 1.0}]
    stored = results.find(cell(2), MACHINE)
    assert stored.environment == Facts(machine=MACHINE, calibration={"copy_bytes_per_second": 1.0})


def test_a_cell_is_told_when_to_write_its_pending_updates(run: Any) -> None:
    planned, consolidation = step(0), Consolidation(32, "why")
    assert planned.estimate is not None
    timed_step = dataclasses.replace(
        planned, estimate=dataclasses.replace(planned.estimate, consolidation=consolidation)
    )
    _, runner = run([timed_step, step(1)])
    assert runner.written == [consolidation, None]


def test_the_budget_counts_what_cells_took_not_what_was_predicted(run, results, monkeypatch) -> None:
    now = 100.0
    monkeypatch.setattr(module.time, "monotonic", lambda: now)

    def slow(spec: RunSpec) -> Result:
        nonlocal now
        now += 55
        return result(spec)

    summary, runner = run([step(0), step(1), step(2, seconds=4)], Runner(cell0=slow), budget=60.0)
    assert runner.ran == [0, 2]
    assert summary.results[1].reason.partition(" (")[0].endswith("5 s are left")
    assert runner.timeouts == [60 + module.GRACE, 5 + module.GRACE]
    assert results.find(cell(1), MACHINE) is None  # a budget says nothing about the machine


def test_what_is_left_of_the_budget_goes_to_cells_that_can_end_early(run, results, monkeypatch) -> None:
    """They come after those that fit, told how long they may take, and keep what they took."""
    monkeypatch.setattr(module.time, "monotonic", lambda: 100.0)
    partial: Behaviour = lambda spec: took(spec, 2)  # noqa: E731
    steps = [step(0, seconds=300, least=50), step(1, seconds=20), step(2, seconds=300, least=90)]
    summary, runner = run(steps, Runner(cell0=partial), budget=60.0)
    assert (runner.ran, runner.enough) == ([1, 0], [60, 60])
    assert outcomes(summary) == ["ok", "ok", "skipped"]
    stored = results.find(cell(0), MACHINE)
    assert stored.partial
    _, runner = run(
        [step(0, seconds=300, least=50, earlier=stored), step(1, "keep", earlier=result(cell(1)))], budget=60.0
    )
    assert runner.ran == []  # the same budget would give the same part, one of two steps of 60 s more
    summary, runner = run([step(0, seconds=300, least=50, earlier=stored)], budget=600.0)
    assert runner.ran == [0]
    assert not summary.results[0].partial


def test_a_part_is_replaced_by_a_longer_one_only(run: Any, results: Store) -> None:
    """A budget that holds more steps than are known runs the cell again; what it then took less of does not count."""
    known = took(cell(0), 2)
    results.save(known)
    for steps, budget, kept in ((1, 200.0, 2), (3, 200.0, 3), (20, 5000.0, 20)):
        again: Behaviour = lambda spec, n=steps: took(spec, n, n < 20)  # type: ignore[misc]  # noqa: E731
        run([step(0, seconds=300, least=50, earlier=known)], Runner(cell0=again), budget=budget)
        stored = results.find(cell(0), MACHINE)
        assert (len(stored.measured_seconds), stored.partial) == (kept, kept < 20)
    whole = stored
    run([step(0, seconds=300, least=50, earlier=whole)], Runner(cell0=lambda spec: took(spec, 3)), budget=200.0)
    assert results.find(cell(0), MACHINE) == whole


def test_where_nothing_fits_the_shortest_is_tried(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A prediction made on a busy machine can be far too long; the budget ends what it was right about."""
    monkeypatch.setattr(module.time, "monotonic", lambda: 100.0)
    late: Behaviour = lambda spec: result(spec, Outcome.TIMEOUT, "the cell took longer than 60 s")  # noqa: E731
    summary, runner = run([step(0, seconds=7200), step(1, seconds=3600)], Runner(cell1=late), budget=60.0)
    assert runner.ran == [1]
    assert [shown.reason.partition(" (")[0] for shown in summary.results] == [
        "needs 2.0 h of the budget, 60 s are left", "was stopped after 60 s, when the budget was used up",
    ]  # fmt: skip


def test_a_cell_may_take_the_shorter_of_its_own_limit_and_of_what_is_left(run: Any) -> None:
    assert run([step()], timeout=30.0)[1].timeouts == [30]
    assert run([step()], timeout=30.0, budget=1000.0)[1].timeouts == [30]
    assert run([step()])[1].timeouts == [None]


def test_what_was_found_out_before_is_not_replaced_by_skipped(run: Any, results: Store) -> None:
    earlier = result(cell(0), Outcome.CONTAMINATED, "another process used the GPU")
    results.save(earlier)
    kept = step(2, "keep", "done", earlier=result(cell(2)))
    summary, _ = run([step(0, seconds=300, earlier=earlier), step(1, "skip", "no room"), kept], budget=60.0)
    assert outcomes(summary) == ["skipped", "skipped", "ok"]
    assert results.find(cell(0), MACHINE) == earlier


@pytest.mark.parametrize(("method", "stored"), [("begin", 1), ("end", 2), ("", 1)])
def test_an_interrupt_between_two_cells_is_the_same(run, results, method, stored, monkeypatch) -> None:
    """Or just after SIGTERM, which all processes of a job get, has ended the cell's: that it failed is not stored."""

    def stop(*given: Any) -> None:
        if not method or given[1].spec.seed == 1:
            raise KeyboardInterrupt

    def ended(spec: RunSpec) -> Result:
        return result(spec, Outcome.FAILED, "the cell's process was ended by SIGTERM")

    runner = Runner() if method else Runner(cell1=ended)
    monkeypatch.setattr(module.time, "sleep", stop)
    summary, _ = run([step(n) for n in range(3)], runner, monitor=type("Stopping", (Monitor,), {method: stop})())
    assert summary.interrupted
    assert len(results.load()) == len(summary.results) == stored
    if not method:  # and of cells in turns
        monkeypatch.setattr(module, "run_together", lambda specs, **_: [ended(spec) for spec in specs])
        summary = module.sweep_in_turns([step(5), step(6)], results, free_bytes=None)
        assert (summary.interrupted, len(results.load())) == (True, stored)


def test_a_result_that_a_full_disk_refuses_is_told_at_once_and_saved_when_there_is_room(
    run, results, monkeypatch
) -> None:
    warnings: dict[int, list[str]] = {}

    def refuse(path: Path, data: bytes) -> None:
        if len(warnings) < 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    before(monkeypatch.setattr, files, "replace", refuse)

    class Listener(Monitor):
        def end(self, step: Step, result: Result) -> None:
            warnings[step.spec.seed] = list(result.warnings)

    summary, _ = run([step(n) for n in range(3)], monitor=Listener())
    path = results.path(cell(1), MACHINE)
    reason = f"a result must be writable, but got 'No space left on device' for {path}; free some space there"
    assert warnings[1] == [f"not saved yet, tried again at the end: {reason}"]
    assert (warnings[2], summary.unsaved) == ([], [])
    assert sorted((run.spec.seed, list(run.warnings)) for run in results.load()) == [(0, []), (1, []), (2, [])]


def test_a_done_cell_corrects_the_estimates_of_those_that_wait(run: Any, results: Store) -> None:
    """The first is measured a million times slower than planned, so the second no longer fits the budget."""
    first, second = (dataclasses.replace(step(seed), estimate=cost.estimate(cell(seed), RATES)) for seed in (0, 1))
    slow: Behaviour = lambda spec: dataclasses.replace(  # noqa: E731
        result(spec), samples={"step_seconds": [1e6 * first.estimate.step_seconds]}
    )
    plan = Plan(steps=[], rates=CALIBRATION)
    budget = 10 * second.estimate.seconds
    summary, runner = run([first, second], Runner(cell0=slow), budget=budget, learned=plan.learned)
    assert (runner.ran, outcomes(summary)) == ([0], ["ok", "skipped"])
    assert "from an earlier run" in summary.results[1].reason
