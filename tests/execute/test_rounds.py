"""Repeats: rounds in a stored order, each run a file, kept over interruptions, and ended when the medians are known."""

import dataclasses
import json
import math
import random
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.rates import RATES
from tests.support.submissions import MACHINE, cell
from tests.support.submissions import ended as result
from zobench.execute import plan, rounds
from zobench.execute import sweep as module
from zobench.execute.plan import Plan, Step
from zobench.execute.sweep import Summary, sweep
from zobench.result import Facts, Outcome, Result, Round
from zobench.result.repeats import folded, number_of, pairs
from zobench.runspec import RunSpec
from zobench.store import Store, evidence
from zobench.store.measured import STEP_TIME, THROUGHPUT
from zobench.store.merge import merge

ROOM = plan.Limits(device_bytes=None, host_bytes=2**40, disk_bytes=2**40)
SEEDS = (0, 1, 2)


def timed(spec: RunSpec, seconds: float) -> Result:
    return dataclasses.replace(result(spec), samples={"step_seconds": [seconds] * 3})


class Machine:
    """Runs rounds of three cells into a store; ``behave`` is asked for the result of every run."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch, behave: Callable[[RunSpec, int], Result]) -> None:
        self.store, self.ran, self.orders = Store(root), list[int](), list[list[int]]()
        self._behave = behave
        monkeypatch.setattr("zobench.measure.environment.fingerprint_without_torch", lambda: Facts(machine=MACHINE))
        monkeypatch.setattr(module, "run_in_process", self._run)

    def _run(self, spec: RunSpec, **_: object) -> Result:
        self.ran.append(spec.seed)
        return self._behave(spec, len(self.ran) - 1)

    def _plan(self, cells: Sequence[RunSpec], number: int) -> Plan:
        steps = plan.make(cells, self.store, MACHINE, RATES, ROOM, ("failed",), number)
        return Plan(steps=steps, rates={})

    def _perform(self, planned: Plan, budget: float | None) -> Summary:
        self.orders.append([step.spec.seed for step in planned.steps])
        return sweep(planned.steps, self.store, budget=budget)

    def go(self, repeats: rounds.Repeats, budget: float | None = None) -> Summary:
        first = self._plan([cell(seed) for seed in SEEDS], 0)
        return rounds.run(first, repeats, self._plan, self._perform, budget)


def steady(spec: RunSpec, turn: int) -> Result:
    return timed(spec, 1.0 + spec.seed)


def test_every_round_holds_every_cell_in_an_order_that_the_stored_seed_makes(tmp_path, monkeypatch) -> None:
    machine = Machine(tmp_path, monkeypatch, steady)
    summary = machine.go(rounds.Repeats(count=4, seed=7))
    assert [sorted(order) for order in machine.orders] == [[0, 1, 2]] * 4
    for number, order in enumerate(machine.orders):
        again = list(SEEDS)
        random.Random(f"7 {number}").shuffle(again)
        assert order == again
    assert len(set(map(tuple, machine.orders))) > 1
    assert len(summary.results) == 3
    assert [len(result.runs) for result in summary.results] == [4] * 3
    assert [result.spec.seed for result in summary.results] == list(SEEDS)  # in the plan's order
    runs = machine.store.runs(MACHINE)
    assert sorted((run.spec.seed, number_of(run)) for run in runs) == [(s, n) for s in SEEDS for n in range(4)]
    for run in runs:
        assert machine.orders[run.round.number][run.round.place] == run.spec.seed
        assert (run.round.cells, run.round.seed) == (3, 7)
    assert len({run.round.began for run in runs if run.round}) == 4


def test_a_sweep_that_was_stopped_goes_on_and_pairs_only_what_ran_in_one_round(tmp_path, monkeypatch) -> None:
    def stopped(spec: RunSpec, turn: int) -> Result:
        if turn == 4:
            raise KeyboardInterrupt
        return steady(spec, turn)

    machine = Machine(tmp_path, monkeypatch, stopped)
    assert machine.go(rounds.Repeats(count=3, seed=1)).interrupted
    machine = Machine(tmp_path, monkeypatch, steady)
    summary = machine.go(rounds.Repeats(count=3, seed=2))
    assert len(machine.ran) == 9 - 4
    assert [len(result.runs) for result in summary.results] == [3] * 3
    counts = sorted(
        len(pairs(result, other)) for result, other in zip(summary.results, summary.results[1:], strict=False)
    )
    first = Machine(tmp_path, monkeypatch, steady)
    first.go(rounds.Repeats(count=3))
    assert first.ran == []
    assert counts[0] == 2  # of the round that was cut, the first run and the other two are no pairs


def test_a_plain_run_of_before_is_the_first_repeat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(tmp_path, monkeypatch, steady)
    once = [Step(spec=cell(seed), action="run", reason="", estimate=None) for seed in SEEDS]
    sweep(once, machine.store)
    before = {path.name: path.read_bytes() for path in machine.store.paths()}
    assert not any(b'"round"' in text for text in before.values())
    machine.go(rounds.Repeats(count=2))
    assert len(machine.ran) == 6
    names = {path.name for path in machine.store.paths()}
    assert names == {*before, *(name.replace(".json", "-r1.json") for name in before)}
    assert {path.name: path.read_bytes() for path in machine.store.paths() if path.name in before} == before


def test_only_cells_that_ended_well_are_repeated_and_a_bad_repeat_is_left_out(tmp_path, monkeypatch) -> None:
    def mixed(spec: RunSpec, turn: int) -> Result:
        if spec.seed == 1:
            return result(spec, Outcome.OOM, "no memory")
        if spec.seed == 2 and turn == 4:
            return result(spec, Outcome.CONTAMINATED, "somebody else")
        return result(spec, Outcome.FAILED, "a fault") if spec.seed == 0 and turn > 4 else steady(spec, turn)

    machine = Machine(tmp_path, monkeypatch, mixed)
    summary = machine.go(rounds.Repeats(count=3, seed=5))
    by_seed = {kept_run.spec.seed: kept_run for kept_run in summary.results}
    assert machine.ran.count(1) == 1
    assert by_seed[1].outcome is Outcome.OOM
    lost = [run.outcome for run in machine.store.runs() if run.spec.seed != 1 and not run.is_ok]
    assert sum(len(kept_run.runs) for kept_run in (by_seed[0], by_seed[2])) == 6 - len(lost)
    assert summary.lost_repeats == lost.count(Outcome.FAILED) > 0
    assert summary.is_broken


def test_rounds_end_when_the_medians_are_known_and_never_before_six(tmp_path, monkeypatch) -> None:
    def noisy(spec: RunSpec, turn: int) -> Result:
        return timed(spec, 1.0 + 0.03 * math.sin(2.4 * (turn // 3)) * (spec.seed == 1))

    machine = Machine(tmp_path / "steady", monkeypatch, steady)
    machine.go(rounds.Repeats(count=20, until=0.02))
    assert len(machine.orders) == 6
    machine = Machine(tmp_path / "noisy", monkeypatch, noisy)
    machine.go(rounds.Repeats(count=20, until=0.045))
    widest = next(result for result in machine.store.load() if result.spec.seed == 1)
    low, high = STEP_TIME.interval(widest) or (0, 0)
    assert 6 < len(machine.orders) < 20
    assert (high - low) / (widest.step_seconds or 0) <= 0.045


def test_no_round_begins_that_the_budget_would_not_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])

    def slow(spec: RunSpec, turn: int) -> Result:
        now[0] += 10
        return steady(spec, turn)

    machine = Machine(tmp_path, monkeypatch, slow)
    summary = machine.go(rounds.Repeats(count=9), budget=100)
    assert len(machine.ran) == 9  # 30 s each; the fourth would end at 120
    assert summary.waiting == 3


def test_a_ratio_is_of_pairs_so_what_slows_a_round_cancels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def drifting(spec: RunSpec, turn: int) -> Result:
        return timed(spec, (1.0 + spec.seed) * (1 + 0.05 * (turn // 3)))

    machine = Machine(tmp_path, monkeypatch, drifting)
    machine.go(rounds.Repeats(count=7))
    first, two, _ = sorted(machine.store.load(), key=lambda folded_result: folded_result.spec.seed)
    known = evidence.ratio(two, first, STEP_TIME)
    assert (known.value, known.pairs) == (pytest.approx(2.0), 7)
    assert known.interval == pytest.approx((2.0, 2.0))
    speed = evidence.ratio(two, first, THROUGHPUT)
    assert speed.value == pytest.approx(0.5)
    assert first.step_seconds == pytest.approx(statistics.median(1 + 0.05 * n for n in range(7)))
    low, high = STEP_TIME.interval(first) or (0, 0)
    assert low < 1.1 < 1.2 < high  # of the median alone, the drift is uncertainty
    remarks = evidence.remarks(first)
    assert remarks[0] == "the median of 7 processes"
    assert remarks[1].startswith("became 29.9 % ")
    assert "slower from the first round to the last" in remarks[1]


def test_files_of_repeats_are_read_back_merged_and_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(tmp_path / "a", monkeypatch, steady)
    machine.go(rounds.Repeats(count=2))
    done = merge([tmp_path / "a"], tmp_path / "b")
    assert (done.added, Store(tmp_path / "b").load()) == (6, machine.store.load())
    assert merge([tmp_path / "a"], tmp_path / "b").equal == 6
    path = next(path for path in machine.store.paths() if path.stem.endswith("-r1"))
    body = json.loads(path.read_text())
    for wrong in ({**body["round"], "place": 3}, {"number": 1}, 5):
        path.write_text(json.dumps({**body, "round": wrong}))
        assert machine.store.read(path) is None
        assert "`round` must hold began, cells, number, place, seed" in machine.store.problems[-1]


def test_folding_keeps_machines_apart_and_takes_folded_results() -> None:
    def at(number: int, machine: str = MACHINE) -> Result:
        when = Round(number=number, began=1.0, place=0, cells=1, seed=0)
        return dataclasses.replace(timed(cell(), 1.0 + number), round=when, environment=Facts(machine=machine))

    mine = folded([at(1), at(0)])
    assert [number_of(run) for run in mine[0].runs] == [0, 1]
    assert folded([*mine, at(2), at(0, "other")]) == [folded([at(0), at(1), at(2)])[0], at(0, "other")]
    assert mine[0].step_seconds == 1.5


def rounds_of(spec: RunSpec, seconds: Sequence[float], threads: Sequence[int | None], **changes: Any) -> Result:
    """A cell with a process in each round, of that median step and with so many threads."""
    return folded(
        dataclasses.replace(
            timed(spec, pair), environment=Facts(machine=MACHINE, threads=count),
            round=Round(number=number, began=number, place=0, cells=2, seed=0), **changes,
        )
        for number, (pair, count) in enumerate(zip(seconds, threads, strict=True))
    )[0]  # fmt: skip


def test_a_process_that_had_fewer_threads_than_its_partner_is_in_no_pair() -> None:
    whole = rounds_of(cell(0), [1.0] * 7, [2, 2, 2, 2, 2, 2, None])
    crowded = rounds_of(cell(1), [2.0, 2.0, 9.0, 2.0, 9.0, 2.0, 2.0], [2, 2, 1, 2, 1, 2, 2])
    known = evidence.ratio(crowded, whole, STEP_TIME)
    assert (known.pairs, known.value, known.interval) == (5, 2.0, (2.0, 2.0))
    ranks = rounds_of(cell(1).replace(gpus=2, parallel="pertp"), [2.0] * 7, [1] * 7)  # each has its share of the cores
    assert len(pairs(ranks, whole)) == 7
