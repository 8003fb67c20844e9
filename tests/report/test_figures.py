"""Figures: every number is in the picture, nothing is cut or covered, a chart always gives the same bytes."""

from __future__ import annotations

import functools
import math
import re
import subprocess
import sys
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import matplotlib
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection, QuadMesh
from matplotlib.colors import LogNorm, to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.text import Text

from zobench.report import figures
from zobench.report.chart import Chart, Event, Mark, Panel, Series
from zobench.report.figures import style

MODELS = ("OPT-125M", "OPT-350M", "OPT-1.3B", "OPT-2.7B", "OPT-6.7B", "OPT-13B", "OPT-30B", "OPT-66B", "OPT-175B")
OOM = Mark(failure="out of memory")


def measured(value: float, spread: float = 0.1) -> Mark:
    return Mark(value=value, low=value * (1 - spread), high=value * (1 + spread))


def predicted(value: float) -> Mark:
    return Mark(value=value, source="predicted")


def series(label: str, *marks: Mark, paper: tuple[float | None, ...] = ()) -> Series:
    return Series(label=label, marks=marks, paper=paper or (None,) * len(marks))


def chart(kind: str, *panels: Panel, name: str = "zo2/figure3", **more: Any) -> Chart:
    values = {"title": "Memory", "source": "Measured on cpu-2c-4f2a91.", **more}
    return Chart(name=name, kind=kind, panels=panels, **values)


BARS = chart(
    "bars",
    Panel(
        x_label="Model",
        y_label="Device memory (MB)",
        positions=("OPT-1.3B", "OPT-13B", "OPT-66B"),
        limit=(81559, "80 GB device"),
        log_y=True,
        series=(
            series("MeZO", measured(4000), measured(28000), OOM, paper=(4100, None, 70000)),
            series("ZO2 (no reusable memory)", measured(2200), predicted(3400), Mark(), paper=(None, 3300, 7900)),
        ),
    ),
    remarks=("Batch 1, 2,048 tokens.",),
)
LINES = chart(
    "lines",
    Panel(
        x_label="Sequence length (tokens)",
        y_label="Throughput (tokens/s)",
        xs=(512, 1024, 2048, 4096),
        log_x=True,
        series=(
            series("MeZO", measured(3000), measured(6100), OOM, OOM, paper=(3100, 6000, 9000, None)),
            series("ZO2", measured(2000), Mark(), measured(7700), predicted(15000)),
        ),
    ),
)
RATIOS = chart(
    "heatmap",
    Panel(
        x_label="Model",
        y_label="Measured / reported (x)",
        positions=("OPT-1.3B", "OPT-13B"),
        log_y=True,
        limit=(1.0, "equal"),
        series=(series("MeZO", measured(0.5), OOM, paper=(None, 7.25)), series("ZO2", predicted(1.25), Mark())),
    ),
)


def step(blocks: int, shift: float = 0.0) -> tuple[Event, ...]:
    lanes = (("upload", 0), ("compute", 1), ("offload", 2))
    return tuple(
        Event(lane=lane, kind=lane, block=i, start=shift + (i + late) * 1e-3, end=shift + (i + late + 0.75) * 1e-3)
        for i in range(blocks)
        for lane, late in lanes
    )


ONE_LANE = tuple(
    Event(lane="compute", kind=kind, block=i, start=(3 * i + late) * 1e-3, end=(3 * i + late + 1) * 1e-3)
    for i in range(3)
    for late, kind in enumerate(("compute", "offload", "upload"))
)
TIMELINE = chart("timeline", Panel(title="naive", events=ONE_LANE), Panel(title="overlapped", events=step(6)))
ALL = {"bars": BARS, "lines": LINES, "heatmap": RATIOS, "timeline": TIMELINE}


@functools.cache
def drawn(one: Chart) -> Figure:
    """The figure of ``one``, drawn once for all tests, which only look at it."""
    return figures.draw(one)


def bars(axes: Axes) -> list[Rectangle]:
    return [patch for patch in axes.patches if isinstance(patch, Rectangle)]


def lines(axes: Axes, **look: object) -> list[Line2D]:
    """The lines of ``axes`` whose properties are those of ``look``."""
    return [line for line in axes.lines if all(getattr(line, f"get_{key}")() == value for key, value in look.items())]


def points(line: Line2D) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in line.get_xydata()]


def texts(figure: Figure) -> list[Text]:
    """Every text that can be seen."""
    found = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text()]
    ticks = [label for axes in figure.findobj(Axes) for axis in (axes.xaxis, axes.yaxis) for label in _hidden(axis)]
    return [text for text in found if text not in ticks]


def _hidden(axis: Any) -> list[Text]:
    """Labels of ticks that lie outside the axis or that are switched off."""
    shown = {id(tick) for tick in axis._update_ticks()}
    both = [*axis.majorTicks, *axis.minorTicks]
    return [label for tick in both if id(tick) not in shown for label in (tick.label1, tick.label2)]


