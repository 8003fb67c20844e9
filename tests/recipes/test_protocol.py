"""Protocols: what a budget buys, grids of one size, which point wins, and what is refused in one line."""

import itertools
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.contest import FO_SGD, PROTOCOL, contest, only, result, tuned, write
from tests.support.rates import RATES
from zobench import models
from zobench.cost import budget, local
from zobench.recipes import matrix
from zobench.report import power
from zobench.result import Outcome
from zobench.runspec import METHODS, RunSpec


def load(folder: Path, text: str = PROTOCOL, **changes: Any) -> Any:
    return contest(write(folder, text), changes)


def test_equal_forwards_buy_each_method_the_steps_that_they_pay_for(tmp_path: Path) -> None:
    contest = load(tmp_path)
    steps = {header: {spec.steps for spec in specs} for header, specs in contest.tuning.items()}
    assert steps == {"ZO-SGD": {60}, "Four queries": {15}, "FO-SGD": {40}}  # 2, 8, and a forward and a backward: 1 + 2
    assert {spec.eval_every for spec in contest.tuning["Four queries"]} == {4}  # after 4, 8, 12 and 15
    assert [spec.lr for spec in contest.tuning["ZO-SGD"]] == [1e-3, 3e-3]
    assert [spec.lr for spec in contest.tuning["FO-SGD"]] == [1e-2, 1e-1]
    assert [(spec.seed, spec.test_size) for spec in contest.cells] == [(9, 0)] * 6 + [(10, 0)] * 6
    assert [spec.queries for spec in contest.cells] == [1, 4, 1] * 4  # a point of every method after the other


