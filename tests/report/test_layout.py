"""Figures: nothing is cut or covered, whatever the texts and the marks; what cannot be drawn says why."""

import math
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st

from tests.support.charts import (
    ALL,
    BARS,
    LINES,
    MODELS,
    OOM,
    assert_nothing_is_cut_or_covered,
    bars,
    boxes,
    chart,
    drawn,
    measured,
    series,
    step,
    svg,
    texts,
)
from zobench.report import figures
from zobench.report.chart import Chart, Mark, Panel, Series
from zobench.report.figures import style

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


def test_a_panel_without_anything_to_draw_is_a_remark_and_a_figure_without_any_is_refused() -> None:
    figure = drawn(AWKWARD["both"])
    assert len(figure.axes) == 1
    assert f"RTE: {LONG}" in " ".join(" ".join(text.get_text().split("\n")) for text in figure.texts)
    empty = Panel(title="a", positions=("a",), series=(series("x", Mark()),))
    text = "a chart must have something to draw, but zo2/figure3 has none: a: nothing was run.; No GPU."
    with pytest.raises(ValueError, match=re.escape(text)):
        figures.draw(chart("bars", empty, Panel(message="No GPU.")))


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
    assert {"$a$", "$b", "%s {0} \\frac{1}{2}", "$x^2$", "_hidden"} <= shown
    assert any({"]]> -->", "url(#x)"} <= set(text.split("\n")) for text in shown)
    assert "$y$ <script>alert(1)</script> &amp;" in shown
    (path,) = figures.save(EVIL, tmp_path / "evil", ["svg"])
    source = path.read_text()
    assert "<script" not in source
    assert "<img" not in source
    read = ["".join(element.itertext()) for element in ElementTree.fromstring(source).iter()]
    assert "</text><script>alert(1)</script>" in read
    assert '$\\alpha$ id="q"' in read
    assert "url(#x)" in read


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (
            chart("bars", Panel(positions=("a",), series=(series("x", Mark(value=math.nan)),))),
            "every number of a chart must be finite, but zo2/figure3 has one that is not",
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
@given(one=charts())
def test_any_chart_can_be_drawn(one: Chart, tmp_path_factory: pytest.TempPathFactory) -> None:
    assume(one.drawn)
    ElementTree.fromstring(svg(one, tmp_path_factory.mktemp("drawn")))


def test_what_fits_where_is_drawn_from_the_file_that_the_docs_have() -> None:
    """Every number of the page is a mark, predicted; what fits nowhere says so; a GPU with a caution is marked."""
    from zobench.cost import hardware
    from zobench.report import fits
    from zobench.report.fits import UNFIT, artifact

    made = artifact()
    assert [chart.kind for chart in made.charts] == ["heatmap"] * len(fits.HOSTS)
    for host, picture, sheet in zip(fits.HOSTS, made.charts, made.sheets, strict=True):
        known = [one for one in fits.stored() if one.host == host]
        marks = [mark for series in picture.panels[0].series for mark in series.marks]
        assert [mark.value for mark in marks] == [one.rate for one in known]
        assert {mark.source for mark in marks} == {"predicted"}
        assert all((mark.failure == UNFIT) == (mark.value is None) for mark in marks)
        texts = [entry.text for row in sheet.groups[0].body for entry in row]
        assert texts == [one.text for one in known]
        assert "not measured" in picture.source
        marked = {name.removesuffix("†") for name in picture.panels[0].positions if name.endswith("†")}
        assert marked == {name for name in fits.GPUS if hardware.load(name).caution} == {"v100", "mi300x"}
