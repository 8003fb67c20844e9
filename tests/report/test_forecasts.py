"""The predicted layer of the papers' tables: no cost lacks one, each says whose it is and how far off it may be."""

import re
from collections import Counter
from pathlib import Path

import pytest

from tests.support.papers import MEASURED, REFERENCE
from tests.support.tables import published
from zobench.report import artifacts
from zobench.report.cells import TableCell
from zobench.report.compose import measured_sheet, predicted_sheet
from zobench.report.render import grids
from zobench.report.summary import Filled, sheets
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
    counts = Counter()
    for item in filled:
        for cell in cells(item):
            if cell.paper is not None:
                assert (cell.forecast is None) == (cell.metric.name in OF_ACCURACY), (item.table.name, cell.row.header)
                counts[cell.forecast is None] += 1
    assert counts == {False: 905, True: 184}
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


def test_what_a_cpu_did_not_run_is_predicted_for_it_beside_the_papers_gpu_and_no_cell_is_empty() -> None:
    """Of the published cells, with one cell taken out: its forecast is near what was measured."""
    stored = Store(Path(__file__).parents[2] / "results" / "published").load("epyc-2c-2ca1ff")
    (out,) = [result for result in stored if result.spec == RunSpec(model="OPT-350M", steps=4).resolve("cpu")]
    rest = [result for result in stored if result is not out]
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


def test_rows_of_a_model_whose_weights_are_not_there_have_no_forecast_and_hide_no_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZOBENCH_CACHE_DIR", str(tmp_path))
    for machine, grid in grids(artifacts.load("zo-bench/table7"), list(published()), None, REFERENCE):
        costs = [cell for row in grid for group in row for cell in group if cell.metric.name == "gpu_memory"]
        assert {cell.column.header for cell in costs if cell.on_machine} <= {"Hybrid"}, machine
