"""What a report opens with: ratios counted by hand, the paper's beside them, and sentences that say where from."""

from __future__ import annotations

import dataclasses

import pytest

from tests.support.pages import SVG, book
from tests.support.tables import MIB, result
from zobench.recipes.reference import Reference
from zobench.report import opening
from zobench.report.book import Opening
from zobench.report.figures import svg
from zobench.report.html import write
from zobench.result import Result, Round
from zobench.result.repeats import folded

RESULTS = [
    result("OPT-125M", seq_len=2048, machine="box", memory=1000 * MIB, seconds=2.0),
    result("OPT-125M", "offload", seq_len=2048, machine="box", memory=500 * MIB, seconds=2.5),
    result("OPT-350M", seq_len=2048, machine="box", memory=2000 * MIB, seconds=2.0),
    result("OPT-350M", "offload", seq_len=2048, machine="box", memory=800 * MIB, seconds=2.0),
    result("OPT-125M", "offload", noise="counter", seq_len=2048, machine="box", memory=400 * MIB, seconds=1.0),
    result("OPT-125M", seq_len=2048, machine="aside", memory=1000 * MIB, seconds=1.0),
]  # fmt: skip


@pytest.fixture(scope="module")
def paper() -> Reference:
    return Reference.load()


def opened(results: list[Result], paper: Reference) -> Opening:
    return opening.opening([], results, paper)


def test_the_chart_has_what_was_measured_and_what_the_paper_reports_relative_to_mezo(paper: Reference) -> None:
    chart = opened(RESULTS, paper).chart
    memory, speed = chart.panels
    assert chart.source.startswith("Measured on box (1x BOX); paper: zo2 table1, on ")
    assert memory.positions[:3] == ("OPT-125M", "OPT-350M", "OPT-1.3B")
    zo2, own = memory.series
    assert ([mark.value for mark in zo2.marks[:3]], own.marks[0].value) == ([0.5, 0.4, None], 0.4)
    assert ([mark.value for mark in speed.series[0].marks[:2]], speed.series[1].marks[0].value) == ([0.8, 1.0], 2.0)
    wanted = {"paper": "zo2", "artifact": "table1", "model": "OPT-1.3B", "dtype": "fp32", "metric": "throughput"}
    rows = [paper.find({**wanted, "method": method}) for method in ("mezo", "zo2")]
    assert all(rows)
    assert speed.series[0].paper[2] == pytest.approx(float(rows[1]["value"]) / float(rows[0]["value"]))  # type: ignore[index]
    assert "<svg" in svg(chart)


def test_three_sentences_say_what_was_found_what_the_paper_has_and_how_much_of_it_that_is(paper: Reference) -> None:
    first, second, third = opened(RESULTS, paper).sentences
    assert first == (
        "On box (1x BOX), ZO2 needs 0.4 to 0.5 of MeZO's memory and has 0.8 to 1 of its throughput (OPT-125M to "
        "OPT-350M); zobench needs 0.4 of MeZO's memory and has 2 of its throughput (OPT-125M)."
    )
    assert second.startswith("In the paper, ZO2 needs 0.")
    assert third.startswith("Of the 0 values in the papers' tables 0 were measured here")


def test_a_share_from_rounds_has_their_interval(paper: Reference) -> None:
    """By the medians of all processes it would be 2.5 / 2.2."""
    speeds = {"resident": [2.0, 2.2, 2.4, 9.0, 9.0], "offload": [2.5, 2.75, 3.0]}
    cells = [
        dataclasses.replace(
            result("OPT-125M", engine, seq_len=2048, machine="box", seconds=seconds),
            round=Round(number=number, began=float(number), place=0, cells=2, seed=0),
        )
        for engine, times in speeds.items()
        for number, seconds in enumerate(times)
    ]
    _, speed = opened(folded(cells), paper).chart.panels
    mark = speed.series[0].marks[0]
    assert (mark.low, mark.value, mark.high) == pytest.approx((0.8, 0.8, 0.8))


def test_where_nothing_was_measured_the_papers_values_are_shown_and_the_first_command_is_told(paper: Reference) -> None:
    for results in ([], [result("opt-tiny", seq_len=64, machine="box")]):
        found = opened(results, paper)
        assert found.sentences[0] == (
            "Nothing that a paper compares was measured here yet: `zobench sweep main_table` begins with it."
        )
        assert found.chart.source.startswith("Paper: zo2 table1, on ")
        assert "<svg" in svg(found.chart)


def test_the_page_opens_with_it_before_anything_is_counted(paper: Reference) -> None:
    found = opened(RESULTS, paper)
    text = write(book(opening=found), {opening.NAME: [SVG]})
    begin = text.index("<h1>")
    places = [text.index(found.chart.source, begin), *(text.index(one[:20], begin) for one in found.sentences[1:])]
    assert places == sorted(places)
    assert places[-1] < text.index('class="machines"', begin)
