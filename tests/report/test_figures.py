"""Figures: every number is in the picture, in bars, lines, heat maps and timelines."""

import dataclasses

import pytest
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from tests.support.charts import (
    BARS,
    LINES,
    ONE_LANE,
    RATIOS,
    TIMELINE,
    bars,
    chart,
    drawn,
    legend,
    lines,
    luminance,
    measured,
    points,
    series,
    step,
)
from zobench.report.chart import Event, Mark, Panel
from zobench.report.figures import style

LINEAR = dataclasses.replace(BARS, panels=(dataclasses.replace(BARS.panels[0], log_y=False),))


def test_every_bar_ends_at_its_value() -> None:
    axes = drawn(LINEAR).axes[0]
    tops = sorted(bar.get_y() + bar.get_height() for bar in bars(axes))
    assert tops == pytest.approx([2200, 3400, 4000, 28000], rel=1e-12)
    assert {bar.get_y() for bar in bars(axes)} == {0}


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


def test_linear_bars_stand_on_zero() -> None:
    panel = Panel(positions=("a", "b"), series=(series("x", measured(5), measured(-3)),))
    axes = drawn(chart("bars", panel)).axes[0]
    assert [(bar.get_y(), bar.get_height()) for bar in bars(axes)] == [(0, 5), (0, -3)]
    low, high = axes.get_ylim()
    assert low < -3.3
    assert high > 5.5


@pytest.mark.parametrize("from_zero", [True, False])
def test_lines_of_what_has_ratios_begin_at_zero(from_zero: bool) -> None:
    panel = Panel(xs=(1, 2), series=(series("x", measured(90), measured(100)),), from_zero=from_zero)
    low, high = drawn(chart("lines", panel)).axes[0].get_ylim()
    assert bool(low == 0) == from_zero
    assert low < 90
    assert high > 100


def test_intervals_end_where_the_marks_say() -> None:
    axes = drawn(LINEAR).axes[0]
    spans = {tuple(y for _, y in points(line)) for line in lines(axes, marker="_")}
    assert spans == {(m.low, m.high) for m in (measured(4000), measured(28000), measured(2200))}


def test_the_papers_values_are_hollow_diamonds_in_the_places_of_their_bars() -> None:
    axes = drawn(LINEAR).axes[0]
    diamonds = lines(axes, marker="D", markerfacecolor="white")
    assert [[y for _, y in points(line)] for line in diamonds] == [[4100, 70000], [3300, 7900]]
    first, second = ([x for x, _ in points(line)] for line in diamonds)
    places = [(bar.get_x(), bar.get_x() + bar.get_width()) for bar in bars(axes)]
    assert places[0][0] < first[0] < places[0][1]
    assert 1.5 < first[1] < 2.0
    assert second[0] < 1.42 < second[1] < 2.42


def test_a_prediction_is_lighter_and_hatched_and_named() -> None:
    figure = drawn(LINEAR)
    by_top = {round(bar.get_y() + bar.get_height()): bar for bar in bars(figure.axes[0])}
    solid, hatched = by_top[2200], by_top[3400]
    assert (solid.get_hatch(), hatched.get_hatch()) == (None, style.HATCH)
    assert sum(hatched.get_facecolor()[:3]) > sum(solid.get_facecolor()[:3]) + 0.5
    assert hatched.get_edgecolor() == solid.get_facecolor()
    assert legend(figure)["predicted"].get_hatch() == style.HATCH


def test_the_legend_names_what_is_there_and_nothing_else() -> None:
    assert list(legend(drawn(LINEAR))) == [
        "MeZO", "ZO2 (no reusable memory)", "95 % interval", "predicted", "paper", "out of memory", "80 GB device",
    ]  # fmt: skip
    plain = chart("bars", Panel(positions=("a",), series=(series("x", Mark(value=1.0)),)))
    assert list(legend(drawn(plain))) == ["x"]


def test_a_failure_is_a_cross_at_the_foot_and_a_cell_never_run_stays_empty() -> None:
    figure = drawn(LINEAR)
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


def test_failures_of_lines_stand_below_the_axis_where_no_line_is() -> None:
    axes = drawn(LINES).axes[0]
    crosses = [line for line in axes.findobj(Line2D) if line.get_marker() == "x"]
    places = [line.get_transform().transform(line.get_xydata())[0] for line in crosses]
    ticks = [axes.transData.transform((x, axes.get_ylim()[0])) for x in (2048, 4096)]
    assert [x for x, _ in places] == pytest.approx([x for x, _ in ticks])
    assert all(y < axes.bbox.y0 for _, y in places)


def test_cells_hold_their_values_and_the_papers() -> None:
    figure = drawn(RATIOS)
    cells = {text.get_text() for text in figure.axes[0].texts}
    assert cells == {"0.500", "1.25", "◇ 7.25"}
    assert list(legend(figure)) == ["predicted", "paper", "not run", "out of memory", "equal"]


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