def boxes(figure: Figure) -> list[tuple[str, Any]]:
    renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]
    return [(text.get_text(), text.get_window_extent(renderer)) for text in texts(figure)]


def legend(figure: Figure) -> dict[str, Any]:
    """Label -> its example, in order."""
    rows = figure.legends
    return {
        text.get_text(): handle
        for row in rows
        for text, handle in zip(row.get_texts(), row.legend_handles, strict=True)
    }


def assert_nothing_is_cut_or_covered(figure: Figure) -> None:
    figure.draw_without_rendering()
    renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]
    for text, box in boxes(figure):
        assert -0.5 <= box.x0 < box.x1 <= figure.bbox.x1 + 0.5, f"{text!r} is cut at a side"
        assert -0.5 <= box.y0 < box.y1 <= figure.bbox.y1 + 0.5, f"{text!r} is cut above or below"
    drawn = [axes.get_window_extent(renderer) for axes in figure.axes]
    outside = [row.get_window_extent(renderer) for row in figure.legends]
    outside += [text.get_window_extent(renderer) for text in figure.texts if text.get_text()]
    for a, b in combinations([*outside, *drawn], 2):
        assert not a.padded(-0.5).overlaps(b.padded(-0.5)), "legend, title, panels or remarks overlap"
    around = [axes.get_tightbbox(renderer).padded(-1) for axes in figure.axes]
    assert not any(box.overlaps(axes) for box in outside for axes in around), "labels of axes overlap others"
    for axes in figure.axes:
        for labels in (axes.get_xticklabels(), axes.get_yticklabels()):
            ends = [label.get_window_extent(renderer) for label in labels if label.get_text()]
            upright = [label for label in labels if label.get_rotation() == 0]
            if len(upright) == len(labels):
                assert not any(a.overlaps(b) for a, b in combinations(ends, 2)), "labels of ticks overlap"


# ----------------------------------------------------------------------------------------------- bars


def test_every_bar_ends_at_its_value() -> None:
    axes = drawn(BARS).axes[0]
    tops = sorted(bar.get_y() + bar.get_height() for bar in bars(axes))
    assert tops == pytest.approx([2200, 3400, 4000, 28000], rel=1e-12)
    assert {bar.get_y() for bar in bars(axes)} == {axes.get_ylim()[0]}
    assert axes.get_yscale() == "log"
    assert axes.get_ylim() == (1000, 100000)


def test_linear_bars_stand_on_zero() -> None:
    panel = Panel(positions=("a", "b"), series=(series("x", measured(5), measured(-3)),))
    axes = drawn(chart("bars", panel)).axes[0]
    assert [(bar.get_y(), bar.get_height()) for bar in bars(axes)] == [(0, 5), (0, -3)]
    low, high = axes.get_ylim()
    assert low < -3.3
    assert high > 5.5


def test_bars_of_a_position_stand_side_by_side_in_the_order_of_the_series() -> None:
    axes = drawn(BARS).axes[0]
    left = {round(bar.get_y() + bar.get_height()): (bar.get_x(), bar.get_x() + bar.get_width()) for bar in bars(axes)}
    assert -0.5 < left[4000][0] < left[4000][1] <= left[2200][0] < left[2200][1] < 0.5
    assert 0.5 < left[28000][0] < left[28000][1] <= left[3400][0] < left[3400][1] < 1.5


def test_intervals_end_where_the_marks_say() -> None:
    axes = drawn(BARS).axes[0]
    spans = {tuple(y for _, y in points(line)) for line in lines(axes, marker="_")}
    assert spans == {(m.low, m.high) for m in (measured(4000), measured(28000), measured(2200))}


def test_the_papers_values_are_hollow_diamonds_in_the_places_of_their_bars() -> None:
    axes = drawn(BARS).axes[0]
    diamonds = lines(axes, marker="D", markerfacecolor="white")
    assert [[y for _, y in points(line)] for line in diamonds] == [[4100, 70000], [3300, 7900]]
    first, second = ([x for x, _ in points(line)] for line in diamonds)
    places = [(bar.get_x(), bar.get_x() + bar.get_width()) for bar in bars(axes)]
    assert places[0][0] < first[0] < places[0][1]
    assert 1.5 < first[1] < 2.0
    assert second[0] < 1.42 < second[1] < 2.42


def test_a_prediction_is_lighter_and_hatched_and_named() -> None:
    figure = drawn(BARS)
    by_top = {round(bar.get_y() + bar.get_height()): bar for bar in bars(figure.axes[0])}
    solid, hatched = by_top[2200], by_top[3400]
    assert (solid.get_hatch(), hatched.get_hatch()) == (None, style.HATCH)
    assert sum(hatched.get_facecolor()[:3]) > sum(solid.get_facecolor()[:3]) + 0.5
    assert hatched.get_edgecolor() == solid.get_facecolor()
    assert legend(figure)["predicted"].get_hatch() == style.HATCH


