"""A real sweep of a small protocol: stopped within and between its stages, it goes on where it stopped."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support import contest as support
from tests.support.small_task import data_dir as data_dir
from tests.support.small_task import weights_path as weights_path
from zobench.cli.contest import Second
from zobench.execute import sweep
from zobench.execute.plan import Plan
from zobench.finetune import examine
from zobench.programs.cell import run as measured
from zobench.result import Result
from zobench.runspec import RunSpec
from zobench.store import Store

PROTOCOL = """
title = "Two methods"
tables = ["mine"]
[protocol]
forwards = 12
points = 2
tuning_seed = 9
seeds = [0, 1]
evaluations = 2
[base]
model = "opt-tiny"
weights = "pretrained"
task = "sst2"
seq_len = 16
batch_size = 4
train_size = 24
dev_size = 12
test_size = 16
warmup = 0
lr = 1e-3
"""
TABLE = """
kind = "protocol"
title = "Two methods"
runner = "mine"
baseline = "ZO-SGD"
target = 0.55
"""
Command = Callable[..., tuple[int, str, str]]


class Machine:
    """Runs a sweep's cells in this process; stops the sweep, as a user does, before the cell number ``stop``."""

    def __init__(self) -> None:
        self.ran: list[RunSpec] = []
        self.tested: list[RunSpec] = []
        self.stop = -1

    def __call__(self, spec: RunSpec, **_: Any) -> Result:
        if len(self.ran) == self.stop:
            self.stop = -1
            raise KeyboardInterrupt
        self.ran.append(spec)
        return measured(spec)


