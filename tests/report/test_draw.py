"""Figures as data: what was measured, predicted or reported stands where its row, column and metric say."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.drawings import BARS, LINES, TIMELINE, recorded
from tests.support.rates import CALIBRATION, RATES
from tests.support.tables import MIB, PAPER, result
from zobench import recipes
from zobench.cost import gpu, step_seconds
from zobench.cost.published.evidence import papers_gpus
from zobench.programs.cell import run
from zobench.recipes import matrix
from zobench.recipes.reference import Reference
from zobench.report import artifacts
from zobench.report.draw import chart
from zobench.report.plot import Plot
from zobench.report.recorded import timelines
from zobench.report.render import grids
from zobench.result import Facts, Outcome, Result
from zobench.runspec import RunSpec
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
    found = drawn(plot_from(tmp_path, BARS), results)
    memory, throughput = found.panels
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
    assert found.source.startswith("Measured on box (1x BOX); ")
    assert "paper: p t1, on 1x G-1" in found.source


def test_a_model_that_was_skipped_has_no_empty_place(tmp_path: Path) -> None:
    skipped = result("M2", outcome=Outcome.SKIPPED, reason="does not fit")
    table = plot_from(tmp_path, BARS).table
    assert table is not None
    ((_, grid),) = grids(table, [result("M1"), result("M1", "offload", "fp16"), skipped], None, Reference(()))
    found = chart(plot_from(tmp_path, BARS), grid, "box")
    assert [panel.positions for panel in found.panels] == [("M1",), ("M1",)]
    assert [[len(series.marks) for series in panel.series] for panel in found.panels] == [[1, 1], [1, 1]]


def test_intervals_are_those_of_the_median_step(tmp_path: Path) -> None:
    seconds = [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7]
    one = dataclasses.replace(result("M1"), samples={"step_seconds": list(seconds)})
    mark = drawn(plot_from(tmp_path, BARS), [one]).panels[1].series[0].marks[0]
    interval = median_interval(seconds)
    assert interval is not None
    assert (mark.low, mark.high) == (100 / interval[1], 100 / interval[0])
    assert mark.low <= mark.value <= mark.high
    memory = drawn(plot_from(tmp_path, BARS), [one]).panels[0].series[0].marks[0]
    assert (memory.low, memory.high) == (None, None)


def test_the_least_and_the_most_of_several_runs_are_no_interval(tmp_path: Path) -> None:
    plot = plot_from(tmp_path, BARS)
    assert plot.table is not None
    rows = [dataclasses.replace(row, over="seed", where={**row.where, "seed": (0, 1)}) for row in plot.table.rows]
    means = dataclasses.replace(plot, table=dataclasses.replace(plot.table, rows=tuple(rows)))
    runs = [result("M1", memory=memory * MIB, seed=seed) for seed, memory in enumerate((100, 300))]
    mark = drawn(means, runs).panels[0].series[0].marks[0]
    assert (mark.value, mark.low, mark.high) == (200.0, None, None)  # the legend says "95 % interval"


PREDICTED = """
kind = "bars"
title = "Memory"
[where]
dtype = "fp16"
seq_len = 2048
[rows.product]
model = ["OPT-125M", "OPT-13B"]
[[columns]]
header = "AdamW"
where = { engine = "resident", method = "fo-adam" }
predicted = true
[[columns]]
header = "ZO2"
where = { engine = "offload" }
predicted = true
[[metrics]]
name = "gpu_memory"
header = "Memory (GB)"
format = ".1f"
better = "lower"
unit = "GB"
[axes]
limit = { value = 40e9, label = "40 GB" }
"""


def test_what_was_not_measured_is_predicted_and_marked_so_and_what_cannot_fit_is_not_a_bar(tmp_path: Path) -> None:
    plot = plot_from(tmp_path, PREDICTED)
    spec = RunSpec(model="OPT-13B", dtype="fp16", engine="offload").resolve("cuda")
    found = drawn(plot, [])
    adamw, zo2 = found.panels[0].series
    assert zo2.marks[1].value == gpu.predict(spec, papers_gpus(anchored=True)["A100-80GB"]).device_bytes / 2**30
    assert {mark.source for series in (adamw, zo2) for mark in series.marks} == {"predicted"}
    assert adamw.marks[1].value is None
    assert adamw.marks[1].failure == "predicted out of memory"
    assert "Predicted for A100 80GB SXM, by a model of zobench's own engine" in found.source
    here = result("OPT-13B", "offload", "fp16", memory=3 * 2**30, seq_len=2048)
    again = drawn(plot, [here]).panels[0].series[1].marks[1]
    assert (again.value, again.source) == (3.0, "measured")
    bare = drawn(plot_from(tmp_path, PREDICTED.replace("predicted = true\n", "")), [])
    assert [panel.message[:20] for panel in bare.panels] == ["Nothing measured yet"]


COST = """
kind = "bars"
title = "Steps"
[where]
seq_len = 32
batch_size = 4
[rows]
header = "Cell"
variants = [
    { header = "PertP", where = { engine = "offload", parallel = "pertp", gpus = 2 }, extra = true },
    { header = "2D", where = { engine = "offload", parallel = "2d", gpus = 4 }, extra = true },
]
[[columns]]
header = "measured"
[[columns]]
header = "predicted"
quantity = "predicted_step_time"
[[metrics]]
name = "step_time"
header = "Step (s)"
format = ".2f"
better = "lower"
"""


def test_a_step_that_the_cost_model_predicts_stands_beside_the_measured_one_and_is_marked_so(tmp_path: Path) -> None:
    more: dict[str, Any] = {"seq_len": 32, "batch_size": 4, "gpus": 2, "parallel": "pertp", "tier": "pageable"}
    one = result("opt-tiny", "offload", seconds=2.0, device="cpu", calibration=CALIBRATION, **more)
    found = drawn(plot_from(tmp_path, COST), [one])
    own, model = found.panels[0].series
    assert found.panels[0].positions == ("PertP",), "what was not measured is not shown"
    assert [(mark.value, mark.source) for mark in own.marks] == [(2.0, "measured")]
    assert [(mark.value, mark.source) for mark in model.marks] == [(step_seconds(one.spec, RATES), "predicted")]
    assert found.source == "Measured on box (1x BOX)"
    bare = dataclasses.replace(one, environment=Facts(machine="box"))
    assert drawn(plot_from(tmp_path, COST), [bare]).panels[0].series[-1].label == "measured"


def test_processes_of_a_cpu_are_not_taken_for_gpus(tmp_path: Path) -> None:
    more: dict[str, Any] = {"seq_len": 32, "batch_size": 4, "gpus": 2, "parallel": "pertp", "tier": "pageable"}
    told = "GPUs stand for processes here, which share the cores of one CPU and its memory's bandwidth."
    plot = plot_from(tmp_path, COST)
    assert told in drawn(plot, [result("opt-tiny", "offload", device="cpu", **more)]).remarks
    more["tier"] = "pinned"
    assert told not in drawn(plot, [result("opt-tiny", "offload", device="cuda", **more)]).remarks


def test_lines_have_numbers_along_x(tmp_path: Path) -> None:
    plot = plot_from(tmp_path, LINES)
    panel = drawn(plot, [result("M1", batch_size=4, seconds=1.0)]).panels[0]
    assert (panel.xs, panel.x_label) == ((1.0, 4.0), "Batch size")
    assert [mark.value for mark in panel.series[0].marks] == [None, 400.0]


def test_nothing_measured_and_no_values_in_the_paper_is_said_and_not_blank(tmp_path: Path) -> None:
    found = drawn(plot_from(tmp_path, LINES), [])
    assert [panel.message for panel in found.panels] == [
        "Nothing measured yet: `zobench reproduce figure` measures here what this machine can."
    ]


def test_a_heat_map_shows_the_ratio_to_the_baseline_of_each_source(tmp_path: Path) -> None:
    text = BARS.replace('kind = "bars"', 'kind = "heatmap"')
    results = [result("M1", memory=200 * MIB), result("M1", "offload", "fp16", memory=50 * MIB)]
    memory, paper, *_ = drawn(plot_from(tmp_path, text), results).panels
    assert (memory.title, paper.title) == ("GPU Memory, measured on box", "GPU Memory, paper")
    assert [[mark.value for mark in series.marks] for series in memory.series] == [[1.0, 0.25]]
    assert [(series.label, [mark.value for mark in series.marks]) for series in paper.series] == [("M1", [1.0, 0.25])]
    assert memory.y_label == "relative to A"
    assert plot_from(tmp_path, text.replace("x = 'Model'\n", "")).axes.x == ""  # along x are its columns


def test_a_timeline_compares_runs_that_differ_only_in_what_it_is_about(tmp_path: Path) -> None:
    plot = plot_from(tmp_path, TIMELINE)
    results = [
        recorded("M1", False), recorded("M2", False), recorded("M2", True, steps=9), recorded("M2", True, batch_size=2),
    ]  # fmt: skip
    [(machine, found)] = timelines(plot, results)
    assert machine == "box"
    assert found.name == "p/f5"
    naive, overlapped = found.panels
    assert [(e.lane, e.kind, e.block, e.start, e.end) for e in naive.events] == [
        ("upload", "upload", 0, 0.0, 1.0),
        ("compute", "compute", 0, 1.0, 3.0),
    ]
    assert overlapped.title == "b. overlapped"
    assert overlapped.events
    assert "M2" in found.remarks[0]
    twos = [recorded("M1", overlap, batch_size=2) for overlap in (False, True)]
    ((_, found),) = timelines(plot, [*twos, recorded("M2", False)])
    assert "b2" in found.remarks[0]  # both panels, rather than one with what is meant
    ((_, found),) = timelines(plot, [*twos, *(recorded("M2", overlap) for overlap in (False, True))])
    assert "M2" in found.remarks[0]
    assert "b1" in found.remarks[0]


def test_a_case_that_was_not_recorded_says_so_and_failed_runs_are_not_drawn(tmp_path: Path) -> None:
    plot = plot_from(tmp_path, TIMELINE)
    bad = dataclasses.replace(recorded("M1", True), outcome=Outcome.CONTAMINATED, reason="noise")
    [(_, found)] = timelines(plot, [recorded("M1", False), bad])
    assert found.panels[1].message == "This case was not measured on this machine."
    [(machine, empty)] = timelines(plot, [bad])
    assert machine is None
    assert "zobench reproduce p/f5" in empty.panels[0].message


def test_a_drawn_checkpoint_has_its_lanes_and_a_run_that_recorded_none_is_not_drawn(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("ZOBENCH_DISK_DIR", str(tmp_path))
    path = recipes.find("plots", "zo-offloading-iclr25/figure4")
    plot = plot_from(tmp_path, path.read_text().replace("seq_len = [512, 2048]", "seq_len = [16, 2048]"))
    values = {"model": "opt-tiny", "engine": "offload", "seq_len": 16, "checkpoint": "async", "checkpoint_every": 4}
    measured = run(matrix.single({**values, "steps": 6}, "cpu"))
    ((machine, found),) = timelines(plot, [measured])
    assert machine is not None
    assert {event.lane for event in found.panels[0].events} == {"upload", "compute", "offload", "copy", "save"}
    before = [row for row in measured.timeline if row[0] not in ("copy", "save")]
    [(machine, found)] = timelines(plot, [dataclasses.replace(measured, timeline=before)])
    assert machine is None
    assert "(predicted)" in found.panels[0].title


def test_each_machine_has_its_own_timeline(tmp_path: Path) -> None:
    found = timelines(plot_from(tmp_path, TIMELINE), [recorded("M1", True, machine=name) for name in ("b", "a")])
    assert [machine for machine, _ in found] == ["a", "b"]


@pytest.mark.parametrize(
    ("text", "old", "new", "message"),
    [
        (BARS, 'kind = "bars"', 'kind = "bar"',
         "`kind` must be one of bars, lines, heatmap, timeline, pareto, curves, but got 'bar'"),
        (BARS, "log_y = true", "log_y = 3", "`log_y` in [axes] must be of type bool, but got 3"),
        (BARS, "value = 1e9", "value = '1'", "`value` in [axes.limit] must be of type number, but got '1'"),
        (LINES, "batch_size = [1, 4]", 'model = ["a"]', "lines need numbers along x, but a row is none"),
        (PREDICTED, "= true", "= 1", "`predicted` in [[columns]] must be of type bool, but got 1"),
        (TIMELINE, "overlap = false", "overlop = false", "unknown key 'overlop'; did you mean overlap"),
        (TIMELINE, 'title = "a. naive"', "", "`title` must be given in [[panels]], but is missing"),
    ],
)  # fmt: skip
def test_a_mistake_in_a_figure_is_one_line(tmp_path: Path, text: str, old: str, new: str, message: str) -> None:
    assert old in text
    with pytest.raises(ValueError, match=re.escape("figure.toml: ")) as caught:
        plot_from(tmp_path, text.replace(old, new, 1))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_figures_say_what_their_values_are(tmp_path: Path) -> None:
    results = [result("M1", device="cpu"), result("M1", "offload", "bf16", device="cpu")]
    remarks = " ".join(drawn(plot_from(tmp_path, BARS), results).remarks)
    assert "peak resident memory above its baseline, not GPU memory" in remarks
    assert "Measured with dtype bf16; the paper has fp16." in remarks
    assert "Without a 95 % interval: fewer than 6 steps were measured." in remarks
    assert "interval" not in " ".join(drawn(plot_from(tmp_path, BARS), []).remarks)


def test_a_limit_of_memory_is_not_drawn_across_throughput(tmp_path: Path) -> None:
    memory, throughput = drawn(plot_from(tmp_path, BARS), [result("M1")]).panels
    assert memory.limit is not None
    assert throughput.limit is None


@pytest.mark.parametrize(("model", "batch", "shown"), [("M1", 1, True), ("M9", 1, False), ("M1", 3, False)])
def test_a_figure_knows_which_runs_it_shows(tmp_path: Path, model: str, batch: int, shown: bool) -> None:
    spec = result(model, "offload", "bf16", batch_size=batch).spec
    assert artifacts.shows(plot_from(tmp_path, BARS), spec) is shown
    wide = TIMELINE.replace("batch_size = [1, 2]", "batch_size = 1")
    assert artifacts.shows(plot_from(tmp_path, wide), spec.replace(dtype="fp32")) is (batch == 1)
