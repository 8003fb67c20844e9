"""Charts of every kind, and what of a drawn figure the tests look at."""

import functools
from itertools import combinations
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.text import Text

from zobench.report import figures
from zobench.report.chart import Chart, Event, Mark, Panel, Series

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
def drawn(chart: Chart) -> Figure:
    """The figure of ``one``, drawn once for all tests, which only look at it."""
    return figures.draw(chart)


def svg(chart: Chart, folder: Path) -> str:
    """``one`` as it is saved below ``folder``."""
    (path,) = figures.save(chart, folder / "drawn", ["svg"])
    return path.read_text(encoding="utf-8")


def bars(axes: Axes) -> list[Rectangle]:
    return [patch for patch in axes.patches if isinstance(patch, Rectangle)]


def lines(axes: Axes, **look: object) -> list[Line2D]:
    """The lines of ``axes`` whose properties are those of ``look``."""
    return [line for line in axes.lines if all(getattr(line, f"get_{key}")() == value for key, value in look.items())]


def points(line: Line2D) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in line.get_xydata()]


def texts(figure: Figure) -> list[Text]:
    """Every text that can be seen."""
    shown = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text()]
    ticks = [label for axes in figure.findobj(Axes) for axis in (axes.xaxis, axes.yaxis) for label in _hidden(axis)]
    return [text for text in shown if text not in ticks]


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
