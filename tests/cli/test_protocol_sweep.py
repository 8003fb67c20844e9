"""A real sweep of a small protocol: stopped within and between its stages, it goes on where it stopped."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support import contest as support
from tests.support.files import written
from tests.support.small_task import data_dir as data_dir
from tests.support.small_task import weights_path as weights_path
from tests.support.watched import before
from zobench.execute import sweep
from zobench.execute.plan import Plan
from zobench.programs.cell import run as measured
from zobench.result import Result
from zobench.result.examples import unpacked
from zobench.runspec import RunSpec, order
from zobench.session.closing import closing
from zobench.session.matrices import Stages
from zobench.store import Store
from zobench.training import examine

PROTOCOL = """
title = "Two methods"
tables = ["mine"]
[protocol]
forwards = 21
points = 2
extra = 1
tuning_seeds = [9, 10]
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
    """Runs a sweep's cells by ``measure``; stops the sweep, as a user does, before the cell number ``stop``."""

    def __init__(self, measure: Callable[[RunSpec, Path | None], Result]) -> None:
        self.measure = measure
        self.ran: list[RunSpec] = []
        self.stop = -1

    def __call__(self, spec: RunSpec, journal: Path | None = None, **_: Any) -> Result:
        if len(self.ran) == self.stop:
            self.stop = -1
            raise KeyboardInterrupt
        self.ran.append(spec)
        return self.measure(spec, journal)


