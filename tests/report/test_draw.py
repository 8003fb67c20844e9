"""Figures as data: what was measured, predicted or reported stands where its row, column and metric say."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from tests.support.tables import BARS, LINES, MIB, PAPER, TIMELINE, recorded, result
from zobench.report import artifacts
from zobench.report.draw import chart
from zobench.report.plot import Plot
from zobench.report.recorded import timelines
from zobench.report.render import grids
from zobench.result import Outcome, Result
from zobench.stats.intervals import median_interval


def plot_from(tmp_path: Path, text: str) -> Plot:
    made = artifacts.load_file(_file(tmp_path, text))
    assert isinstance(made, Plot)
    return made


def _file(folder: Path, text: str) -> Path:
    (path := folder / "figure.toml").write_text(text)
    return path


def drawn(plot: Plot, results: list[Result]) -> Any:
    assert plot.table is not None
    machine, grid = grids(plot.table, results, None, PAPER)[0]
    return chart(plot, grid, machine)


def test_bars_hold_the_measured_values_in_the_axis_unit_and_the_papers_beside_them(tmp_path: Path) -> None:
    results = [
        result("M1", memory=200 * MIB, seconds=2.0),
        result("M2", outcome=Outcome.OOM, reason="no room"),
        result("M2", "offload", "fp16", outcome=Outcome.FAILED, reason="boom"),
    ]
    made = drawn(plot_from(tmp_path, BARS), results)
    memory, throughput = made.panels
    assert (memory.positions, memory.x_label, memory.log_y) == (("M1", "M2"), "Model", True)
    assert memory.y_label == "GPU Memory (MB)"
    assert memory.limit == (1e9 / MIB, "1 GB")
    a, b = memory.series
    assert [series.label for series in memory.series] == ["A", "B"]
    assert [(mark.value, mark.failure) for mark in a.marks] == [(200.0, ""), (None, "out of memory")]
    assert [(mark.value, mark.failure) for mark in b.marks] == [(None, ""), (None, "did not finish")]
    assert a.paper == (400.0, None)
    assert b.paper == (100.0, 300.0)
    assert throughput.series[0].marks[0].value == 50.0
    assert made.source.startswith("Measured on box (1x BOX); ")
    assert "paper: p t1, on 1x G-1" in made.source


def test_intervals_are_those_of_the_median_step(tmp_path: Path) -> None:
    seconds = [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7]
    single = dataclasses.replace(result("M1"), samples={"step_seconds": list(seconds)})
    mark = drawn(plot_from(tmp_path, BARS), [single]).panels[1].series[0].marks[0]
    interval = median_interval(seconds)
    assert interval is not None
    assert (mark.low, mark.high) == (100 / interval[1], 100 / interval[0])
    assert mark.low <= mark.value <= mark.high
    memory = drawn(plot_from(tmp_path, BARS), [single]).panels[0].series[0].marks[0]
    assert (memory.low, memory.high) == (None, None)


def test_the_least_and_the_most_of_several_runs_are_no_interval(tmp_path: Path) -> None:
    plot = plot_from(tmp_path, BARS)
    assert plot.table is not None
    rows = [dataclasses.replace(row, over="seed", where={**row.where, "seed": (0, 1)}) for row in plot.table.rows]
    means = dataclasses.replace(plot, table=dataclasses.replace(plot.table, rows=tuple(rows)))
    runs = [result("M1", memory=memory * MIB, seed=seed) for seed, memory in enumerate((100, 300))]
    mark = drawn(means, runs).panels[0].series[0].marks[0]
    assert (mark.value, mark.low, mark.high) == (200.0, None, None)  # the legend says "95 % interval"


def test_lines_have_numbers_along_x(tmp_path: Path) -> None:
    plot = plot_from(tmp_path, LINES)
    panel = drawn(plot, [result("M1", batch_size=4, seconds=1.0)]).panels[0]
    assert (panel.xs, panel.x_label) == ((1.0, 4.0), "Batch size")
    assert [mark.value for mark in panel.series[0].marks] == [None, 400.0]


def test_nothing_measured_and_no_values_in_the_paper_is_said_and_not_blank(tmp_path: Path) -> None:
    made = drawn(plot_from(tmp_path, LINES), [])
    assert [panel.message for panel in made.panels] == [
        "Nothing measured yet: `zobench reproduce figure` measures here what this machine can."
    ]


def test_a_timeline_compares_runs_that_differ_only_in_what_it_is_about(tmp_path: Path) -> None:
    plot = plot_from(tmp_path, TIMELINE)
    results = [
        recorded("M1", False), recorded("M2", False), recorded("M2", True, steps=9), recorded("M2", True, batch_size=2),
    ]  # fmt: skip
    [(machine, made)] = timelines(plot, results)
    assert machine == "box"
    assert made.name == "p/f5"
    naive, overlapped = made.panels
    assert [(e.lane, e.kind, e.block, e.start, e.end) for e in naive.events] == [
        ("upload", "upload", 0, 0.0, 1.0),
        ("compute", "compute", 0, 1.0, 3.0),
    ]
    assert overlapped.title == "b. overlapped"
    assert overlapped.events
    assert "M2" in made.remarks[0]
    twos = [recorded("M1", overlap, batch_size=2) for overlap in (False, True)]
    ((_, made),) = timelines(plot, [*twos, recorded("M2", False)])
    assert "b2" in made.remarks[0]  # both panels, rather than one with what is meant
    ((_, made),) = timelines(plot, [*twos, *(recorded("M2", overlap) for overlap in (False, True))])
    assert "M2" in made.remarks[0]
    assert "b1" in made.remarks[0]


def test_a_case_that_was_not_recorded_says_so_and_failed_runs_are_not_drawn(tmp_path: Path) -> None:
    plot = plot_from(tmp_path, TIMELINE)
    bad = dataclasses.replace(recorded("M1", True), outcome=Outcome.CONTAMINATED, reason="noise")
    [(_, made)] = timelines(plot, [recorded("M1", False), bad])
    assert made.panels[1].message == "This case was not measured on this machine."
    [(machine, empty)] = timelines(plot, [bad])
    assert machine is None
    assert "zobench reproduce p/f5" in empty.panels[0].message


@pytest.mark.parametrize(("model", "batch", "shown"), [("M1", 1, True), ("M9", 1, False), ("M1", 3, False)])
def test_a_figure_knows_which_runs_it_shows(tmp_path: Path, model: str, batch: int, shown: bool) -> None:
    spec = result(model, "offload", "bf16", batch_size=batch).spec
    assert artifacts.shows(plot_from(tmp_path, BARS), spec) is shown
    wide = TIMELINE.replace("batch_size = [1, 2]", "batch_size = 1")
    assert artifacts.shows(plot_from(tmp_path, wide), spec.replace(dtype="fp32")) is (batch == 1)
