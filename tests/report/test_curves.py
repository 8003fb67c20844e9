"""Curves of fine-tuning runs: whose evaluations are drawn, where they begin, and what is said where there are none."""

from __future__ import annotations

import dataclasses
from typing import Any

from tests.support.tables import tuned
from zobench.recipes.reference import Reference
from zobench.report import artifacts, frames
from zobench.report.chart import Chart
from zobench.report.plot import Plot
from zobench.report.recorded import curves
from zobench.result import Outcome, Result


def figure() -> Plot:
    item = artifacts.load("finetune_curves")
    assert isinstance(item, Plot)
    return item


def run(*rows: tuple[int, float | None, float], **changes: Any) -> Result:
    """A run with these evaluations: step, loss, accuracy."""
    one = tuned(0.8, dev_loss=min(loss for _, loss, _ in rows if loss is not None), **changes)
    return dataclasses.replace(one, evaluation=one.evaluation | {"curve": [[0, 0.7, 0.5], *map(list, rows)]})


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


def test_the_numbers_of_the_figure_are_written_beside_it() -> None:
    artifact, _ = artifacts.make(figure(), [run((100, 0.6, 0.7))], Reference.load())
    assert frames.csv(artifact.frame).splitlines() == [
        "figure,quantity,series,x,value",
        "finetune_curves,Accuracy on dev (%),ZO-SGD,0.0,50.0",
        "finetune_curves,Accuracy on dev (%),ZO-SGD,100.0,70.0",
        "finetune_curves,Loss on dev,ZO-SGD,0.0,0.7",
        "finetune_curves,Loss on dev,ZO-SGD,100.0,0.6",
    ]
