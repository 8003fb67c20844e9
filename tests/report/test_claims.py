"""Claims: the ratio they are about, in the rows they are about, and a verdict that follows from the bounds alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.report.test_table import MIB, PAPER, TINY, result, table_from
from zobench.report import claims
from zobench.report.render import grids
from zobench.report.table import Claim, Table

CLAIMS = """
[[claims]]
text = "B needs at most half"
metric = "gpu_memory"
ratio = ["B", "A"]
at_most = 0.5
[[claims]]
text = "B is as fast in M1"
metric = "throughput"
ratio = ["B", "A"]
at_least = 0.9
rows = ["M1"]
[[claims]]
text = "M2 needs more than M1"
metric = "gpu_memory"
ratio = ["M2", "M1"]
at_least = 1.0
columns = ["B"]
"""


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return table_from(tmp_path, TINY + CLAIMS)


def verdicts(found: list[claims.Verdict]) -> list[tuple[str, tuple[tuple[str, float], ...]]]:
    return [(verdict.verdict, verdict.ratios) for verdict in found]


def test_the_papers_own_values_are_held_against_its_words(table: Table) -> None:
    grid = grids(table, [], None, PAPER)[0][1]
    assert verdicts(claims.reported(table, grid)) == [
        (claims.HOLDS, (("M1", 0.25),)),  # M2 ran out of memory under A
        (claims.HOLDS, (("M1", 80.5 / 50),)),
        (claims.HOLDS, (("B", 3.0),)),
    ]
    assert verdicts(claims.measured(table, grid)) == [(claims.OPEN, ())] * 3


def test_what_was_measured_is_held_against_the_same_bounds(table: Table) -> None:
    results = [
        result("M1", memory=100 * MIB, seconds=1.0),
        result("M1", "offload", "fp16", memory=50 * MIB, seconds=1.2),
        result("M2", memory=100 * MIB),
        result("M2", "offload", "fp16", memory=51 * MIB),
    ]
    grid = grids(table, results, "box", PAPER)[0][1]
    assert verdicts(claims.measured(table, grid)) == [
        (claims.FAILS, (("M1", 0.5), ("M2", 0.51))),
        (claims.FAILS, (("M1", (100 / 1.2) / 100),)),
        (claims.HOLDS, (("B", 1.02),)),
    ]
    told = [verdict.told for verdict in claims.measured(table, grid)]
    assert told[0] == "0.5 to 0.51 in 2 of 2; out of bounds: 0.51 in M2"
    assert told[1:] == ["0.833", "1.02"]
    assert claims.bounds(table.claims[0]) == "B / A at most 0.5"


def test_extra_rows_are_measured_but_are_not_the_papers_own(table: Table) -> None:
    results = [result("M0", memory=4 * MIB), result("M0", "offload", "fp16", memory=1 * MIB)]
    grid = grids(table, results, "box", PAPER)[0][1]
    assert claims.measured(table, grid)[0].ratios == (("M0", 0.25),)
    assert [header for header, _ in claims.reported(table, grid)[0].ratios] == ["M1"]


@given(value=st.floats(0.01, 100), low=st.none() | st.floats(0.01, 100), high=st.none() | st.floats(0.01, 100))
def test_the_bounds_are_inclusive_and_one_value_outside_breaks_the_claim(
    value: float, low: float | None, high: float | None
) -> None:
    claim = Claim(text="t", metric="gpu_memory", ratio=("a", "b"), at_least=low, at_most=high, only=())
    inside = not (low is not None and value < low) and not (high is not None and value > high)
    assert claims.within(claim, value) is inside


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('ratio = ["B", "A"]', 'ratio = ["C", "A"]', "a claim needs headers of this table, but got 'C'; "),
        ('ratio = ["B", "A"]', 'ratio = ["B"]', "`ratio` of a claim must be two headers, but got ['B']"),
        ('rows = ["M1"]', 'rows = ["M9"]', "a claim needs headers of this table, but got 'M9'; use one of M0, M1, M2"),
        (
            "at_most = 0.5",
            "",
            "a claim must have a bound, but 'B needs at most half' has none; add at_least",
        ),
        ("at_most = 0.5", 'at_most = "0.5"', "`at_most` in [[claims]] must be of type number, but got '0.5'"),
        (
            'metric = "throughput"\nratio',
            'metric = "step_time"\nratio',
            "a claim needs a metric of this table, but got",
        ),
    ],
)
def test_a_mistake_in_a_claim_is_one_line(tmp_path: Path, old: str, new: str, message: str) -> None:
    text = TINY + CLAIMS
    assert old in text
    with pytest.raises(ValueError, match=r"tiny\.toml: ") as caught:
        table_from(tmp_path, text.replace(old, new, 1))
    assert message in str(caught.value)
