"""Protocols: what a budget buys, grids of one size, which point wins, and what is refused in one line."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.contest import PROTOCOL, contest, result, write
from tests.support.rates import RATES
from zobench import models
from zobench.predict import budget, here
from zobench.recipes import matrix
from zobench.result import Outcome
from zobench.runspec import RunSpec


def load(folder: Path, text: str = PROTOCOL, **changes: Any) -> Any:
    return contest(write(folder, text), changes)


def test_equal_forwards_buy_each_method_the_steps_that_they_pay_for(tmp_path: Path) -> None:
    found = load(tmp_path)
    steps = {header: {spec.steps for spec in specs} for header, specs in found.tuning.items()}
    assert steps == {"ZO-SGD": {60}, "Four queries": {15}, "FO-SGD": {40}}  # 2, 8, and a forward and a backward: 1 + 2
    assert {spec.eval_every for spec in found.tuning["Four queries"]} == {4}  # after 4, 8, 12 and 15
    assert [spec.lr for spec in found.tuning["ZO-SGD"]] == [1e-3, 3e-3]
    assert [spec.lr for spec in found.tuning["FO-SGD"]] == [1e-2, 1e-1]
    assert {(spec.seed, spec.test_size) for spec in found.cells} == {(9, 0)}
    assert [spec.queries for spec in found.cells] == [1, 4, 1, 1, 4, 1]  # a point of every method after the other


def test_what_methods_have_in_common_can_be_changed_and_multiples_follow(tmp_path: Path) -> None:
    found = load(tmp_path, lr=1e-5, eps=1e-2)
    assert [spec.lr for spec in found.tuning["Four queries"]] == [1e-5, 3e-5]
    assert {spec.eps for spec in found.cells} == {1e-2}


def test_budgets_in_seconds_and_in_weights_moved(tmp_path: Path) -> None:
    text = PROTOCOL.replace("forwards = 120", "gigabytes = 0.2")
    for specs in load(tmp_path, text).tuning.values():
        for spec in specs:
            moved = budget.moved_bytes(spec)
            assert spec.steps * moved <= 0.2e9 < (spec.steps + 1) * moved
    path = write(tmp_path, PROTOCOL.replace("forwards = 120", "seconds = 1.5"))
    cells = matrix.load(path, "cpu", price=lambda unit, spec: budget.price(unit, spec, lambda: RATES)).cells
    for spec in cells:
        step = here.predict(spec, RATES).step_seconds
        assert spec.steps * step <= 1.5 < (spec.steps + 1) * step
    with pytest.raises(ValueError, match=r"^mine\.toml: a budget in seconds needs this machine's rates, but none are "):
        contest(path)


def test_the_bytes_that_a_step_moves_are_those_of_its_transfers_or_of_its_passes() -> None:
    resident = RunSpec(model="opt-tiny", seq_len=16).resolve("cpu")
    weights = 4 * models.parameter_count(*models.variant(resident))
    assert budget.moved_bytes(resident) == (2 + 2 * 4) * weights  # two forwards; z moves the weights four times
    adam = resident.replace(method="fo-adam")
    assert budget.moved_bytes(adam) == (3 + 2 * (1 + 2)) * weights  # and the update, with two moments
    streamed = resident.replace(engine="offload", tier="disk")
    blocks = 4 * models.blocks_parameter_count(models.of(resident), models.of(resident).layers)
    assert budget.moved_bytes(streamed) == 2 * blocks  # each block up and down once
    assert budget.moved_bytes(streamed.replace(noise="counter", writeback_every=4)) == 1.25 * blocks


def test_the_winner_has_the_least_loss_on_dev_and_waits_for_its_whole_grid(tmp_path: Path) -> None:
    found = load(tmp_path)
    (small, large), other = found.tuning["ZO-SGD"], found.tuning["FO-SGD"]

    def of(*results: Any) -> Any:
        known = {one.spec.hash: one for one in results}
        return found.winner("ZO-SGD", known), found.finals(known)

    good, bad = result(small, dev=[0.5, 0.7], loss=0.4), result(large, dev=[0.5, 0.8], loss=0.6)
    finals = tuple(small.replace(seed=seed, test_size=1000) for seed in (0, 1, 2))
    assert of(good) == (None, ())
    assert of(good, bad) == (small, finals)
    assert of(good, result(large, dev=[0.5, 0.8], loss=0.4)) == (
        large,
        of(good, result(large, dev=[0.5, 0.8], loss=0.4))[1],
    )
    assert of(good, result(large, dev=[0.5, 0.7], loss=0.4))[0] == small  # a tie: the first
    assert of(good, result(large, dev=[0.5, 0.9], loss=None))[0] == small  # it diverged
    diverged = [result(spec, dev=[0.5, 0.9], loss=None) for spec in (small, large)]
    assert of(*diverged) == (None, ())
    for results, tuned in ((diverged, True), (diverged[:1], False)):
        assert found.is_tuned("ZO-SGD", {one.spec.hash: one for one in results}) == tuned
    for outcome, waits in {
        Outcome.SKIPPED: True, Outcome.FAILED: True, Outcome.CONTAMINATED: True, Outcome.OOM: False,
        Outcome.TIMEOUT: False,
    }.items():  # fmt: skip
        ended = result(large, dev=[0.5], outcome=outcome, evaluation={})
        assert of(good, ended)[0] == (None if waits else small)
    first, second = (result(spec, dev=[0.5, 0.7], loss=loss) for spec, loss in zip(other, (0.6, 0.5), strict=True))
    seeds = [(spec.seed, spec.method) for spec in of(good, bad, first, second)[1]]
    assert seeds == [(seed, method) for seed in (0, 1, 2) for method in ("zo-sgd", "fo-sgd")]  # in rounds


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (
            "points = 2",
            "points = 3",
            "every method must have 3 points in its grid, as [protocol] says, but ZO-SGD has 2; give all as many",
        ),
        (
            "forwards = 120",
            "",
            "[protocol] must have one budget, but got none; give one of forwards, seconds, gigabytes",
        ),
        (
            "forwards = 120",
            "forwards = 120\nseconds = 3",
            "[protocol] must have one budget, but got forwards and seconds; give one of forwards, seconds, gigabytes",
        ),
        (
            "forwards = 120",
            "forwards = 7",
            "a budget must buy a step, but 7 forwards buy none of Four queries, which costs 8 a step; raise it",
        ),
        ("forwards = 120", "forwards = 0", "`forwards > 0` must hold in [protocol], but got 0; raise it"),
        ("points = 2", "", "`points` must be given in [protocol], but is missing; write points = 4 for grids of four"),
        ("points = 2", "points = 2\nround = 3", "unknown key 'round' in [protocol]; use "),
        (
            "tuning_seed = 9",
            "tuning_seed = 1",
            "`tuning_seed` must be none of seeds, but got 1; write tuning_seed = 100",
        ),
        (
            "seeds = [0, 1, 2]",
            "seeds = [1]",
            "`seeds` in [protocol] must be two or more that differ, but got [1]; write [0, 1, 2]",
        ),
        (
            "warmup = 0",
            "warmup = 0\nsteps = 5",
            "`steps` must be left to a protocol, but is given; the budget in [protocol] decides it",
        ),
        (
            "warmup = 0",
            "warmup = 0\ntest_size = 0",
            "`test_size >= 1` must hold in a protocol, but got test_size=0; its winners see the test set",
        ),
        ('task = "sst2"\n', "", "a protocol needs a task, but its runs have none; write task in [base]"),
        (
            "queries = 4",
            "queries = 4\nseed = [1, 2]",
            "`seed` must not be in [[methods]], but is; tuning_seed and seeds decides it",
        ),
        (
            'header = "FO-SGD"',
            'header = "ZO-SGD"',
            "[[methods]] must be two or more with headers that differ, but got ",
        ),
        ('header = "FO-SGD"\n', "", "`header` must be given in [[methods]], but is missing; write header = "),
        (
            'lr = ["x10", "x100"]',
            "lr = [1e-2, 1e-2]",
            "the points of all grids must differ, but two are the same run; ",
        ),
        ("lr = 1e-3", "", "`lr = 'x1'` needs a lr in [base] that it multiplies, but there is none"),
        ("[base]", '[axes]\nmethod = ["zo-sgd"]\n[base]', "unknown key 'axes' in the file; "),
    ],
)
def test_a_mistake_in_a_protocol_is_one_line(old: str, new: str, told: str, tmp_path: Path) -> None:
    assert old in PROTOCOL
    with pytest.raises(ValueError, match=re.escape(f"mine.toml: {told}")) as caught:
        load(tmp_path, PROTOCOL.replace(old, new, 1))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {"queries": 2},
            "`queries` must be as the protocol states it for Four queries, but is changed; leave it out, or ",
        ),
        (
            {"method": "zo-adam"},
            "`method` must be as the protocol states it for ZO-SGD, but is changed; leave it out, or ",
        ),
        (
            {"seed": 5},
            "`seed` must be left to a protocol, but is given; tuning_seed and seeds in [protocol] decides it",
        ),
    ],
)
def test_what_the_methods_state_cannot_be_changed(changes: Any, told: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=re.escape(f"mine.toml: {told}")):
        load(tmp_path, **changes)


def test_the_shipped_protocol_compares_at_least_ten_methods_with_three_seeds() -> None:
    found = contest(Path("runners/methods_2026.toml"))
    assert len(found.tuning) >= 10
    assert len(found.protocol.seeds) >= 3
    for specs in found.tuning.values():
        rates = [spec.lr for spec in specs]
        assert all(2.9 < b / a < 3.5 for a, b in itertools.pairwise(rates))
        assert all(spec.steps * budget.forwards(spec) <= found.protocol.amount for spec in specs)
        assert all((spec.steps + 1) * budget.forwards(spec) > found.protocol.amount for spec in specs)
