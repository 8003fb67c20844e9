"""The summary: how much of the papers was measured, the ratios, and the claims, counted by hand for small tables."""

import csv
import io
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.tables import CLAIMS, MIB, PAPER, TINY, result, table_from
from zobench.recipes.reference import Reference
from zobench.report import publish
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
        == "not shown: 0.5; not within: 0.5 (no interval: too few rounds or steps) in M1"
    )
    assert lines(claims)["p/t1: M2 needs more than M1"][2] == "holds: 12"
    assert claims.source == "measured on box: 2 hold, 0 do not hold, 1 not shown, 0 not measured"


def test_claims_are_counted_alike_at_a_glance_and_above_them_also_where_a_machine_measured_nothing_of_a_table(
    table: Table,
) -> None:
    other = replace(table, name="p/t2")
    both = [*filled(table, RESULTS), *filled(other, [])]
    glance, *_, claims = sheets(both)
    assert [line[0] for line in lines(glance).values()][5:] == ["2", "0", "1", "3"]
    assert claims.source == "measured on box: 2 hold, 0 do not hold, 1 not shown, 3 not measured"


def test_values_under_another_condition_are_counted_and_named(table: Table) -> None:
    bf16 = [result("M1", "offload", "bf16", memory=50 * MIB, device="cpu")]
    found = filled(table, bf16)
    assert [line[0] for line in lines(sheets(found)[0]).values()][:3] == ["2", "2", "2"]
    rows = list(csv.DictReader(io.StringIO(publish.comparison(found))))
    assert {row["deviations"] for row in rows} == {"Measured with dtype bf16; the paper has fp16."}


def test_without_results_there_is_one_coverage_and_every_claim_is_open(table: Table) -> None:
    glance, coverage, claims = sheets(filled(table, []))
    assert list(lines(glance).values()) == [["0"], ["0"], ["0"], ["·"], ["·"], ["0"], ["0"], ["0"], ["3"]]
    assert coverage.source == "nothing measured yet"
    assert lines(coverage) == {"p/t1": ["6", "0", "·", "·", "·", "·"]}
    assert {len(row) for row in lines(claims).values()} == {2}
    told = {sheet.source for sheet in sheets(filled(table, []), 3)}
    assert told == {"none of the 3 results here is of the papers' tables"}


def test_machines_are_never_mixed(table: Table) -> None:
    other = [result("M1", memory=800 * MIB, machine="other")]
    found = sheets(filled(table, [*RESULTS, *other]))
    assert [line[1] for line in lines(found[0]).values()] == ["2", "2", "0", "x2", "x2", "0", "0", "0", "3"]
    by_source = {sheet.source: lines(sheet) for sheet in found if sheet.title == "Tables of the papers"}
    assert by_source["measured on box (1x BOX)"]["p/t1"][1] == "5"
    assert by_source["measured on other (1x OTHER)"]["p/t1"][1:4] == ["2", "x2", "x2"]
    assert [column.text for column in found[-1].groups[0].columns][2:] == ["Measured on box", "Measured on other"]


def test_the_comparison_has_a_row_for_every_measured_value_in_base_units(table: Table) -> None:
    rows = list(csv.DictReader(io.StringIO(publish.comparison(filled(table, RESULTS)))))
    assert [(r["row"], r["column"], r["metric"], r["reported"], r["measured"], r["ratio"]) for r in rows] == [
        ("M1", "A", "gpu_memory", repr(400.0 * MIB), repr(200.0 * MIB), "0.5"),
        ("M1", "B", "gpu_memory", repr(100.0 * MIB), repr(50.0 * MIB), "0.5"),
        ("M1", "A", "throughput", "50.0", "100.0", "2.0"),
        ("M1", "B", "throughput", "80.5", "50.0", repr(50 / 80.5)),
        ("M2", "B", "gpu_memory", repr(300.0 * MIB), repr(600.0 * MIB), "2.0"),
    ]
    assert {(r["machine"], r["measured_on"], r["reported_in"], r["reported_on"]) for r in rows} == {
        ("box", "1x BOX", "p t1", "1x G-1")
    }
