"""Claims: the ratio they are about, in the rows they are about, and a verdict that follows from the bounds alone."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.papers import MEASURED, REFERENCE
from tests.support.tables import CLAIMS, MIB, PAPER, TINY, result, table_from, tuned
from zobench.recipes.reference import Reference
from zobench.report import claims
from zobench.report.cells import fill
from zobench.report.render import grids
from zobench.report.table import Claim, Table
from zobench.result import Result, Round
from zobench.result.repeats import folded
from zobench.stats.intervals import wilson_interval


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return table_from(tmp_path, TINY + CLAIMS)


def verdicts(checked: list[claims.CheckedClaim]) -> list[tuple[str, list[tuple[str, float]]]]:
    return [(verdict.verdict, [(ratio.header, ratio.value) for ratio in verdict.ratios]) for verdict in checked]


def steady(model: str, engine: str, seconds: float, *, memory: int = 100 * MIB, rounds: int = 3) -> Result:
    """A process a round, whose steps differ by 0.1 %; resident ones become slower by rounds, others faster."""
    dtype, drift = ("fp32", 0.001) if engine == "resident" else ("fp16", -0.001)
    spread = [1 + 0.001 * (i % 5 - 2) / 2 for i in range(20)]
    (repeated,) = folded(
        dataclasses.replace(
            result(model, engine, dtype, memory=memory),
            samples={"step_seconds": [seconds * (1 + drift * n) * share for share in spread]},
            round=Round(number=n, began=float(n), place=0, cells=2, seed=0),
        )
        for n in range(rounds)
    )
    return repeated


def test_the_papers_own_values_are_held_against_its_words(table: Table) -> None:
    grid = grids(table, [], None, PAPER)[0][1]
    assert verdicts(claims.checked(table, grid, claims.reported)) == [
        (claims.HOLDS, [("M1", 0.25)]),  # M2 ran out of memory under A
        (claims.HOLDS, [("M1", 80.5 / 50)]),
        (claims.HOLDS, [("B", 3.0)]),
    ]
    assert verdicts(claims.checked(table, grid, claims.measured)) == [(claims.OPEN, [])] * 3


def test_what_was_measured_is_held_against_the_same_bounds(table: Table) -> None:
    results = [
        steady("M1", "resident", 1.0),
        steady("M1", "offload", 1.2, memory=50 * MIB),
        steady("M2", "resident", 1.0),
        steady("M2", "offload", 1.0, memory=51 * MIB),
    ]
    checked = claims.checked(table, grids(table, results, "box", PAPER)[0][1], claims.measured)
    assert [verdict.verdict for verdict in checked] == [claims.FAILS, claims.FAILS, claims.HOLDS]
    assert [ratio.value for ratio in checked[0].ratios] == pytest.approx([0.5, 0.51])
    assert checked[0].evidence == "0.5 to 0.51 in 2 of 2; not within: 0.51 in M2"
    slower = checked[1].ratios[0]
    assert slower.low < slower.value < slower.high < 0.9
    assert slower.value == pytest.approx(1 / 1.2, rel=0.01)
    assert checked[2].evidence == "1.02"
    assert claims.bounds(table.claims[0]) == "B / A at most 0.5"


@pytest.mark.parametrize(
    ("seconds", "rounds", "verdict"),
    [
        (1.05, 3, claims.HOLDS),  # 0.952 of the throughput, and surely
        (1.2, 3, claims.FAILS),
        (1.111, 3, claims.UNSHOWN),  # 0.9001, with an interval on both sides of 0.9
        (1.2, 1, claims.UNSHOWN),  # the next process may be slower or faster
    ],
)
def test_a_ratio_of_times_counts_only_with_its_interval(table, seconds, rounds, verdict) -> None:
    results = [steady("M1", engine, took, rounds=rounds) for engine, took in (("resident", 1.0), ("offload", seconds))]
    checked = claims.checked(table, grids(table, results, "box", PAPER)[0][1], claims.measured)[1]
    assert checked.verdict == verdict
    if rounds == 1:
        assert "no interval: too few processes or steps" in checked.evidence


def test_a_ratio_from_rounds_is_of_their_pairs_as_its_interval_is(table: Table) -> None:
    """The medians of all processes, 5.5 s and 2.2 s, are of other rounds."""
    speeds = {"resident": [1.0, 2.0, 9.0, 10.0], "offload": [1.1, 2.2, 9.9]}
    first, other = (
        folded(
            dataclasses.replace(
                steady("M1", engine, seconds, rounds=1), round=Round(number=n, began=float(n), place=0, cells=2, seed=0)
            )
            for n, seconds in enumerate(times)
        )[0]
        for engine, times in speeds.items()
    )
    (ratio,) = claims.checked(table, grids(table, [first, other], "box", PAPER)[0][1], claims.measured)[1].ratios
    assert (ratio.low, ratio.value, ratio.high) == pytest.approx((1 / 1.1,) * 3)


@pytest.mark.parametrize(
    ("accuracies", "verdict"),
    [
        ((0.95, 0.80), claims.HOLDS),  # of 872 examples: 1.19, surely above 1.001
        ((0.91, 0.90), claims.UNSHOWN),  # 1.011, but from 872 examples
        ((0.80, 0.95), claims.FAILS),
    ],
)
def test_a_ratio_of_accuracies_counts_only_with_the_interval_of_so_many_examples(accuracies, verdict) -> None:
    table = MEASURED["zo-bench/table3"]
    adam, sgd = accuracies
    common: dict[str, Any] = {"model": "Vicuna-7B", "task": "copa", "scheme": "lora"}
    runs = [
        tuned(adam, method="zo-adam", **common),
        tuned(sgd, method="fo-sgd", dtype="fp32", autocast="fp16", steps=625, **common),
    ]
    checked = claims.checked(table, fill(table, runs, REFERENCE), claims.measured)[0]
    assert checked.verdict == verdict
    (ratio,) = checked.ratios
    (low, high), (least, most) = (wilson_interval(share, 872) for share in accuracies)
    assert (ratio.value, ratio.low, ratio.high) == (adam / sgd, low / most, high / least)
    assert not claims.inside(dataclasses.replace(checked.claim, at_least=ratio.value, at_most=ratio.value + 1), ratio)


@pytest.mark.parametrize(("offloaded", "verdict"), [(0.8, claims.HOLDS), (0.801, claims.FAILS)])
def test_that_two_accuracies_are_the_same_is_judged_without_an_interval(offloaded: float, verdict: str) -> None:
    table = MEASURED["zo2/table2"]
    runs = [tuned(0.8, model="OPT-13B"), tuned(offloaded, model="OPT-13B", engine="offload")]
    checked = claims.checked(table, fill(table, runs, REFERENCE), claims.measured)[0]
    assert (checked.verdict, [ratio.header for ratio in checked.ratios]) == (verdict, ["SST-2"])


def test_rows_that_are_not_the_papers_say_nothing_of_its_claims(table: Table) -> None:
    results = [steady("M0", "resident", 1.0), steady("M0", "offload", 1.0, memory=1 * MIB)]
    grid = grids(table, results, "box", PAPER)[0][1]
    assert [verdict.verdict for verdict in claims.checked(table, grid, claims.measured)] == [claims.OPEN] * 3
    other = Reference((*PAPER.rows, *({**row, "paper": "old", "model": "M0", "value": "1"} for row in PAPER.rows[:4])))
    grid = grids(table, results, "box", other)[0][1]
    assert [ratio.header for ratio in claims.checked(table, grid, claims.reported)[0].ratios] == ["M1"]


@given(
    value=st.floats(0.01, 100),
    spread=st.floats(1, 2),
    low=st.none() | st.floats(0.01, 100),
    high=st.none() | st.floats(0.01, 100),
)
def test_bounds_are_inclusive_and_nothing_is_inside_and_outside(value, spread, low, high) -> None:
    claim = Claim(text="t", metric="gpu_memory", ratio=("a", "b"), at_least=low, at_most=high)
    ratio = claims.ClaimRatio(header="r", value=value, low=value / spread, high=value * spread)
    within = [x for x in (ratio.low, ratio.high) if (low is None or x >= low) and (high is None or x <= high)]
    assert claims.inside(claim, ratio) is (len(within) == 2)
    assert not (claims.inside(claim, ratio) and claims.outside(claim, ratio))
    if claims.outside(claim, ratio):
        assert not within
