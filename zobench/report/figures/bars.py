"""Grouped bars: one group per position, one bar per series, the paper's values as diamonds in the bar's place."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.patches import Patch, Rectangle

from zobench.report.chart import Panel, Series
from zobench.report.figures import scales, style
from zobench.report.figures.layout import Fit, Frame
from zobench.report.figures.marks import Legend, paper_marker

HEIGHT = 122.0


def need(panel: Panel) -> float:
    """Points of width below which the bars would be threads, or their labels more than a few lines."""
    label = max([min(style.width(position) / 2, 60.0) for position in panel.positions], default=0.0)
    return max(90.0, len(panel.positions) * max(6.0 * len(panel.series) + 6, label))


def height(panel: Panel, length: float) -> float:
    """Points of height of the axes."""
    return HEIGHT


def paint(frame: Frame) -> Fit:
    """Draws the frame's panel; what it returns sets the labels along x once the width is known."""
    axes, panel, legend = frame.axes, frame.panel, frame.legend
    scales.name(axes, panel.title, panel.x_label, panel.y_label)
    count = len(panel.positions)
    space = max(count, 2.2)
    axes.set_xlim((count - 1 - space) / 2, (count - 1 + space) / 2)
    scales.scale_y(axes, panel, from_zero=True)
    scales.limit(axes, panel, legend)
    pitch = min(0.84 / len(panel.series), 0.4)
    for i, look in enumerate(frame.looks):
        places = [place + (i - (len(panel.series) - 1) / 2) * pitch for place in range(count)]
        _series(frame, panel.series[i], look, places, pitch)
    axes.tick_params(axis="x", length=0)
    if axes.get_ylim()[0] < 0:
        axes.axhline(0, color=style.MUTED, linewidth=0.6)
    return lambda: scales.label_x(axes, range(count), panel.positions)


def _series(frame: Frame, series: Series, look: style.Swatch, places: list[float], pitch: float) -> None:
    """The bars of one series, each ``pitch`` wide; intervals and the paper's values side by side in it."""
    axes, legend = frame.axes, frame.legend
    legend.add(0, series.label, Patch(facecolor=look.colour, edgecolor=style.INK, linewidth=0.3))
    reported = [(x, value) for x, value in zip(places, series.paper, strict=True) if value is not None]
    aside = 0.2 * pitch if reported else 0.0
    for x, mark in zip(places, series.marks, strict=True):
        if mark.value is not None:
            _bar(axes, x, pitch * 0.92, mark.value, mark.source == "predicted", look, legend)
        elif mark.failure:
            scales.failure(axes, x, legend.failure(mark.failure), look.colour)
        if mark.low is not None and mark.high is not None:
            scales.interval(axes, x - aside, mark.low, mark.high, legend)
    if reported:
        diamonds = paper_marker([x + aside for x, _ in reported], [value for _, value in reported])
        if all(mark.value is None for mark in series.marks):
            diamonds.set_markerfacecolor(look.colour)  # no bar below tells whose it is
        axes.add_line(diamonds)
        legend.paper()


def _bar(axes: Axes, x: float, width: float, value: float, predicted: bool, look: style.Swatch, legend: Legend) -> None:
    foot = axes.get_ylim()[0] if axes.get_yscale() == "log" else 0.0
    bar = Rectangle((x - width / 2, foot), width, value - foot, linewidth=0.3, zorder=3)
    bar.set(facecolor=look.colour, edgecolor=style.INK)
    if predicted:
        bar.set(facecolor=look.tint, edgecolor=look.colour, hatch=style.HATCH, linewidth=0.6)
        legend.predicted()
    axes.add_patch(bar)