def test_evaluations_are_paid_for_by_the_budget(tmp_path: Path) -> None:
    """Five evaluations of dev_size / batch_size = 2 forwards, each with the start's."""
    text = PROTOCOL.replace("warmup = 0", "warmup = 0\nbatch_size = 2")
    assert {spec.steps for spec in load(tmp_path, text).tuning["ZO-SGD"]} == {(140 - 5 * 2) // 2}
    shots = PROTOCOL.replace("warmup = 0", "warmup = 0\nshots = 3")  # dev has three of both classes
    assert {spec.steps for spec in load(tmp_path, shots).tuning["ZO-SGD"]} == {(140 - 5 * 6) // 2}
    (tmp_path / "rows.jsonl").write_text("".join(f'{{"text": "row {n}", "label": {n % 2}}}\n' for n in range(9)))
    ask = '[prompt]\ntemplate = "{text}"\n[labels]\ncolumn = "label"\nwords = { 0 = "no", 1 = "yes" }\n'
    (tmp_path / "few.toml").write_text('[data]\npath = "rows.jsonl"\nsplit = { seed = 0, dev = 3, test = 2 }\n' + ask)
    few = load(tmp_path, PROTOCOL.replace('"sst2"', f'"{tmp_path}/few.toml"'))  # its dev has 3 rows, not 4
    assert {spec.steps for spec in few.tuning["ZO-SGD"]} == {(140 - 5 * 3) // 2}
    assert "with 3 seeds, 2 test examples and 2 methods against one, power" in power.of_contest(few, [])
    (tmp_path / "few.toml").write_text('[data]\ntrain = "rows.jsonl"\ntest = "rows.jsonl"\n' + ask)
    few = load(tmp_path, PROTOCOL.replace(FO_SGD, "").replace('"sst2"', f'"{tmp_path}/few.toml"'))
    assert {spec.steps for spec in few.tuning["ZO-SGD"]} == {(140 - 5 * 1) // 2}  # dev is a fifth of 9 rows
    assert "9 test examples and 1 method against one" in power.of_contest(few, [])


def test_budgets_in_seconds_and_in_weights_moved(tmp_path: Path) -> None:
    text = PROTOCOL.replace("forwards = 140", "gigabytes = 0.2")
    for specs in load(tmp_path, text).tuning.values():
        for spec in specs:
            moved = budget.moved_bytes(spec)
            evaluated = 5 * 4 * moved / budget.forwards(spec)
            assert spec.steps * moved <= 0.2e9 - evaluated < (spec.steps + 1) * moved
    path = write(tmp_path, PROTOCOL.replace("forwards = 140", "seconds = 1.5"))
    cells = matrix.load(path, "cpu", price=lambda unit, spec: budget.price(unit, spec, lambda: RATES)).cells
    for spec in cells:
        step = local.predict(spec, RATES).step_seconds
        assert spec.steps * step <= 1.5 - 5 * 4 * step / budget.forwards(spec) < (spec.steps + 1) * step
    with pytest.raises(ValueError, match=r"^mine\.toml: a budget in seconds needs this machine's rates, but none are "):
        contest(path)


def test_the_bytes_that_a_step_moves_are_those_of_its_transfers_or_of_its_passes() -> None:
    resident = RunSpec(model="opt-tiny", seq_len=16).resolve("cpu")
    weights = 4 * models.parameter_count(*models.variant(resident))
    assert budget.moved_bytes(resident) == (2 + 2 * 4) * weights  # two forwards; z moves the weights four times
    assert budget.moved_bytes(resident.replace(method="adamezo")) == (2 + 2 * 4) * weights  # ten draws are one update
    assert budget.moved_bytes(resident.replace(batch_size=2, accumulate=2)) == (2 * 2 + 2 * 7) * weights  # one update
    adam = resident.replace(method="fo-adam")
    assert budget.moved_bytes(adam) == (3 + 2 * (1 + 2)) * weights  # and the update, with two moments
    streamed = resident.replace(engine="offload", tier="disk")
    blocks = 4 * models.blocks_parameter_count(models.of(resident), models.of(resident).layers)
    assert budget.moved_bytes(streamed) == 2 * blocks  # each block up and down once
    assert budget.moved_bytes(streamed.replace(noise="counter", writeback_every=4)) == 1.25 * blocks


def test_the_winner_has_the_least_mean_loss_on_dev_and_waits_for_its_whole_grid(tmp_path: Path) -> None:
    contest = load(tmp_path, PROTOCOL.replace("extra = 2", "extra = 0"))
    small, large = contest.tuning["ZO-SGD"]

    def of(*losses: float | None, dev: float = 0.7, last: Outcome = Outcome.OK) -> Any:
        """The winner, of the losses of small and large with the first seed and then with the second."""
        runs = [point.replace(seed=seed) for seed in (9, 10) for point in (small, large)]
        made = [result(run, dev=[0.5, 0.7], loss=loss) for run, loss in zip(runs, losses, strict=False)]
        if len(losses) == 4:
            made[3] = result(runs[3], dev=[0.5, dev], loss=losses[3], outcome=last)
        known = {made_run.spec.hash: made_run for made_run in made}
        search = contest.search("ZO-SGD", known)
        return search.best, not search.waiting, contest.finals(known)

    assert of(0.4, 0.6, 0.4) == (None, False, ())
    assert of(0.4, 0.6, 0.4, 0.6) == (small, True, tuple(small.replace(seed=i, test_size=1000) for i in (0, 1, 2)))
    assert of(0.4, 0.5, 0.6, 0.4)[0] == large  # by the mean over seeds
    assert of(0.5, 0.5, 0.5, 0.5, dev=0.8)[0] == large  # of equal losses the higher score
    assert of(0.5, 0.5, 0.5, 0.5)[0] == small  # a tie: the first
    assert of(0.5, 0.1, 0.5, None)[0] == small  # it diverged with one seed
    assert of(None, None, None, None) == (None, True, ())
    for outcome, waits in {
        Outcome.SKIPPED: True, Outcome.FAILED: False, Outcome.CONTAMINATED: False, Outcome.OOM: False,
        Outcome.TIMEOUT: False,
    }.items():  # fmt: skip
        assert of(0.4, 0.6, 0.4, 0.6, last=outcome)[1] != waits


def test_a_grid_whose_best_point_is_an_end_grows_until_it_is_interior_or_its_points_are_used_up(tmp_path: Path) -> None:
    text = PROTOCOL.replace('lr = ["x1", "x3"]', 'lr = ["x0.3", "x1", "x3", "x10"]', 1).replace(
        "points = 2", "points = 4"
    )
    text = text.replace('lr = ["x1", "x3"]', 'lr = ["x1", "x2", "x4", "x8"]').replace(
        'method = "fo-sgd"\nlr = ["x10", "x100"]', 'method = "zo-sgd-mmt"\nlr = [1e-2, 1e-1]\nmomentum = [0.5, 0.75]'
    )
    contest = load(tmp_path, text)

    def tried(header: str, loss: Any) -> tuple[list[tuple[float, float]], Any, bool]:
        known = {run.spec.hash: run for run in tuned(only(contest, [header]), loss)}
        state = contest.search(header, known)
        return [(run.lr, run.momentum) for run in state.points[4:]], state.best, bool(state.beyond)

    assert [tried("ZO-SGD", lambda spec: abs(spec.lr - 1e-3))[i] for i in (0, 2)] == [[], False]  # interior already
    up = tried("ZO-SGD", lambda spec: abs(spec.lr - 0.03))
    assert [lr for lr, _ in up[0]] == [0.03, 0.1]  # the grid's factors go on
    assert (up[1].lr, up[2]) == (0.03, False)  # a neighbour on either side is worse
    used = tried("ZO-SGD", lambda spec: -spec.lr)
    assert ([lr for lr, _ in used[0]], used[2]) == ([0.03, 0.1], True)  # still an end: an edge
    down = tried("ZO-SGD", lambda spec: spec.lr if spec.lr > 1e-4 else None)  # 1e-4 diverges
    assert ([lr for lr, _ in down[0]], down[1].lr, down[2]) == ([1e-4], 3e-4, False)
    both = tried("FO-SGD", lambda spec: abs(spec.lr - 0.1) + abs(spec.momentum - 0.75))
    # beside the best point alone, on each axis; momentum in what it leaves
    assert both[0] == [(1.0, 0.75), (0.1, 0.875)]
    assert (both[1].lr, both[1].momentum, both[2]) == (0.1, 0.75, False)


def test_a_best_point_whose_run_was_disturbed_has_neighbours_too(tmp_path: Path) -> None:
    contest = load(tmp_path, PROTOCOL)
    runs = tuned(only(contest, ["ZO-SGD"]), lambda spec: spec.lr)
    least = min(run.spec.lr for run in runs)
    runs = [replace(run, outcome=Outcome.CONTAMINATED if run.spec.lr == least else Outcome.OK) for run in runs]
    search = contest.search("ZO-SGD", {run.spec.hash: run for run in runs})
    assert search.best.lr == least > min(point.lr for point in search.beyond)


@pytest.mark.parametrize(
    ("method", "option", "values", "added", "is_edge"),
    [
        ("lozo-m", "beta", [0.9, 0.99], [0.999, 0.9999], True),  # below 1
        ("qes", "decay", [0.1, 0.5], [1.0], False),  # 1 may be reached, and nothing is beyond it
        ("zo-muon", "vectors", [0.1, 0.3], [0.9, 2.7], True),  # no upper end: 0.1, 0.3, 0.9, ...
    ],
)
def test_a_grid_over_an_option_goes_on_as_far_as_its_declared_range(
    tmp_path: Path, method: str, option: str, values: list[float], added: list[float], is_edge: bool
) -> None:
    needed = METHODS.get(method).changes(RunSpec(model="OPT-125M"))
    lines = [f"{key} = {json.dumps(value)}" for key, value in {"method": method, **needed}.items()]
    text = PROTOCOL.replace(
        'method = "fo-sgd"\nlr = ["x10", "x100"]', "\n".join([*lines, f"options.{option} = {values}"])
    )
    contest = load(tmp_path, text)
    results = {run.spec.hash: run for run in tuned(only(contest, ["FO-SGD"]), lambda spec: -spec.option(option))}
    state = contest.search("FO-SGD", results)
    assert [spec.option(option) for spec in state.points[2:]] == added
    assert (state.best.option(option), bool(state.beyond)) == (added[-1], is_edge)


def test_a_grid_that_begins_with_0_goes_on_beyond_its_other_end(tmp_path: Path) -> None:
    """Without a neighbour there, the largest value would pass for an interior best point."""
    contest = load(tmp_path, PROTOCOL.replace('lr = ["x10", "x100"]', "weight_decay = [0.0, 0.01]"))
    results = {run.spec.hash: run for run in tuned(only(contest, ["FO-SGD"]), lambda spec: -spec.weight_decay)}
    state = contest.search("FO-SGD", results)
    assert [spec.weight_decay for spec in state.points[2:]] == [0.02, 0.04]
    assert state.beyond


def test_runs_that_grids_may_still_add_are_counted_until_the_best_points_are_interior(tmp_path: Path) -> None:
    contest = load(tmp_path)
    assert len(contest.addable({})) == 3 * 2 * 2  # methods, extra points, tuning seeds
    interior = {run.spec.hash: run for run in tuned(only(contest, ["ZO-SGD"]), lambda spec: abs(spec.lr - 3e-3))}
    assert {spec.queries for spec in contest.addable(interior)} == {1, 4}
    assert len(contest.addable(interior)) == 2 * 2 * 2
    edges = {run.spec.hash: run for run in tuned(contest, lambda spec: -spec.lr)}
    assert contest.addable(edges) == ()  # all are used up


def test_a_neighbour_that_ran_out_of_memory_leaves_an_edge(tmp_path: Path) -> None:
    """It was not evaluated, so nobody knows whether it is worse; it is not run without end either."""
    contest = load(tmp_path)
    known = {run.spec.hash: run for run in tuned(only(contest, ["ZO-SGD"]), lambda spec: abs(spec.lr - 3e-3))}
    assert contest.search("ZO-SGD", known).beyond == ()
    beyond = contest.search("ZO-SGD", known).points[-1]
    lost = beyond.replace(seed=10)
    known[lost.hash] = result(lost, dev=[0.5, 0.7], loss=None, outcome=Outcome.OOM)
    state = contest.search("ZO-SGD", known)
    assert (state.waiting, state.best.lr, [run.lr for run in state.beyond]) == ((), 3e-3, [beyond.lr])


def test_a_part_has_values_that_only_its_own_methods_take(tmp_path: Path) -> None:
    path = write(tmp_path, PROTOCOL)

    def part(header: str) -> Any:
        changes = {"methods": [header], "base": {"attention": "fast"}}
        return matrix.load(path, "cpu", price=budget.price, part=changes).contest

    assert {spec.attention for spec in part("ZO-SGD").cells} == {"fast"}
    assert len(part("ZO-SGD").protocol.contenders) == 3
    with pytest.raises(ValueError, match="`attention=fast` needs "):  # kernels are timed without derivatives
        part("FO-SGD")
    with pytest.raises(ValueError, match="a protocol has no method 'ZO-SDG'; did you mean ZO-SGD"):
        part("ZO-SDG")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("points = 2", "points = 3",
         "every method must have 3 points in its grid, as [protocol] says, but ZO-SGD has 2; give all as many"),
        ("forwards = 140", "",
         "[protocol] must have one budget, but got none; give one of forwards, seconds, gigabytes"),
        ("forwards = 140", "forwards = 27",
         "a budget must buy a step, but 27 forwards buy none of Four queries, which costs 8 a step and 4 for each "
         "of 5 evaluations; raise it"),
        ("tuning_seeds = [9, 10]", "tuning_seeds = [9, 1]",
         "`tuning_seeds` must be none of seeds, but both have 1; write tuning_seeds = [3, 4]"),
        ("warmup = 0", "warmup = 0\nsteps = 5",
         "`steps` must be left to a protocol, but is given; the budget in [protocol] decides it"),
        ("queries = 4", "queries = 4\nseed = [1, 2]",
         "`seed` must not be in [[methods]], but is; tuning_seeds and seeds decides it"),
        ('header = "FO-SGD"', 'header = "ZO-SGD"',
         "[[methods]] must be two or more with headers that differ, but got "),
        ('task = "sst2"', 'task = "squad"',
         "a protocol needs a task that is judged by accuracy, but squad is judged by f1; choose another task"),
    ],
)  # fmt: skip
def test_a_mistake_in_a_protocol_is_one_line(old: str, new: str, message: str, tmp_path: Path) -> None:
    assert old in PROTOCOL
    with pytest.raises(ValueError, match=re.escape(f"mine.toml: {message}")) as caught:
        load(tmp_path, PROTOCOL.replace(old, new, 1))
    assert "\n" not in str(caught.value)


def test_the_shipped_protocol_compares_18_methods_with_five_seeds() -> None:
    shipped = contest(Path("runners/methods_2026.toml"))
    assert len(shipped.tuning) == 18
    assert (len(shipped.protocol.seeds), len(shipped.protocol.tuning_seeds)) == (5, 2)
    assert {spec.lr_schedule for spec in shipped.cells} == {"linear"}
    for specs in shipped.tuning.values():
        rates = sorted({spec.lr for spec in specs})
        assert all(2.9 < b / a < 3.5 for a, b in itertools.pairwise(rates))
        assert all(spec.steps == shipped.protocol.steps(spec, budget.price) for spec in specs)
