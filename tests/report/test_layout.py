"""Figures: nothing is cut or covered, whatever the texts and the marks."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.support import charts
from zobench.report import figures
from zobench.report.chart import Mark, Panel
from zobench.report.figures import style

LONG = "ZO2 (no reusable memory, no efficient parameter update, no scheduler overlap)"
AWKWARD = {
    **charts.ALL,
    "nine models": charts.chart(
        "bars",
        Panel(
            y_label="Device memory (MB)",
            log_y=True,
            positions=charts.MODELS,
            series=tuple(
                charts.series(label, *(charts.measured((i + 1) * 10.0 ** (j % 5)) for j in range(9)))
                for i, label in enumerate(("AdamW", "SGD", "MeZO", "ZO2"))
            ),
        ),
    ),
    "long": charts.chart(
        "bars",
        Panel(
            title=LONG,
            x_label=LONG * 3,
            y_label=LONG * 2,
            positions=(LONG, "OPT", LONG + "!"),
            series=tuple(charts.series(f"{LONG} {i}", *(charts.measured(10.0),) * 3) for i in range(6)),
        ),
        title=LONG * 4,
        remarks=(LONG * 9, "w" * 2000),
        source="",
    ),
    "both": charts.chart("lines", charts.LINES.panels[0], Panel(title="RTE", message=LONG)),
    "empty texts": charts.chart(
        "bars", Panel(positions=("", ""), series=(charts.series("", charts.OOM, charts.OOM),)), title="", source=""
    ),
}


@pytest.mark.parametrize("name", AWKWARD)
def test_nothing_is_cut_or_covered_at_the_width_of_a_column_or_a_page_and_no_text_is_too_small(name: str) -> None:
    with style.context("salt"):  # as when it is saved: the user's settings could widen the text
        figure = charts.drawn(AWKWARD[name])
        charts.assert_nothing_is_cut_or_covered(figure)
    assert round(figure.get_figwidth(), 6) in (3.4, 7.0)
    assert all(text.get_fontsize() >= 7 for text in charts.texts(figure))


def test_a_panel_without_anything_to_draw_is_a_remark_and_a_figure_without_any_is_refused() -> None:
    figure = charts.drawn(AWKWARD["both"])
    assert len(figure.axes) == 1
    assert f"RTE: {LONG}" in " ".join(" ".join(text.get_text().split("\n")) for text in figure.texts)
    empty = Panel(title="a", positions=("a",), series=(charts.series("x", Mark()),))
    text = "a chart must have something to draw, but zo2/figure3 has none: a: nothing was run.; No GPU."
    with pytest.raises(ValueError, match=re.escape(text)):
        figures.draw(charts.chart("bars", empty, Panel(message="No GPU.")))


EVIL = charts.chart(
    "bars",
    Panel(
        title="$a$",
        x_label="$b",
        y_label="%s {0} \\frac{1}{2}",
        positions=("$x^2$", "<img src=x onerror=alert(1)>"),
        series=(
            charts.series('$\\alpha$ id="q"', charts.measured(1), Mark(failure="</text><script>alert(1)</script>")),
        ),
        limit=(1.5, "_hidden"),
    ),
    name='zo2/"><script>',
    title="$y$ <script>alert(1)</script> \x00\x1b\ud800\n&amp;",
    remarks=("]]> -->", "url(#x)"),
)


def test_text_is_shown_as_it_is(tmp_path: Path) -> None:
    shown = {text for text, _ in charts.boxes(charts.drawn(EVIL))}
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