def test_the_legend_names_what_is_there_and_nothing_else() -> None:
    assert list(legend(drawn(BARS))) == [
        "MeZO",
        "ZO2 (no reusable memory)",
        "95 % interval",
        "predicted",
        "paper",
        "out of memory",
        "80 GB device",
    ]
    plain = chart("bars", Panel(positions=("a",), series=(series("x", Mark(value=1.0)),)))
    assert list(legend(drawn(plain))) == ["x"]


def test_a_failure_is_a_cross_at_the_foot_and_a_cell_never_run_stays_empty() -> None:
    figure = drawn(BARS)
    axes = figure.axes[0]
    crosses = [line for line in axes.findobj(Line2D) if line.get_marker() == "x" and len(points(line))]
    assert [to_hex(line.get_markeredgecolor()) for line in crosses] == [style.SWATCHES[0][0].lower()]
    ((x, y),) = crosses[0].get_transform().transform(crosses[0].get_xydata())
    assert axes.transData.inverted().transform((x, y))[0] == pytest.approx(2 - 0.2, abs=0.1)
    assert 0 < y - axes.bbox.y0 < 10
    assert len(bars(axes)) == 4


def test_reasons_have_marks_of_their_own_and_none_is_lost() -> None:
    reasons = [f"reason {i}" for i in range(7)]
    panel = Panel(positions=tuple("abcdefg"), series=(series("x", *(Mark(failure=reason) for reason in reasons)),))
    handles = legend(drawn(chart("bars", panel)))
    del handles["x"]
    assert list(handles) == [*reasons[:4], "; ".join(reasons[4:])]
    assert len({handle.get_marker() for handle in handles.values()}) == 5


def test_a_limit_is_a_dashed_line_across_and_named() -> None:
    figure = drawn(BARS)
    (line,) = (line for line in figure.axes[0].lines if points(line) == [(0, 81559), (1, 81559)])
    assert line.get_linestyle() == "--"
    assert legend(figure)["80 GB device"].get_linestyle() == "--"


def test_a_logarithmic_axis_is_not_used_where_it_would_leave_a_value_out() -> None:
    panel = Panel(log_y=True, positions=("a", "b"), series=(series("x", Mark(value=0.0), Mark(value=10.0)),))
    axes = drawn(chart("bars", panel)).axes[0]
    assert axes.get_yscale() == "linear"
    assert [bar.get_height() for bar in bars(axes)] == [0, 10]


@pytest.mark.parametrize(("value", "low", "high"), [(999.999, 500, 1000), (1000, 1000, 1000), (0.03, 0.02, 0.05)])
def test_logarithmic_ranges_end_at_round_numbers(value: float, low: float, high: float) -> None:
    from zobench.report.figures import scales

    assert (scales.below(value), scales.above(value)) == pytest.approx((low, high))


# ---------------------------------------------------------------------------------------------- lines


def test_lines_go_through_the_measured_values_and_stop_at_a_failure() -> None:
    axes = drawn(LINES).axes[0]
    dots = [points(line) for line in lines(axes, linestyle="None")]
    assert [(512, 3000), (1024, 6100)] in dots
    assert [(512, 2000), (2048, 7700)] in dots
    solid = [points(line) for line in lines(axes, linestyle="-", marker="None")]
    assert solid == [[(512, 3000), (1024, 6100)], [(512, 2000), (2048, 7700)]]


def test_a_line_to_a_prediction_is_dotted_and_its_marker_light() -> None:
    figure = drawn(LINES)
    axes = figure.axes[0]
    (dotted,) = lines(axes, linestyle=":") or [
        line for line in lines(axes, marker="None") if points(line) == [(2048, 7700), (4096, 15000)]
    ]
    assert dotted.is_dashed()
    (light,) = (line for line in axes.lines if points(line) == [(4096, 15000)])
    assert light.get_markerfacecolor() == style.lighter(style.SWATCHES[1][0], 0.6)
    assert "predicted" in legend(figure)


def test_the_papers_line_is_dashed_and_hollow_in_the_colour_of_its_series() -> None:
    axes = drawn(LINES).axes[0]
    (line,) = lines(axes, markerfacecolor="white")
    assert points(line) == [(512, 3100), (1024, 6000), (2048, 9000)]
    assert line.is_dashed()
    assert line.get_color() == line.get_markeredgecolor() == style.SWATCHES[0][0]


def test_the_band_spans_the_intervals() -> None:
    axes = drawn(LINES).axes[0]
    first, second = axes.collections
    corners = {(round(float(x)), round(float(y), 6)) for x, y in first.get_paths()[0].vertices}
    assert corners == {(512, 2700), (512, 3300), (1024, 5490), (1024, 6710)}
    assert {round(float(x)) for x, _ in second.get_paths()[0].vertices} == {512, 2048}


