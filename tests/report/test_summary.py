"""The summary: how much of the papers was measured, the ratios, and the claims, counted by hand for small tables."""

from pathlib import Path

import pytest

from tests.support.tables import CLAIMS, MIB, PAPER, TINY, result, table_from
from zobench.recipes.reference import Reference
from zobench.report.render import grids
from zobench.report.sheet import Sheet
from zobench.report.summary import Filled, sheets
from zobench.report.table import Table
from zobench.result import Result

RESULTS = [
    result("M1", memory=200 * MIB, seconds=1.0),  # of 400 MB and 50 tokens/s
    result("M1", "offload", "fp16", memory=50 * MIB, seconds=2.0),  # of 100 MB and 80.5 tokens/s
    result("M2", "offload", "fp16", memory=600 * MIB),  # of 300 MB
]


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return table_from(tmp_path, TINY + CLAIMS)


def filled(table: Table, results: list[Result], paper: Reference = PAPER) -> list[Filled]:
    return [Filled(table=table, grids=tuple(grids(table, results, None, paper)))]


def lines(sheet: Sheet) -> dict[str, list[str]]:
    body = sheet.groups[0].body
    return {label.text: [entry.text for entry in row] for label, row in zip(sheet.rows, body, strict=True)}


def test_coverage_counts_what_was_measured_of_what_is_reported(table: Table) -> None:
    glance, coverage, ratios, claims = sheets(filled(table, RESULTS))
    assert list(lines(glance).values()) == [["5"], ["5"], ["0"], ["x0.5"], ["x1.31"], ["2"], ["0"], ["1"], ["0"]]
    assert glance.rows[0].text == "Values measured here, of the 6 that the papers' tables report"
    assert coverage.source == "measured on box (1x BOX)"
    assert lines(coverage) == {"p/t1": ["6", "5", "x0.5", "x1.31", "·", "·"]}
    assert coverage.remarks[0] == "5 of the 6 values that the papers' tables report were measured here."
    assert lines(ratios) == {
        "gpu_memory": ["3", "x0.5", "x0.5", "x0.5", "x1.25", "x2"],
        "throughput": ["2", "x0.621", "x0.966", "x1.31", "x1.66", "x2"],
    }
    assert lines(claims)["p/t1: B needs at most half"] == [
        "B / A at most 0.5", "holds: 0.25 in 1 of 2", "holds so far: 0.25 in 1 of 2",
    ]  # fmt: skip
    assert (
        lines(claims)["p/t1: B is as fast in M1"][2]
        == "not shown: 0.5; not shown by: 0.5 (no interval: too few processes or steps) in M1"
    )
    assert lines(claims)["p/t1: M2 needs more than M1"][2] == "holds: 12"
    assert claims.source == "measured on box: 2 hold, 0 do not hold, 1 not shown, 0 not measured"


def test_machines_are_never_mixed(table: Table) -> None:
    other = [result("M1", memory=800 * MIB, machine="other")]
    summary = sheets(filled(table, [*RESULTS, *other]))
    assert [line[1] for line in lines(summary[0]).values()] == ["2", "2", "0", "x2", "x2", "0", "0", "0", "3"]
    by_source = {sheet.source: lines(sheet) for sheet in summary if sheet.title == "Tables of the papers"}
    assert by_source["measured on box (1x BOX)"]["p/t1"][1] == "5"
    assert by_source["measured on other (1x OTHER)"]["p/t1"][1:4] == ["2", "x2", "x2"]
    assert [column.text for column in summary[-1].groups[0].columns][2:] == ["Measured on box", "Measured on other"]
