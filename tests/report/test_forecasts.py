"""The predicted layer of the papers' tables: no cost lacks one, each says whose it is and how far off it may be."""

import re
from collections import Counter
from pathlib import Path

import pytest

from tests.support.papers import MEASURED, REFERENCE
from tests.support.rates import CALIBRATION
from tests.support.tables import result
from zobench import recipes
from zobench.report import artifacts, claims, forecasts
from zobench.report.cells import TableCell
from zobench.report.compose import measured_sheet, paper_sheet, predicted_sheet
from zobench.report.formats import latex, terminal
from zobench.report.render import grids, render
from zobench.report.summary import Filled, sheets
from zobench.report.table import load_table
from zobench.result import Result
from zobench.runspec import RunSpec
from zobench.store import Store

OF_ACCURACY = {"accuracy"}


@pytest.fixture(scope="module")
def filled() -> list[Filled]:
    """Every table of the papers without any result."""
    return [Filled(table=table, grids=tuple(grids(table, [], None, REFERENCE))) for table in MEASURED.values()]


def cells(item: Filled) -> list[TableCell]:
    return [cell for row in item.grids[0][1] for group in row for cell in group if not cell.is_derived]


def test_every_cost_that_a_paper_reports_is_predicted_and_no_accuracy_is(filled: list[Filled]) -> None:
    told = Counter()
    for item in filled:
        for cell in cells(item):
            if cell.paper is not None:
                assert (cell.forecast is None) == (cell.metric.name in OF_ACCURACY), (item.table.name, cell.row.header)
                told[cell.forecast is None] += 1
    assert told == {False: 905, True: 184}
    layers = next(sheet for sheet in sheets(filled) if sheet.title == "Measured, predicted, paper")
    assert layers.remarks[0] == "Of the 1089 values, 0 were measured here, 905 are predicted only, 184 neither."
    assert layers.remarks[1] == "Neither: 184 of accuracy, because what a run learns has no model of costs."
    assert [entry.text for entry in layers.groups[0].body[-1][:4]] == ["1089", "0", "905", "184"]


def test_no_sheet_of_costs_has_an_empty_cell(filled: list[Filled]) -> None:
    for item in filled:
        if any(cell.forecast for cell in cells(item)):
            sheet = predicted_sheet(item.table, item.grids[0][1])
            entries = [entry for group in sheet.groups for row in group.body for entry in row]
            assert {entry.tone for entry in entries} == {"predicted"}, item.table.name
            assert all(entry.text.startswith("~") for entry in entries)


def test_what_is_zobenchs_own_under_a_papers_heading_says_so(filled: list[Filled]) -> None:
    theirs = [(item.table.paper, cell.forecast) for item in filled for cell in cells(item)
              if cell.forecast and cell.column.reference is not None]  # fmt: skip
    own = [(paper, known) for paper, known in theirs if known.of_engine]
    assert {paper for paper, _ in own} == {"zo-bench"}
    assert all({forecasts.BY_ENGINE, forecasts.SHARED_OUT} & set(known.notes) for _, known in own)
    other = [cell.forecast for item in filled for cell in cells(item)
             if cell.forecast and cell.column.reference is None]  # fmt: skip
    assert other
    assert all(known.of_engine for known in other)


def test_nine_of_ten_values_that_nothing_contradicts_are_within_their_range(filled: list[Filled]) -> None:
    inside: dict[tuple[str, str], list[bool]] = {}
    for item in filled:
        for cell in cells(item):
            known = cell.forecast
            if known and known.interval and cell.paper_value and not any("contradict" in note for note in known.notes):
                low, high = known.interval
                inside.setdefault((item.table.paper, cell.metric.name), []).append(low <= cell.paper_value <= high)
    assert [(name, sum(hits), len(hits)) for name, hits in inside.items() if sum(hits) < 0.8 * len(hits)] == []
    assert {name for _, name in inside} == {"gpu_memory", "throughput", "step_time", "link_rate"}


def test_the_papers_dashes_are_predicted_and_no_other_of_its_cells(filled: list[Filled]) -> None:
    for item in filled:
        for cell in cells(item):
            if cell.paper is not None and cell.forecast is not None:
                assert (cell.forecast.value is None) == (cell.paper["status"] == "oom"), (item.table.name, cell.row)


def test_claims_are_checked_on_predictions_apart_from_what_was_measured(filled: list[Filled]) -> None:
    (item,) = [one for one in filled if one.table.name == "zo2/table1"]
    grid = item.grids[0][1]
    told = {one.claim.text: one for one in claims.checked(item.table, grid, claims.predicted)}
    assert told["ZO2 needs less GPU memory than MeZO at every size (FP32)"].verdict == claims.HOLDS
    assert {one.verdict for one in claims.checked(item.table, grid, claims.measured)} == {claims.OPEN}
    (sheet,) = [one for one in sheets(filled) if one.title == "Claims of the papers"]
    assert [column.text for column in sheet.groups[0].columns] == ["Bound", "The paper's own values", "Predicted"]
    assert "Predicted, apart from what was measured: " in sheet.remarks[-1]