def test_a_lone_interval_is_a_bar() -> None:
    panel = Panel(xs=(1, 2), series=(series("x", measured(10), Mark(value=20.0)),))
    axes = drawn(chart("lines", panel)).axes[0]
    assert {tuple(points(line)) for line in lines(axes, marker="_")} == {((1, 9.0), (1, 11.0))}
    assert not axes.collections


def test_ticks_stand_at_exactly_the_positions() -> None:
    axes = drawn(LINES).axes[0]
    assert list(axes.get_xticks()) == [512, 1024, 2048, 4096]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["512", "1,024", "2,048", "4,096"]
    assert not list(axes.xaxis.get_minorticklocs())


def test_failures_of_lines_stand_below_the_axis_where_no_line_is() -> None:
    axes = drawn(LINES).axes[0]
    crosses = [line for line in axes.findobj(Line2D) if line.get_marker() == "x"]
    places = [line.get_transform().transform(line.get_xydata())[0] for line in crosses]
    ticks = [axes.transData.transform((x, axes.get_ylim()[0])) for x in (2048, 4096)]
    assert [x for x, _ in places] == pytest.approx([x for x, _ in ticks])
    assert all(y < axes.bbox.y0 for _, y in places)


# ------------------------------------------------------------------------------------------- heat map


def test_cells_hold_their_values_and_the_papers() -> None:
    figure = drawn(RATIOS)
    cells = {text.get_text() for text in figure.axes[0].texts}
    assert cells == {"0.500", "1.25", "◇ 7.25"}
    assert list(legend(figure)) == ["predicted", "paper", "not run", "out of memory", "equal"]


def test_ratios_part_at_one() -> None:
    axes = drawn(RATIOS).axes[0]
    (bar,) = axes.child_axes
    (solids,) = bar.findobj(QuadMesh)
    norm = solids.norm
    assert isinstance(norm, LogNorm)
    assert math.sqrt(norm.vmin * norm.vmax) == pytest.approx(1.0)
    fills = {r.get_y() + 0.5: r for r in bars(axes) if r.get_facecolor()[3] and r.get_x() + 0.5 == 0}
    purple, orange = fills[0].get_facecolor(), fills[1].get_facecolor()
    assert purple[2] > purple[0]
    assert orange[0] > orange[2]
    assert bar.get_ylabel().split() == ["Measured", "/", "reported", "(x)"]


def test_colours_follow_the_values_and_text_can_be_read_on_them() -> None:
    values = [1.0, 20.0, 40.0, 60.0, 80.0, 100.0]
    panel = Panel(positions=tuple(map(str, values)), series=(series("x", *(Mark(value=v) for v in values)),))
    axes = drawn(chart("heatmap", panel)).axes[0]
    fills = {r.get_x() + 0.5: r.get_facecolor() for r in bars(axes) if r.get_facecolor()[3]}
    light = [luminance(fills[i]) for i in range(6)]
    assert light == sorted(light, reverse=True)
    for text, behind in zip(axes.texts, light, strict=True):
        ink = luminance(to_rgb(text.get_color()))
        assert (max(ink, behind) + 0.05) / (min(ink, behind) + 0.05) > 4


def test_empty_cells_and_predictions_are_hatched() -> None:
    axes = drawn(RATIOS).axes[0]
    hatched = {(r.get_x() + 0.5, r.get_y() + 0.5, r.get_hatch()) for r in bars(axes) if r.get_hatch()}
    assert hatched == {(1, 0, "xxxxxx"), (1, 1, "xxxxxx"), (0, 1, style.HATCH)}


# ------------------------------------------------------------------------------------------- timeline


def test_every_operation_is_a_rectangle_from_its_start_to_its_end() -> None:
    naive, overlapped = drawn(TIMELINE).axes
    assert spans(naive) == {(kind, 0, e.start * 1e3, e.end * 1e3) for e in ONE_LANE for kind in [e.kind]}
    rows = {"upload": 0, "compute": 1, "offload": 2}
    assert spans(overlapped) == {(e.kind, rows[e.lane], e.start * 1e3, e.end * 1e3) for e in step(6)}
    assert [label.get_text() for label in overlapped.get_yticklabels()] == ["upload", "compute", "offload"]


def spans(axes: Axes) -> set[tuple[str, int, float, float]]:
    """(kind, row, start, end) of the rectangles, told apart by colour as in the legend."""
    figure = axes.get_figure()
    assert isinstance(figure, Figure)
    kinds = {to_hex(handle.get_facecolor()): label for label, handle in legend(figure).items()}
    found = set()
    for group in axes.collections:
        assert isinstance(group, PolyCollection)
        for path in group.get_paths():
            (x0, y0), (x1, y1) = path.vertices.min(axis=0), path.vertices.max(axis=0)
            found.add((kinds[to_hex(group.get_facecolor()[0])], round((y0 + y1) / 2), float(x0), float(x1)))
    return found


