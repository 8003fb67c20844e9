"""What a report opens with: ratios counted by hand, the paper's beside them, and sentences that say where from."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from tests.support.charts import svg
from tests.support.pages import book
from tests.support.tables import MIB, result
from zobench.recipes.reference import Reference
from zobench.report import opening
from zobench.report.contents import Opening
from zobench.report.html import write
from zobench.result import Result, Round
from zobench.result.record import DISTURBED
from zobench.result.repeats import folded


def rounds(model: str, seconds: list[float], machine: str = "box", **spec: Any) -> list[Result]:
    """A process for each of ``seconds``, one in each round."""
    engine, memory = spec.pop("engine", "resident"), spec.pop("memory", None)
    return [
        dataclasses.replace(
            result(model, engine, seq_len=2048, machine=machine, memory=memory, seconds=time, **spec),
            round=Round(number=number, began=float(number), place=0, cells=2, seed=0),
            power={"other_cpu_cores": 0.01 * number},
        )
        for number, time in enumerate(seconds)
    ]


CELLS = [
    *rounds("OPT-125M", [2.0] * 6, memory=1000 * MIB),
    *rounds("OPT-125M", [2.5] * 6, engine="offload", memory=500 * MIB),
    *rounds("OPT-125M", [1.0] * 6, engine="offload", noise="counter", memory=400 * MIB),
    result("OPT-350M", seq_len=2048, machine="box", memory=2000 * MIB, seconds=2.0),
    result("OPT-350M", "offload", seq_len=2048, machine="box", memory=800 * MIB, seconds=2.0),
    result("OPT-125M", seq_len=2048, machine="aside", memory=1000 * MIB, seconds=1.0),
]
RESULTS = folded(CELLS)


@pytest.fixture(scope="module")
def paper() -> Reference:
    return Reference.load()


def opened(results: list[Result], paper: Reference) -> Opening:
    return opening.opening([], results, paper)


def test_the_chart_has_what_was_measured_relative_to_mezo_and_no_empty_place(paper: Reference, tmp_path: Path) -> None:
    chart = opened(RESULTS, paper).chart
    memory, speed = chart.panels
    assert chart.source.startswith("Measured on box (1x BOX); paper: zo-offloading-iclr25 table1, on ")
    assert (memory.positions, speed.positions) == (("OPT-125M", "OPT-350M"), ("OPT-125M",))
    zo2, zobench_series = memory.series
    assert [mark.value for mark in (*zo2.marks, zobench_series.marks[0])] == pytest.approx([0.5, 0.4, 0.4])
    assert [series.marks[0].value for series in speed.series] == pytest.approx([0.8, 2.0])
    wanted = {"paper": "zo-offloading-iclr25", "artifact": "table1", "model": "OPT-125M", "dtype": "fp32"}
    rows = [paper.find({**wanted, "method": method, "metric": "throughput"}) for method in ("mezo", "zo2")]
    values = [float(row["value"]) for row in rows if row and row["value"]]
    assert speed.series[0].paper[0] == (pytest.approx(values[1] / values[0]) if len(values) == 2 else None)
    assert "<svg" in svg(chart, tmp_path)


def test_three_sentences_say_what_was_measured_on_what_evidence_and_what_the_paper_has(paper: Reference) -> None:
    first, second, third = opened(RESULTS, paper).sentences
    assert first == (
        "On box (1x BOX), ZO2 needs 0.4 to 0.5 of MeZO's memory and has 0.80 (0.80 to 0.80, OPT-125M) of its "
        "throughput; zobench needs 0.4 of MeZO's memory and has 2.00 (2.00 to 2.00, OPT-125M) of its throughput."
    )
    assert second == (
        "Throughputs are from 6 rounds in which both ran, in parentheses the 95 % interval; meanwhile other "
        "programs used at most 0.05 cores; throughput ratios left out: 1 of single processes or without a shared "
        "round; `zobench sweep main_table --repeats 6` on an idle machine gives them."
    )
    assert third.startswith("In the paper ZO2 needs 0.")
    assert "OPT-125M" not in third
    apart = folded([cell for cell in CELLS if cell.spec.engine == "resident" or (cell.round and cell.round.number > 3)])
    assert opened(apart, paper).sentences[1].startswith("Throughputs are from 2 rounds in which both ran")
    assert "of all papers' 0 claims here" in third


def test_nothing_is_said_of_a_ratio_of_times_from_a_busy_machine(paper: Reference) -> None:
    busy = [f"{DISTURBED}0.9 cores busy meanwhile; expect slower steps"]
    disturbed = folded([dataclasses.replace(cell, warnings=busy) if cell.round else cell for cell in CELLS])
    made = opened(disturbed, paper)
    assert "throughput" not in made.sentences[0]
    assert made.sentences[1].startswith("Throughput ratios left out: 2 disturbed by other programs and 1 of single")
    assert [panel.title for panel in made.chart.panels] == ["Memory"]
    some = folded([dataclasses.replace(cell, warnings=busy) if cell.round and cell.round.number < 2 else cell
                   for cell in CELLS])  # fmt: skip
    assert "has 0.80 (0.80 to 0.80" in opened(some, paper).sentences[0]


def test_where_nothing_was_measured_the_papers_values_are_shown_and_the_first_command_is_told(
    paper: Reference, tmp_path: Path
) -> None:
    for results in ([], [result("opt-tiny", seq_len=64, machine="box")]):
        made = opened(results, paper)
        values = "Nothing that a paper compares was measured here yet: `zobench sweep main_table` begins with it."
        assert made.sentences[0] == values
        assert made.chart.source.startswith("Paper: zo2 table1, on ")
        assert "<svg" in svg(made.chart, tmp_path)
        assert "yet: <code>zobench sweep main_table</code> begins" in write(book(opening=made), {})