def test_a_figure_of_costs_that_nobody_measured_draws_what_is_predicted_and_says_for_what() -> None:
    artifact, _ = artifacts.make(artifacts.load("distzo2/figure6"), [], REFERENCE)
    (chart,) = artifact.charts
    marks = [mark for panel in chart.panels for series in panel.series for mark in series.marks]
    assert len(marks) == 15
    assert all(mark.source == "predicted" and mark.value for mark in marks)
    assert chart.source.startswith("Predicted for A100 80GB SXM, by a model of zobench's own engine; nine of ten")


def test_predictions_are_grey_with_a_tilde_in_every_format() -> None:
    table = load_table(recipes.find("tables", "zo2/table8"))
    ((_, grid),) = grids(table, [], None, REFERENCE)
    assert r"\textcolor{gray}{\textasciitilde{}" in latex.write([predicted_sheet(table, grid)])
    assert "xcolor" not in latex.write([paper_sheet(table, grid, None)])
    assert "\x1b[90m" in terminal.write([predicted_sheet(table, grid)], 120, True)
    assert r"| *\~" in render(table, [], "markdown")
    numbers = artifacts.frame("zo2/table8", [])
    ahead = numbers[numbers["source"] == "predicted"]
    assert len(ahead) == 20
    assert all(ahead["notes"].str.startswith("Predicted for the paper's program."))
    assert all((ahead["low"] < ahead["value"]) & (ahead["value"] < ahead["high"]))


def test_what_a_cpu_did_not_run_is_predicted_for_it_beside_the_papers_gpu_and_no_cell_is_empty() -> None:
    """Of the published cells, with one cell taken out: its forecast is near what was measured."""
    stored = Store(Path(__file__).parents[2] / "results" / "published").load("epyc-2c-2ca1ff")
    (out,) = [one for one in stored if one.spec == RunSpec(model="OPT-350M", steps=4).resolve("cpu")]
    rest = [one for one in stored if one is not out]
    table = artifacts.load("zo2/table1")
    ((_, grid),) = grids(table, rest, "epyc-2c-2ca1ff", REFERENCE)
    every = [cell for row in grid for group in row for cell in group]
    flat = {(cell.row.header, cell.column.header, cell.metric.name): cell for cell in every}
    on_machine = flat["OPT-350M", "MeZO (FP32)", "throughput"].on_machine
    assert on_machine is not None
    assert on_machine.value == pytest.approx(2048 / out.step_seconds, rel=0.15)
    assert on_machine.interval is not None
    assert on_machine.interval[0] < 2048 / out.step_seconds < on_machine.interval[1]
    memory = flat["OPT-350M", "MeZO (FP32)", "gpu_memory"].on_machine
    assert memory is not None
    assert memory.value == pytest.approx(out.memory["device_peak_bytes"], rel=0.1)
    assert flat["OPT-6.7B", "MeZO (FP32)", "throughput"].on_machine.value is None  # 27 GB of weights in 24 GiB
    assert all(cell.on_machine is None for cell in flat.values() if cell.value is not None)
    slower = [
        flat[f"OPT-{size}", "ZO2 (FP32)", "throughput"].on_machine.value
        for size in ("2.7B", "6.7B", "13B", "30B", "66B")
    ]
    assert slower == sorted(slower, reverse=True)  # type: ignore[type-var]
    shown = measured_sheet(table, grid, "epyc-2c-2ca1ff", fill=True)
    entries = {entry.text for group in shown.groups for row in group.body for entry in row}
    assert not {"·", "skipped", ""} & entries
    assert any(re.fullmatch(r"~[\d.]+/~\d+", text) for text in entries)
    assert {text.partition("/")[0] for text in entries if text.startswith("~-/")} == {"~-"}
    (said,) = [remark for remark in shown.remarks if remark.startswith("~a/~b")]
    assert "a is predicted for epyc-2c-2ca1ff by its measured rates and its cells" in said


def test_rates_are_those_of_quiet_runs_with_all_threads_and_of_these_the_usual_ones() -> None:
    def run(flops: float, *, busy: bool = False, threads: int = 2) -> Result:
        rates = CALIBRATION | {"matmul_flops_per_second": dict.fromkeys(("fp32", "fp16", "bf16"), flops)}
        warnings = ("threads: 1 of 2, because other processes keep 1.0 cores busy",) if busy else ()
        return result("OPT-125M", calibration=rates, warnings=warnings).with_facts(threads=threads)

    runs = [run(2e11), run(1e11), run(9e11), run(5e9, busy=True), run(7e9, threads=1)]
    rates, facts = forecasts._usual(runs)
    assert (rates.flops["fp32"], facts.threads) == (2e11, 2)
    assert forecasts._usual(runs[3:4])[0].flops["fp32"] == 5e9  # better than none