def test_timelines_share_one_time_axis_named_once() -> None:
    naive, overlapped = drawn(TIMELINE).axes
    assert naive.get_xlim() == overlapped.get_xlim()
    assert naive.get_position().x0 == overlapped.get_position().x0
    assert naive.get_position().width == overlapped.get_position().width
    assert (naive.get_xlabel(), overlapped.get_xlabel()) == ("", "time since the first operation (ms)")


@pytest.mark.parametrize(("seconds", "unit"), [(1e-4, "µs"), (0.05, "ms"), (1.0, "ms"), (30.0, "s")])
def test_the_unit_of_time_fits_the_step(seconds: float, unit: str) -> None:
    event = Event(lane="compute", kind="compute", block=0, start=0, end=seconds)
    (axes,) = drawn(chart("timeline", Panel(events=(event,)))).axes
    assert axes.get_xlabel().endswith(f"({unit})")


@pytest.mark.parametrize("blocks", [1, 12, 24, 96])
def test_blocks_are_numbered_as_often_as_numbers_stand_apart(blocks: int) -> None:
    figure = drawn(chart("timeline", Panel(events=step(blocks)), Panel(events=ONE_LANE)))
    axes = figure.axes[0]
    renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]
    for row in range(3):
        found = [text for text in axes.texts if round(text.get_position()[1] + 0.1) == row]
        numbers = [int(text.get_text()) for text in found]
        assert numbers == list(range(0, blocks, numbers[1] - numbers[0] if len(numbers) > 1 else 1))
        ends = [text.get_window_extent(renderer) for text in found]
        assert all(a.x1 < b.x0 for a, b in pairwise(ends))
        for text, number in zip(found, numbers, strict=True):
            assert text.get_position()[0] == pytest.approx(number + row + 0.375)


def test_one_lane_has_the_number_of_a_block_once() -> None:
    axes = drawn(TIMELINE).axes[0]
    assert [(text.get_text(), text.get_position()[0]) for text in axes.texts] == [
        ("0", pytest.approx(1.5)),
        ("1", pytest.approx(4.5)),
        ("2", pytest.approx(7.5)),
    ]


def test_a_kind_that_no_step_has_gets_a_colour_of_its_own() -> None:
    extra = Event(lane="checkpoint", kind="save <b>", block=0, start=0, end=1e-3)
    handles = legend(drawn(chart("timeline", Panel(events=(*step(2), extra)))))
    assert list(handles) == ["upload", "compute", "offload", "save <b>"]
    assert len({to_hex(handle.get_facecolor()) for handle in handles.values()}) == 4


# ------------------------------------------------------------------------------------ text and layout

LONG = "ZO2 (no reusable memory, no efficient parameter update, no scheduler overlap)"
AWKWARD = {
    **ALL,
    "nine models": chart(
        "bars",
        Panel(
            y_label="Device memory (MB)",
            log_y=True,
            positions=MODELS,
            series=tuple(
                series(label, *(measured((i + 1) * 10.0 ** (j % 5)) for j in range(9)))
                for i, label in enumerate(("AdamW", "SGD", "MeZO", "ZO2"))
            ),
        ),
    ),
    "long": chart(
        "bars",
        Panel(
            title=LONG,
            x_label=LONG * 3,
            y_label=LONG * 2,
            positions=(LONG, "OPT", LONG + "!"),
            series=tuple(series(f"{LONG} {i}", *(measured(10.0),) * 3) for i in range(6)),
        ),
        title=LONG * 4,
        remarks=(LONG * 9, "w" * 2000),
        source="",
    ),
    "one bar": chart("bars", Panel(positions=("opt-tiny",), series=(series("ZO2", measured(17)),))),
    "three panels": chart(
        "bars",
        *(Panel(title=f"p{i}", y_label="s", positions=MODELS[:3], series=BARS.panels[0].series) for i in range(3)),
    ),
    "crowded ticks": chart(
        "lines",
        Panel(xs=(128, 256, 512, 1024, 8192), series=(series("x", *(measured(i) for i in (1, 2, 3, 4, 5))),)),
    ),
    "messages": chart("lines", Panel(title="a", message=LONG * 3), Panel(title="b", message="No GPU."), Panel()),
    "both": chart("lines", LINES.panels[0], Panel(title="RTE", message=LONG)),
    "96 blocks": chart("timeline", Panel(title="naive", events=step(96)), Panel(message="Nothing was recorded.")),
    "accuracies": chart(
        "heatmap",
        Panel(
            y_label="Accuracy (%)",
            positions=MODELS,
            series=tuple(series(f"{LONG} {i}", *(measured(50 + i + j) for j in range(9))) for i in range(7)),
        ),
    ),
    "empty texts": chart("bars", Panel(positions=("", ""), series=(series("", OOM, OOM),)), title="", source=""),
    "no panels": chart("heatmap", title="", source=""),
}


