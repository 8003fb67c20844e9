"""Grouped values: one group per position, one bar per series, the paper's values as diamonds in the bar's place.

A bar's length is its value, so bars stand on zero; on a logarithmic axis, which has no zero, markers take their places.
"""

from __future__ import annotations

from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle

from zobench.report.chart import Mark, Panel, Series
from zobench.report.figures import scales, style
from zobench.report.figures.scales import Fit, Frame, Legend, paper_marker


def need(panel: Panel) -> float:
    """Points of width below which the bars would be threads, or their labels more than a few lines."""
    label = max([min(style.width(position) / 2, 60.0) for position in panel.positions], default=0.0)
    return max(90.0, len(panel.positions) * max(6.0 * len(panel.series) + 6, label))


def height(panel: Panel) -> float:
    """Points of height of the axes."""
    return 122.0


def paint(frame: Frame) -> Fit:
    """Draws the frame's panel; what it returns sets the labels along x once the width is known."""
    axes, panel, legend = frame.axes, frame.panel, frame.legend
    axes.set(title=panel.title, xlabel=panel.x_label, ylabel=panel.y_label)
    count = len(panel.positions)
    space = max(count, 2.2)
    axes.set_xlim((count - 1 - space) / 2, (count - 1 + space) / 2)
    scales.scale_y(axes, panel, from_zero=True)
    scales.limit(axes, panel, legend)
    pitch = min(0.84 / len(panel.series), 0.4)
    for i, look in enumerate(frame.looks):
        centres = [position + (i - (len(panel.series) - 1) / 2) * pitch for position in range(count)]
        _series(frame, panel.series[i], look, centres, pitch)
    axes.tick_params(axis="x", length=0)
    if axes.get_ylim()[0] < 0:
        axes.axhline(0, color=style.MUTED, linewidth=0.6)
    return lambda: scales.label_x(axes, range(count), panel.positions)


def _series(frame: Frame, series: Series, look: style.Swatch, centres: list[float], pitch: float) -> None:
    """The values of one series, each ``pitch`` wide; intervals and the paper's values side by side in it."""
    axes, legend = frame.axes, frame.legend
    log = axes.get_yscale() == "log"
    bar = Patch(facecolor=look.colour, edgecolor=style.INK, linewidth=0.3)
    reported = [(x, value) for x, value in zip(centres, series.paper, strict=True) if value is not None]
    is_bare = bool(reported) and all(mark.value is None and not mark.failure for mark in series.marks)
    if is_bare:  # no bar below tells whose it is
        legend.add(0, series.label, paper_marker([], [], look.colour))
    else:
        legend.add(0, series.label, _marker([], [], look, look.colour) if log else bar)
    aside = 0.2 * pitch if reported else 0.0
    for x, mark in zip(centres, series.marks, strict=True):
        if mark.value is not None and log:
            fill = look.tint if mark.source == "predicted" else look.colour
            axes.add_line(_marker([x - aside], [mark.value], look, fill))
        elif mark.value is not None:
            axes.add_patch(_bar(x, pitch * 0.92, mark, look))
        elif mark.failure:
            scales.failure(axes, x, legend.failure(mark.failure), look.colour)
        if mark.value is not None and mark.source == "predicted":
            _name_predicted(legend, log)
        if mark.low is not None and mark.high is not None:
            scales.interval(axes, x - aside, mark.low, mark.high, legend)
    if reported:
        fill = look.colour if all(mark.value is None for mark in series.marks) else "white"
        axes.add_line(paper_marker([x + aside for x, _ in reported], [value for _, value in reported], fill))
        legend.paper()


def _marker(xs: list[float], ys: list[float], look: style.Swatch, fill: str) -> Line2D:
    edge = {"markeredgewidth": 0.8, "markeredgecolor": look.colour}
    return scales.dots(xs, ys, look.marker, 5, markerfacecolor=fill, zorder=3, **edge)


def _name_predicted(legend: Legend, log: bool) -> None:
    if log:
        grey = style.Swatch(style.MUTED, "o")
        legend.add(1, "predicted", _marker([], [], grey, grey.tint))
    else:
        legend.predicted()


def _bar(x: float, width: float, mark: Mark, look: style.Swatch) -> Rectangle:
    assert mark.value is not None
    bar = Rectangle((x - width / 2, 0), width, mark.value, linewidth=0.3, zorder=3)
    bar.set(facecolor=look.colour, edgecolor=style.INK)
    if mark.source == "predicted":
        bar.set(facecolor=look.tint, edgecolor=look.colour, hatch=style.HATCH, linewidth=0.6)
    return bar