@pytest.fixture
def machine_of_cells(
    here: Path, data_dir: Path, weights_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Machine:  # fmt: skip
    own, running = examine.evaluate, Machine()

    def evaluate(engine: Any, data: Any, split: str, *rest: Any) -> Any:
        running.tested.append(data.spec)
        assert split == "test"
        return own(engine, data, split, *rest)

    own_weights = f"[on.cpu.base]\nweights_path = '{weights_path}'\n"
    support.write(here, PROTOCOL + support.ZO_SGD + support.FO_SGD + own_weights, TABLE)
    monkeypatch.setenv("ZOBENCH_DATA_DIR", str(data_dir))
    monkeypatch.setattr(sweep, "run_in_process", running)
    monkeypatch.setattr(examine, "evaluate", evaluate)
    return running


def test_a_protocol_tunes_then_runs_its_winners_and_goes_on_wherever_it_was_stopped(
    here: Path, machine_of_cells: Machine, zobench: Command, machine: str
) -> None:
    running, command = machine_of_cells, ("sweep", "mine", "--device", "cpu")
    code, out, _ = zobench(*command, "--dry-run")
    assert (code, running.ran) == (0, [])
    assert "4 of 4 cells to run: about " in out
    assert (
        "Then the best point of each method with 2 seeds, and the test set (2 not chosen yet: their first point" in out
    )

    running.stop = 3  # one tuning run is left: only FO-SGD's grid is not whole
    assert zobench(*command)[0] == 130
    assert [(spec.method, spec.seed, spec.test_size) for spec in running.ran] == [
        ("zo-sgd", 9, 0), ("fo-sgd", 9, 0), ("zo-sgd", 9, 0),
    ]  # fmt: skip
    assert running.tested == []
    out = zobench(*command, "--dry-run")[1]
    assert "1 of 4 cells to run" in out
    assert "(1 not chosen yet: their first point stands in)" in out

    running.stop = 4  # between the stages
    code, out, _ = zobench(*command)
    assert (code, len(running.ran), running.tested) == (130, 4, [])
    assert "2 of 2 points tuned" in out

    running.stop = 6
    assert zobench(*command)[0] == 130
    assert [(spec.method, spec.seed) for spec in running.ran[4:]] == [
        ("zo-sgd", 0),
        ("fo-sgd", 0),
    ]  # in rounds of seeds

    code, out, err = zobench(*command)
    assert code == 0
    assert [(spec.method, spec.seed) for spec in running.ran[6:]] == [("zo-sgd", 1), ("fo-sgd", 1)]
    assert len({spec.hash for spec in running.ran}) == 8  # nothing ran twice
    assert [spec.hash for spec in running.tested] == [spec.hash for spec in running.ran[4:]]  # each winner's run, once
    results = {one.spec.hash: one for one in Store(here / "results").load(machine)}
    assert len(results) == 8
    for final in running.ran[4:]:
        grid = [one for one in results.values() if (one.spec.method, one.spec.seed) == (final.method, 9)]
        best = min(grid, key=lambda one: one.rank_on_dev)
        assert (final.lr, final.steps) == (best.spec.lr, best.spec.steps)
        assert ("test" in results[final.hash].evaluation, final.test_size) == (True, 16)
        assert all("test" not in one.evaluation for one in grid)
    assert "Two methods: accuracy" in out
    assert "Less ZO-SGD (points)" in out
    assert "wait" not in err
    before = len(running.ran)
    assert zobench(*command)[0] == 0
    assert len(running.ran) == before  # all is done


def test_the_budget_holds_for_both_stages(here: Path, machine_of_cells: Machine, zobench: Command) -> None:
    code, _, err = zobench("sweep", "mine", "--device", "cpu", "--budget", "0.001s")
    assert len(machine_of_cells.ran) == 1  # where nothing fits the first is tried
    assert "7 cells wait for more time; to go on: zobench sweep mine --device cpu" in err
    code, _, err = zobench("sweep", "mine", "--device", "cpu", "--budget", "1h")
    assert (code, len(machine_of_cells.ran)) == (0, 8)
    assert "wait for more time" not in err


def test_a_method_that_learns_nothing_keeps_no_sweep_waiting(tmp_path: Path) -> None:
    found = support.contest(support.write(tmp_path))
    good, *bad = found.tuning.values()
    tuned = [support.result(spec, dev=[0.5, 0.7]) for spec in good]
    diverged = [support.result(spec, dev=[0.5, 0.5], loss=None) for specs in bad for spec in specs]
    shown: list[str] = []
    second = Second(
        contest=found, known=dict, plan=lambda specs: Plan(steps=[], rates={}),
        show=lambda title, *_: shown.append(title), run=lambda *_: sweep.Summary(),
    )  # fmt: skip
    cases = (tuned + diverged, True, 0), (tuned + diverged[2:], True, 3), (diverged, False, 3)
    for results, begun, waiting in cases:
        known = len(shown)
        assert second.follow(sweep.Summary(list(results)), None, 0.0)[1:] == ([], waiting)
        assert len(shown) - known == begun
    assert second.follow(sweep.Summary([*tuned, *diverged], interrupted=True), None, 0.0)[2] == 3  # the winner's
    Second.foresee(dataclasses.replace(second, known=lambda: {one.spec.hash: one for one in [*tuned, *diverged]}))
    assert shown[-1] == "Then the best point of each method with 3 seeds, and the test set"


def test_a_protocol_is_submitted_nowhere(here: Path, machine_of_cells: Machine, zobench: Command) -> None:
    for executor in ("slurm", "local"):
        code, _, err = zobench("sweep", "mine", "--device", "cpu", "--executor", executor)
        assert code == 2
        assert err.strip() == (
            "zobench: the protocol mine.toml must run with --executor here, because its winners are known only when "
            f"its grids have run, but got --executor {executor}; leave it out"
        )
    code, _, err = zobench("sweep", "mine", "--device", "cpu", "--set", "steps=3")
    assert (code, err.strip().splitlines()[-1]) == (
        2, "zobench: mine.toml: `steps` must be left to a protocol, but is given; the budget in [protocol] decides it"
    )  # fmt: skip