@pytest.mark.parametrize("name", AWKWARD)
def test_nothing_is_cut_or_covered(name: str) -> None:
    with style.context("salt"):  # as when it is saved: the user's settings could widen the text
        assert_nothing_is_cut_or_covered(drawn(AWKWARD[name]))


@pytest.mark.parametrize("name", AWKWARD)
def test_figures_are_as_wide_as_a_column_or_a_page_and_their_text_is_not_too_small(name: str) -> None:
    figure = drawn(AWKWARD[name])
    assert round(figure.get_figwidth(), 6) in (3.4, 7.0)
    assert all(text.get_fontsize() >= 7 for text in texts(figure))


def test_panels_stand_side_by_side_where_they_fit_else_above_each_other() -> None:
    few = [axes.get_position() for axes in drawn(AWKWARD["three panels"]).axes]
    assert few[0].x1 < few[1].x0 < few[1].x1 < few[2].x0
    assert few[0].y0 == few[1].y0 == few[2].y0
    panel = AWKWARD["nine models"].panels[0]
    many = [axes.get_position() for axes in drawn(chart("bars", panel, panel)).axes]
    assert many[0].x0 == many[1].x0
    assert many[0].y0 > many[1].y1


def test_a_label_has_the_same_look_in_all_panels() -> None:
    panels = (
        Panel(positions=("a",), series=(series("MeZO", measured(1)), series("ZO2", measured(2)))),
        Panel(positions=("a",), series=(series("ZO2", measured(3)),)),
    )
    first, second = drawn(chart("bars", *panels)).axes
    assert bars(first)[1].get_facecolor() == bars(second)[0].get_facecolor() != bars(first)[0].get_facecolor()


def test_a_message_stands_in_place_of_its_panel() -> None:
    figure = drawn(AWKWARD["both"])
    data, message = figure.axes
    assert " ".join(message.texts[0].get_text().split("\n")) == LONG
    assert not list(message.get_xticks())
    assert data.lines
    inside, frame = message.texts[0].get_window_extent(), message.get_window_extent()
    assert frame.x0 < inside.x0
    assert inside.x1 < frame.x1


def test_no_figure_is_blank() -> None:
    for name in ("messages", "no panels"):
        for axes in drawn(AWKWARD[name]).axes:
            assert axes.texts[0].get_text()
    nothing = Panel(positions=("a",), series=(series("x", Mark()),))
    (axes,) = drawn(chart("bars", nothing)).axes
    assert axes.texts[0].get_text() == "No value: nothing was run."


EVIL = chart(
    "bars",
    Panel(
        title="$a$",
        x_label="$b",
        y_label="%s {0} \\frac{1}{2}",
        positions=("$x^2$", "<img src=x onerror=alert(1)>"),
        series=(series('$\\alpha$ id="q"', measured(1), Mark(failure="</text><script>alert(1)</script>")),),
        limit=(1.5, "_hidden"),
    ),
    name='zo2/"><script>',
    title="$y$ <script>alert(1)</script> \x00\x1b\ud800\n&amp;",
    remarks=("]]> -->", "url(#x)"),
)


def test_text_is_shown_as_it_is(tmp_path: Path) -> None:
    shown = {text for text, _ in boxes(drawn(EVIL))}
    assert {"$a$", "$b", "%s {0} \\frac{1}{2}", "$x^2$", "_hidden", "]]> -->", "url(#x)"} <= shown
    assert "$y$ <script>alert(1)</script> &amp;" in shown
    (path,) = figures.save(EVIL, tmp_path / "evil", ["svg"])
    for source in (path.read_text(), figures.svg(EVIL)):
        assert "<script" not in source
        assert "<img" not in source
        read = ["".join(element.itertext()) for element in ElementTree.fromstring(source).iter()]
        assert "</text><script>alert(1)</script>" in read
        assert '$\\alpha$ id="q"' in read
        assert "url(#x)" in read


def test_numbers_and_labels_of_an_svg_can_be_searched(tmp_path: Path) -> None:
    (path,) = figures.save(RATIOS, tmp_path / "r", ["svg"])
    assert {"OPT-1.3B", "1.25", "Memory"} <= {"".join(e.itertext()) for e in ElementTree.parse(path).iter()}


# ------------------------------------------------------------------------------------------- outputs


@pytest.mark.parametrize("kind", ALL)
def test_the_same_chart_gives_the_same_bytes(kind: str, tmp_path: Path) -> None:
    first = [path.read_bytes() for path in figures.save(ALL[kind], tmp_path / "a")]
    with matplotlib.rc_context({"lines.linewidth": 9, "font.size": 30, "svg.fonttype": "path", "axes.grid": True}):
        second = [path.read_bytes() for path in figures.save(ALL[kind], tmp_path / "b")]
    assert first == second
    assert figures.svg(ALL[kind]) == figures.svg(ALL[kind])


