"""Curves of fine-tuning runs: whose evaluations are drawn, where they begin, and what is said where there are none."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.charts import lines as drawn_lines
from tests.support.charts import points
from tests.support.files import written
from tests.support.tables import rows, tuned
from zobench.durable.journal import JournalFile
from zobench.machine.texts import csv_of
from zobench.report import artifacts, figures, tuning
from zobench.report.chart import Chart
from zobench.report.plot import Plot
from zobench.report.recorded import curves
from zobench.result import Outcome, Result
from zobench.store import Store, text_of


def figure() -> Plot:
    item = artifacts.load("finetune_curves")
    assert isinstance(item, Plot)
    return item


def run(*rows: tuple[int, float | None, float], **changes: Any) -> Result:
    """A run with these evaluations: step, loss, accuracy."""
    made = tuned(0.8, dev_loss=min(loss for _, loss, _ in rows if loss is not None), **changes)
    return dataclasses.replace(made, evaluation=made.evaluation | {"curve": [[0, 0.7, 0.5], *map(list, rows)]})


def drawn(*results: Result) -> Chart:
    ((_, chart),) = curves(figure(), results)
    return chart


def lines(chart: Chart, panel: int) -> dict[str, dict[float, float]]:
    chosen = chart.panels[panel]
    return {
        series.label: {x: mark.value for x, mark in zip(chosen.xs, series.marks, strict=True) if mark.value is not None}
        for series in chosen.series
    }


def test_a_curve_begins_at_the_start_and_each_kind_of_run_is_a_line_of_its_own() -> None:
    zo, fo = run((100, 0.6, 0.7), (200, 0.5, 0.8)), run((50, 0.4, 0.9), method="fo-sgd", steps=625)
    mine = run((100, 0.3, 0.9), method="lozo", noise="counter")  # which no panel of the figure names
    assert lines(drawn(zo, mine), 1)["lozo"] == {0: 0.7, 100: 0.3}
    names = ("zo-sgd-sign", "zo-sgd-mmt", "zo-sgd-cons", "hizoo", "conmezo", "meazo", "r-adazo", "adamezo", "fo-sgd")
    every = drawn(zo, *(run((100, 0.3 + n / 100, 0.9), method=name) for n, name in enumerate(names)))
    assert every.remarks[0].endswith(" Not drawn: r-adazo, adamezo.")
    chart = drawn(zo, fo)
    assert lines(chart, 0) == {"ZO-SGD": {0: 50.0, 100: 70.0, 200: 80.0}, "FO-SGD": {0: 50.0, 50: 90.0}}
    assert lines(chart, 1) == {"ZO-SGD": {0: 0.7, 100: 0.6, 200: 0.5}, "FO-SGD": {0: 0.7, 50: 0.4}}
    assert chart.source == "Measured on box (1x BOX)"
    assert chart.remarks[0].startswith("OPT-1.3B on sst2: ")


def test_of_several_runs_of_a_kind_the_one_with_the_least_loss_on_dev_is_drawn() -> None:
    chart = drawn(run((100, 0.6, 0.9)), run((100, 0.5, 0.6), lr=1e-7))
    assert lines(chart, 1) == {"ZO-SGD": {0: 0.7, 100: 0.5}}


def test_models_and_tasks_are_never_mixed_and_the_fullest_group_is_drawn() -> None:
    other = run((100, 0.1, 0.9), task="rte")
    chart = drawn(run((100, 0.6, 0.7)), run((100, 0.5, 0.8), engine="offload"), other)
    assert set(lines(chart, 0)) == {"ZO-SGD", "ZO-SGD, offloaded"}
    assert "sst2" in chart.remarks[0]


def test_what_was_not_finite_leaves_a_gap_and_a_failed_run_is_not_drawn() -> None:
    chart = drawn(run((100, None, 0.6), (200, 0.5, 0.8)))
    assert lines(chart, 0) == {"ZO-SGD": {0: 50.0, 100: 60.0, 200: 80.0}}
    assert lines(chart, 1) == {"ZO-SGD": {0: 0.7, 200: 0.5}}
    failed = dataclasses.replace(run((100, 0.6, 0.7)), outcome=Outcome.FAILED)
    assert drawn(failed).panels[0].message.startswith("Nothing recorded yet: `zobench sweep ")


def folders(tmp_path: Path) -> list[Path]:
    """A results folder with a zeroth-order and a first-order run; and one of runs: that, and one that goes on."""
    zo = run((100, 0.6, 0.7), (200, None, 0.8))
    Store(tmp_path / "results").save(zo)
    Store(tmp_path / "results").save(run((50, 0.4, 0.9), method="fo-sgd", steps=625))
    written(tmp_path / "runs/ended/result.json", text_of(zo))
    (tmp_path / "runs/going").mkdir()
    spec = tuned(0.8, lr=1e-7).spec
    with JournalFile(tmp_path / "runs/going/journal.bin", {"run": spec.hash, "base": "0", "spec": spec.to_dict()}):
        pass
    taken = {"step": 100, "loss": None, "projected_grad": 1.0, "lr": 1e-7, "skipped": 0}
    seen = [{"step": step, "dev_loss": 0.7, "dev_accuracy": 0.5} for step in (0, 100)]
    lost = {"step": 200, "dev_loss": None, "dev_accuracy": 0.5}
    lines = [json.dumps(row) for row in (seen[0], taken, seen[1], lost)]
    (tmp_path / "runs/going/curve.jsonl").write_text("\n".join([*lines, '{"step": 2']))
    return [tmp_path / "results", tmp_path / "runs"]


def test_runs_of_folders_are_lines_named_by_what_differs_and_drawn_as_the_csv_says(tmp_path: Path) -> None:
    runs, problems = tuning.load(folders(tmp_path))
    assert problems == []
    artifact = tuning.figure(runs, forwards=True)
    written = rows(csv_of(artifact.frame))
    read: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for row in written:
        read.setdefault((row["quantity"], row["series"]), []).append((float(row["x"]), float(row["value"])))
    loss, score = "Loss on dev", "Accuracy on dev (%)"
    zo, fo, going = "zo-sgd lr=1e-06", "fo-sgd lr=1e-06", "zo-sgd lr=1e-07 (so far)"
    assert read == {  # a step of zo-sgd is two forwards, of fo-sgd three
        (loss, zo): [(0, 0.7), (200, 0.6)], (score, zo): [(0, 50), (200, 70), (400, 80)],
        (loss, fo): [(0, 0.7), (150, 0.4)], (score, fo): [(0, 50), (150, 90)],
        (loss, going): [(0, 0.7), (200, 0.7)], (score, going): [(0, 50), (200, 50), (400, 50)],
    }  # fmt: skip
    (chart,) = artifact.charts
    for panel, axes in zip(chart.panels, figures.draw(chart).axes, strict=False):
        drawn_points = [(float(row["x"]), float(row["value"])) for row in written if row["quantity"] == panel.y_label]
        shown = [point for line in drawn_lines(axes, linestyle="None") for point in points(line)]
        assert sorted(shown) == [pytest.approx(point) for point in sorted(drawn_points)]
        ticks = [tick for tick in axes.get_xticks() if axes.get_xlim()[0] <= tick <= axes.get_xlim()[1]]
        assert ticks == [0, 100, 200, 300, 400]
    assert chart.source == "Measured on box (1x BOX)"


def test_runs_of_one_spec_are_lines_of_their_own_but_for_copies(tmp_path: Path) -> None:
    for name, loss in (("a", 0.6), ("b", 0.5), ("copy", 0.6)):
        written(tmp_path / name / "result.json", text_of(run((100, loss, 0.7))))
    runs, _ = tuning.load([tmp_path / "a", tmp_path / "b", tmp_path / "copy"])
    (chart,) = tuning.figure(runs, forwards=False).charts
    assert [series.label for series in chart.panels[0].series] == [f"zo-sgd {runs[0].spec.hash} {n}" for n in (1, 2)]


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("result.json", "{"),
        ("curve.jsonl", '{"step": "a", "dev_loss": 1.0, "dev_accuracy": 0.5}\n'),
        ("curve.jsonl", '{"step": 1, "dev_loss": "a", "dev_accuracy": 0.5}\n'),
        ("curve.jsonl", f'{{"step": 1, "dev_loss": {"9" * 400}, "dev_accuracy": 0.5}}\n'),
    ],
)
def test_a_run_that_is_damaged_is_one_line_with_its_folder_and_leaves_the_others(
    file: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path / "mine" / file, text)
    written(tmp_path / "whole/result.json", json.dumps(tuned(0.8).to_dict()))
    monkeypatch.setattr(tuning.journal, "read", lambda path: [{"spec": tuned(0.8).spec.to_dict()}])
    runs, (problem,) = tuning.load([tmp_path])
    assert len(runs) == 1
    assert re.fullmatch(r".*mine must hold a fine-tuning run, but is damaged \(.*\); leave it out", problem)