def in_this_process(spec: RunSpec, journal: Path | None) -> Result:
    """The cell's own result."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(order, "_current", order.Order(spec=spec, journal=str(journal)))
        return measured(spec)


@pytest.fixture
def machine_of_cells(
    cwd: Path, data_dir: Path, weights_path: Path, machine: str, monkeypatch: pytest.MonkeyPatch
) -> Machine:  # fmt: skip
    """A protocol of two methods, and stand-ins for its cells."""
    own_weights = f"[on.cpu.base]\nweights_path = '{weights_path}'\n"
    support.write(cwd, PROTOCOL + support.ZO_SGD + support.FO_SGD + own_weights, TABLE)
    monkeypatch.setenv("ZOBENCH_DATA_DIR", str(data_dir))

    def stand_in(spec: RunSpec, journal: Path | None) -> Result:
        test = 0.7 if spec.test_size else None
        return support.result(spec, dev=[0.5, 0.6, 0.65], loss=spec.lr, test=test, machine=machine)

    monkeypatch.setattr(sweep, "run_in_process", running := Machine(stand_in))
    return running


def methods_and_seeds(specs: Sequence[RunSpec]) -> list[tuple[str, int]]:
    return [(spec.method, spec.seed) for spec in specs]


def check_winner(final: RunSpec, results: dict[str, Result]) -> None:
    """Raises unless the run has the learning rate with the least loss on dev over both seeds, and alone saw test."""
    tuning = [result for result in results.values() if (result.spec.method, result.spec.test_size) == (final.method, 0)]
    losses: dict[float, float] = {}
    for result in tuning:
        losses[result.spec.lr] = losses.get(result.spec.lr, 0.0) + result.rank_on_dev[0]
    assert (len(tuning), len(losses)) == (6, 3)
    assert final.lr == min(losses, key=losses.__getitem__)
    evaluation = results[final.hash].evaluation
    assert unpacked(evaluation).right.mean() == evaluation["test"]["accuracy"]
    assert all("test" not in result.evaluation for result in tuning)


@pytest.mark.slow
def test_a_protocol_tunes_then_runs_its_winners_and_goes_on_wherever_it_was_stopped(
    cwd: Path, machine_of_cells: Machine, zobench: Command, machine: str, data_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    tested: list[RunSpec] = []

    def note(engine: Any, data: Any, split: str, *_: Any) -> None:
        tested.append(data.spec)
        assert split == "test"

    before(monkeypatch.setattr, examine, "evaluate", note)
    running, command = machine_of_cells, ("sweep", "mine", "--device", "cpu")
    running.measure = in_this_process
    running.stop = 3  # five tuning runs are left
    assert zobench(*command)[0] == 130
    assert methods_and_seeds(running.ran) == [("zo-sgd", 9), ("fo-sgd", 9), ("zo-sgd", 9)]
    assert "5 of 8 cells to run" in zobench(*command, "--dry-run")[1]
    running.stop = 8  # between the stages
    code, out, _ = zobench(*command)
    assert (code, len(running.ran), tested) == (130, 8, [])
    assert "2 of at most 3 points tuned" in out
    running.stop = 14
    assert zobench(*command)[0] == 130
    added, finals = running.ran[8:12], running.ran[12:]  # of two points the best is always an end
    assert methods_and_seeds(added) == [("zo-sgd", 9), ("zo-sgd", 10), ("fo-sgd", 9), ("fo-sgd", 10)]
    assert methods_and_seeds(finals) == [("zo-sgd", 0), ("fo-sgd", 0)]  # rounds of seeds
    code, out, err = zobench(*command)
    assert (code, "wait" in err) == (0, False)
    assert "Two methods: accuracy" in out
    assert "Less ZO-SGD (points)" in out
    finals = running.ran[12:]
    assert methods_and_seeds(finals[2:]) == [("zo-sgd", 1), ("fo-sgd", 1)]
    assert [spec.hash for spec in tested] == [spec.hash for spec in finals]  # each winner's run, once
    store = Store(cwd / "results")
    results = {result.spec.hash: result for result in store.load(machine)}
    assert len({spec.hash for spec in running.ran}) == len(running.ran) == len(results) == 16  # nothing ran twice
    for final in finals:
        check_winner(final, results)
    paths = [store.path(final, machine) for final in finals if final.method == "zo-sgd"]  # FO-SGD's has no gradients
    assert sorted(store.root.rglob("*.journal")) == sorted(path.with_suffix(".journal") for path in paths)
    for path in paths:
        code, shown, _ = zobench("verify", str(path), "--data-dir", str(data_dir))
        assert (code, f"verified: {path}" in shown) == (0, True)
    assert (zobench(*command)[0], len(running.ran)) == (0, 16)  # all is done


def test_a_protocol_is_planned_before_anything_runs(cwd: Path, machine_of_cells: Machine, zobench: Command) -> None:
    code, out, _ = zobench("sweep", "mine", "--device", "cpu", "--dry-run")
    assert (code, machine_of_cells.ran) == (0, [])
    assert "8 of 8 cells to run: about " in out
    assert "(at most 1 each, not in this plan), and each method's best point with 2 seeds, scored on the" in out
    assert "This protocol can show " in out


def test_the_budget_holds_for_all_stages(cwd: Path, machine_of_cells: Machine, zobench: Command) -> None:
    code, _, err = zobench("sweep", "mine", "--device", "cpu", "--budget", "0.001s")
    assert len(machine_of_cells.ran) == 1  # where nothing fits the shortest is tried
    assert "11 cells wait for more time; to go on: zobench sweep mine --device cpu" in err
    assert "no step was measured; to go on, with a longer --budget: x" in closing(2, "results", "x", is_empty=True)[-1]
    code, _, err = zobench("sweep", "mine", "--device", "cpu", "--budget", "1h")
    assert (code, len(machine_of_cells.ran)) == (0, 16)
    assert "wait for more time" not in err


def test_a_part_of_a_campaign_is_some_methods_of_a_protocol_through_all_stages(
    cwd: Path, machine_of_cells: Machine, zobench: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = 'title = "Mine"\ndevice = "cpu"\ntimeout = "10m"\nrepeats = 1\n'
    parts = [
        f'[[parts]]\nname = "{name}"\nmatrix = "mine"\nreason = "why"\nmethods = ["{method}"]\n'
        for name, method in (("first", "ZO-SGD"), ("second", "FO-SGD"))
    ]
    written(cwd / "campaigns" / "c.toml", head + "".join(parts))
    running, command = machine_of_cells, ("campaign", "c", "--busy")
    code, out, _ = zobench(*command, "--plan")
    assert code == 0
    assert [line.split()[:6] for line in out.splitlines()[2:4]] == [
        [name, "6", "1", "0", "of", "6"] for name in ("first", "second")
    ]  # two points with two seeds, and the best with two
    assert out.count("opt-tiny, sst2: This protocol can show ") == 1
    assert " at most, if every grid grows as far as its protocol lets it" in out
    running.stop = 5
    assert zobench(*command, "--part", "first")[0] == 130
    assert {spec.method for spec in running.ran} == {"zo-sgd"}
    assert zobench(*command)[0] == 0
    assert [spec.method for spec in running.ran] == ["zo-sgd"] * 8 + ["fo-sgd"] * 8
    assert len({spec.hash for spec in running.ran}) == 16
    (cwd / "campaigns" / "c.toml").write_text(head.replace("repeats = 1", "repeats = 2") + parts[0])
    message = (
        "part first: a protocol runs once, as its seeds repeat it, but another part has its runs, or `repeats` is "
    )
    assert message in zobench("campaign", "c", "--plan")[2]


def test_a_method_that_learns_nothing_keeps_no_sweep_waiting(tmp_path: Path) -> None:
    contest = support.contest(support.write(tmp_path))
    header, *bad = contest.tuning
    tuned = support.tuned(support.only(contest, [header]), lambda spec: abs(spec.lr - 3e-3))
    diverged = support.tuned(support.only(contest, bad), lambda spec: None)
    shown: list[str] = []
    stages = Stages(
        contest=contest, results=dict, plan=lambda specs: Plan(steps=[], rates={}),
        show=lambda title, *_: shown.append(title), run=lambda *_: sweep.Summary(),
    )  # fmt: skip
    cases = (tuned + diverged, True, 0), (tuned + diverged[1:], True, 3), (diverged, False, 3)
    for results, begun, waiting in cases:
        known = len(shown)
        assert stages.follow(sweep.Summary(list(results)), None, 0.0)[1:] == ([], waiting)
        assert len(shown) - known == begun
    assert stages.follow(sweep.Summary([*tuned, *diverged], interrupted=True), None, 0.0)[2] == 3  # the winner's
    dataclasses.replace(stages, results=lambda: {result.spec.hash: result for result in [*tuned, *diverged]}).foresee()
    assert shown[-1].endswith("each method's best point with 3 seeds, scored on the test set")


def test_a_protocol_is_submitted_nowhere(cwd: Path, machine_of_cells: Machine, zobench: Command) -> None:
    code, _, err = zobench("sweep", "mine", "--device", "cpu", "--executor", "local")
    assert code == 2
    assert err.startswith("zobench: the protocol mine.toml must run with --executor here, because its winners are ")