@pytest.mark.parametrize("name", ["three panels", "heatmap", "timeline"])
def test_places_are_rounded(name: str) -> None:
    """Clip paths are named by a hash of all digits, and the layout's solver has other last ones each time: it orders
    its variables by their addresses."""
    figure = figures.draw(AWKWARD[name])
    corners = [float(share) for axes in figure.axes for share in axes.get_position().get_points().ravel()]
    assert corners == [round(share, 9) for share in corners]
    assert figure.get_figheight() * 72 == pytest.approx(round(figure.get_figheight() * 72, 6), abs=1e-12)


def test_another_process_with_another_hash_seed_gives_the_same_bytes_and_loads_no_pyplot(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from tests.report import test_figures as t\n"
        "for kind, chart in t.ALL.items(): t.figures.save(chart, Path(sys.argv[1]) / kind)\n"
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    root = Path(__file__).parents[2]
    environment = {"PYTHONHASHSEED": "7", "PATH": "", "HOME": str(tmp_path), "TZ": "Asia/Tokyo"}
    subprocess.run([sys.executable, "-c", script, tmp_path], check=True, cwd=root, env=environment)
    for kind, one in ALL.items():
        for path in figures.save(one, tmp_path / f"again-{kind}"):
            assert path.read_bytes() == (tmp_path / f"{kind}{path.suffix}").read_bytes(), path.name


def test_no_output_holds_a_date_or_a_version(tmp_path: Path) -> None:
    for path in figures.save(BARS, tmp_path / "a"):
        found = re.search(rb"20\d\d-\d\d-\d\d|CreationDate|Producer|Software|Matplotlib v", path.read_bytes())
        assert not found, path.name


def test_pdf_holds_truetype_fonts(tmp_path: Path) -> None:
    (path,) = figures.save(BARS, tmp_path / "a", ["pdf"])
    assert b"/FontFile2" in path.read_bytes()
    assert b"/Type3" not in path.read_bytes()


def test_files_are_named_after_the_stem(tmp_path: Path) -> None:
    paths = figures.save(BARS, tmp_path / "opt-1.3b", ["svg", "png"])
    assert paths == [tmp_path / "opt-1.3b.svg", tmp_path / "opt-1.3b.png"]
    assert sorted(tmp_path.iterdir()) == sorted(paths)


def test_drawing_changes_no_setting_of_matplotlib() -> None:
    before = dict(matplotlib.rcParams)
    figures.draw(BARS)
    assert dict(matplotlib.rcParams) == before


def test_svg_for_a_page_has_no_prolog_and_takes_the_width_of_its_place() -> None:
    source = figures.svg(BARS)
    assert source.startswith("<svg ")
    root = ElementTree.fromstring(source)
    assert "viewBox" in root.attrib
    assert not {"width", "height"} & set(root.attrib)
    assert root.get("style", "").startswith("width:100%")
    assert root.get("aria-label") == "Memory"


def test_ids_of_charts_in_one_page_differ_and_every_reference_has_its_target() -> None:
    seen: set[str] = set()
    for one in (*ALL.values(), chart("bars", *BARS.panels, source="Measured on another machine.")):
        source = figures.svg(one)
        ids = re.findall(r' id="([^"]+)"', source)
        targets = set(re.findall(r'(?:url\(#|href="#)([^")]+)', source))
        assert len(ids) == len(set(ids))
        assert targets
        assert targets <= set(ids)
        assert not seen & set(ids)
        seen |= set(ids)


# -------------------------------------------------------------------------------------------- colours


def luminance(colour: Any) -> float:
    """Relative luminance of WCAG 2."""
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour[:3])
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def lightness(colour: str) -> float:
    return 116 * luminance(to_rgb(colour)) ** (1 / 3) - 16


def test_the_first_six_colours_differ_in_grey_print() -> None:
    light = sorted(lightness(code) for code, _, _ in style.SWATCHES[:6])
    assert min(b - a for a, b in pairwise(light)) >= 8
    assert max(light) < 88


VISIONS = {  # Machado, Oliveira and Fernandes 2009, severity 1.0, on linear RGB
    "usual": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.01182, 0.04294, 0.968881)),
    "tritanopia": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.3039)),
}


@pytest.mark.parametrize("vision", VISIONS)
def test_all_colours_differ_with_any_colour_vision(vision: str) -> None:
    seen = [lab(to_rgb(code), VISIONS[vision]) for code, _, _ in style.SWATCHES]
    assert min(math.dist(a, b) for a, b in combinations(seen, 2)) > 12
    assert len({marker for _, marker, _ in style.SWATCHES}) == len(style.SWATCHES)


