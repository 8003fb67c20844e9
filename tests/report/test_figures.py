"""Figures: axes that leave no value out, the legend, and what stands where nothing was measured."""

import dataclasses

import pytest
from matplotlib.colors import to_hex
from matplotlib.lines import Line2D

from tests.support.charts import BARS, LINES, bars, chart, drawn, legend, lines, measured, points, series
from zobench.report.chart import Mark, Panel
from zobench.report.figures import style

LINEAR = dataclasses.replace(BARS, panels=(dataclasses.replace(BARS.panels[0], log_y=False),))


def test_on_a_logarithmic_axis_markers_stand_in_place_of_bars_which_would_have_no_foot() -> None:
    axes = drawn(BARS).axes[0]
    assert (axes.get_yscale(), axes.get_ylim(), bars(axes)) == ("log", (1000, 100000), [])
    first, second, third, light = (line for line in lines(axes, linestyle="None") if line.get_marker() in ("o", "s"))
    ends = [points(line)[0] for line in (first, second, third, light)]
    assert [y for _, y in ends] == [4000, 28000, 2200, 3400]
    assert -0.5 < ends[0][0] < ends[2][0] < 0.5 < ends[1][0] < ends[3][0] < 1.5
    assert (third.get_markerfacecolor(), light.get_markerfacecolor()) == (
        style.SWATCHES[1][0], style.lighter(style.SWATCHES[1][0], 0.6),
    )  # fmt: skip


def test_the_legend_names_what_is_there_and_nothing_else() -> None:
    assert list(legend(drawn(LINEAR))) == [
        "MeZO", "ZO2 (no reusable memory)", "95 % interval", "predicted", "paper", "out of memory", "80 GB device",
    ]  # fmt: skip
    plain = chart("bars", Panel(positions=("a",), series=(series("x", Mark(value=1.0)),)))
    assert list(legend(drawn(plain))) == ["x"]
    reported = drawn(chart("bars", Panel(positions=("a",), series=(series("x", Mark(), paper=(2.0,)),))))
    assert legend(reported)["x"].get_marker() == "D"  # no bar is drawn, and none explained
    assert to_hex(legend(reported)["x"].get_markerfacecolor()) == style.SWATCHES[0][0].lower()


def test_a_failure_is_a_cross_at_the_foot_and_a_cell_never_run_stays_empty() -> None:
    figure = drawn(LINEAR)
    axes = figure.axes[0]
    crosses = [line for line in axes.findobj(Line2D) if line.get_marker() == "x" and len(points(line))]
    assert [to_hex(line.get_markeredgecolor()) for line in crosses] == [style.SWATCHES[0][0].lower()]
    ((x, y),) = crosses[0].get_transform().transform(crosses[0].get_xydata())
    assert axes.transData.inverted().transform((x, y))[0] == pytest.approx(2 - 0.2, abs=0.1)
    assert 0 < y - axes.bbox.y0 < 10
    assert len(bars(axes)) == 4


def test_a_logarithmic_axis_is_not_used_where_it_would_leave_a_value_out() -> None:
    panel = Panel(log_y=True, positions=("a", "b"), series=(series("x", Mark(value=0.0), Mark(value=10.0)),))
    axes = drawn(chart("bars", panel)).axes[0]
    assert axes.get_yscale() == "linear"
    assert [bar.get_height() for bar in bars(axes)] == [0, 10]


def test_intervals_end_where_the_marks_say() -> None:
    axes = drawn(LINEAR).axes[0]
    spans = {tuple(y for _, y in points(line)) for line in lines(axes, marker="_")}
    assert spans == {(m.low, m.high) for m in (measured(4000), measured(28000), measured(2200))}


def test_a_prediction_is_lighter_and_hatched_and_named() -> None:
    figure = drawn(LINEAR)
    by_top = {round(bar.get_y() + bar.get_height()): bar for bar in bars(figure.axes[0])}
    solid, hatched = by_top[2200], by_top[3400]
    assert (solid.get_hatch(), hatched.get_hatch()) == (None, style.HATCH)
    assert sum(hatched.get_facecolor()[:3]) > sum(solid.get_facecolor()[:3]) + 0.5
    assert hatched.get_edgecolor() == solid.get_facecolor()
    assert legend(figure)["predicted"].get_hatch() == style.HATCH


def test_the_band_spans_the_intervals() -> None:
    axes = drawn(LINES).axes[0]
    first, second = axes.collections
    corners = {(round(float(x)), round(float(y), 6)) for x, y in first.get_paths()[0].vertices}
    assert corners == {(512, 2700), (512, 3300), (1024, 5490), (1024, 6710)}
    assert {round(float(x)) for x, _ in second.get_paths()[0].vertices} == {512, 2048}