def lab(colour: Any, matrix: Any) -> tuple[float, float, float]:
    """CIE L*a*b* (D65) of ``colour`` as it is seen through ``matrix``."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour]
    r, g, b = (min(1.0, max(0.0, sum(m * c for m, c in zip(row, linear, strict=True)))) for row in matrix)
    x = (0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.95047
    y = 0.2126 * r + 0.7152 * g + 0.0722 * b
    z = (0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.08883
    fx, fy, fz = (t ** (1 / 3) if t > 0.008856 else 7.787 * t + 16 / 116 for t in (x, y, z))
    return 116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)


# --------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (
            chart("pie"),
            "a chart's kind must be one of bars, lines, heatmap, timeline, pareto, but zo2/figure3 has 'pie'",
        ),
        (
            chart("bars", Panel(positions=("a",), series=(series("x", Mark(value=math.nan)),))),
            "every number of a chart must be finite, but zo2/figure3 has one that is not",
        ),
        (
            chart("bars", Panel(positions=("a", "b"), series=(series("x", Mark(value=1.0)),))),
            "every series must have a mark and a paper's value or None for each of the 2 positions, "
            "but one of zo2/figure3 does not",
        ),
        (
            chart("bars", Panel(positions=("a",), series=tuple(series(str(i), measured(1)) for i in range(9)))),
            "a figure must have at most 8 different series, but zo2/figure3 has 9; split it into several",
        ),
    ],
)
def test_what_cannot_be_drawn_says_why(wrong: Chart, text: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        figures.draw(wrong)


def test_an_unknown_format_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^a figure's format must be one of png, svg, pdf, but got 'jpg'"):
        figures.save(BARS, tmp_path / "a", ["png", "jpg"])
    assert not list(tmp_path.iterdir())


def test_without_matplotlib_the_remedy_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("zobench.report.figures.")]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("page", "style"):
        monkeypatch.delattr(figures, name, raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"^a figure needs matplotlib, .* pip install 'zobench\[report\]'$"):
        figures.draw(BARS)


# ------------------------------------------------------------------------------------------ any chart

WORDS = st.text(max_size=60) | st.sampled_from(["$x$", "ZO2 (no reusable memory)", ""])
VALUES = st.none() | st.integers(-(10**9), 10**9).map(float) | st.floats(1e-6, 1e6)
MARKS = st.builds(
    Mark, value=VALUES, low=VALUES, high=VALUES, source=st.sampled_from(["measured", "predicted"]), failure=WORDS
)


@st.composite
def charts(draw: st.DrawFn) -> Chart:
    panels = []
    for _ in range(draw(st.integers(0, 3))):
        xs = draw(st.lists(st.integers(0, 10**5).map(float), max_size=6, unique=True).map(tuple))
        count = len(xs)
        many = [
            Series(
                label=draw(WORDS),
                marks=tuple(draw(st.lists(MARKS, min_size=count, max_size=count))),
                paper=tuple(draw(st.lists(VALUES, min_size=count, max_size=count))),
            )
            for _ in range(draw(st.integers(0, 2)))
        ]
        limit = draw(st.none() | st.tuples(st.integers(-(10**6), 10**6).map(float), WORDS))
        labels = tuple(draw(st.lists(WORDS, min_size=count, max_size=count)))
        panels.append(
            Panel(
                title=draw(WORDS), x_label=draw(WORDS), y_label=draw(WORDS), positions=labels, xs=xs,
                series=tuple(many), limit=limit, log_x=draw(st.booleans()), log_y=draw(st.booleans()),
            )
        )  # fmt: skip
    kind = draw(st.sampled_from(["bars", "lines", "heatmap"]))
    return chart(kind, *panels, title=draw(WORDS), source=draw(WORDS), remarks=(draw(WORDS),))


@pytest.mark.filterwarnings("ignore:Glyph .* missing")
@settings(
    max_examples=15,
    deadline=None,
    derandomize=True,
    phases=(Phase.explicit, Phase.generate),  # to shrink a chart takes minutes
    suppress_health_check=list(HealthCheck),
)
@given(charts())
def test_any_chart_can_be_drawn(one: Chart) -> None:
    ElementTree.fromstring(figures.svg(one))


def test_what_fits_where_is_drawn_from_the_file_that_the_docs_have() -> None:
    """Every number of the page is a mark, predicted; what fits nowhere says so; a GPU with a caution is marked."""
    from zobench.predict import fits, hardware
    from zobench.report.fits import UNFIT, artifact

    made = artifact()
    assert [chart.kind for chart in made.charts] == ["heatmap"] * len(fits.HOSTS)
    for host, chart, sheet in zip(fits.HOSTS, made.charts, made.sheets, strict=True):
        known = [one for one in fits.stored() if one.host == host]
        marks = [mark for series in chart.panels[0].series for mark in series.marks]
        assert [mark.value for mark in marks] == [one.rate for one in known]
        assert {mark.source for mark in marks} == {"predicted"}
        assert all((mark.failure == UNFIT) == (mark.value is None) for mark in marks)
        texts = [entry.text for row in sheet.groups[0].body for entry in row]
        assert texts == [one.text for one in known]
        assert "not measured" in chart.source
        marked = {name.removesuffix("†") for name in chart.panels[0].positions if name.endswith("†")}
        assert marked == {name for name in fits.GPUS if hardware.load(name).caution} == {"v100", "mi300x"}
