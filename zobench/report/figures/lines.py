"""Lines over a numeric axis: measured solid with a 95 % band, predicted dotted, the paper's dashed and hollow."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby, pairwise
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from zobench.report.chart import Mark, Panel
from zobench.report.figures import scales, style
from zobench.report.figures.scales import Fit, Frame, Legend

DASHES, DOTS = (0, (2.6, 1.4)), (0, (1, 1.2))
_STRIP = 9.0
"""Points below the axis for the marks of failures, where they cover no line."""

_CROWDED = 20
"""Values of a line from twice as many of which on not all have a marker."""

_Point = tuple[float, Mark]


def need(panel: Panel) -> float:
    """Points of width below which the ticks would crowd."""
    return max(105.0, len(panel.positions) * 20.0)


def height(panel: Panel) -> float:
    """Points of height of the axes."""
    return 132.0


def paint(frame: Frame) -> Fit:
    """Draws the frame's panel; what it returns sets the labels along x once the width is known."""
    axes, panel, legend = frame.axes, frame.panel, frame.legend
    axes.set(title=panel.title, xlabel=panel.x_label, ylabel=panel.y_label)
    _scale_x(axes, panel)
    scales.scale_y(axes, panel, from_zero=panel.from_zero)
    scales.limit(axes, panel, legend)
    for series, look in zip(panel.series, frame.looks, strict=True):
        legend.add(0, series.label, Line2D([], [], color=look.colour, **_shape(look)))
        for points in _pieces(panel.xs, series.marks):
            _band(axes, points, look, legend)
            _join(axes, points, look)
            _dots(axes, points, look, legend)
        if reported := [(x, value) for x, value in zip(panel.xs, series.paper, strict=True) if value is not None]:
            _reported(axes, reported, look, legend)
    _failures(frame)
    if panel.positions:
        return lambda: scales.label_x(axes, panel.xs, panel.positions)
    return lambda: None


def _shape(look: style.Swatch) -> dict[str, Any]:
    return {"marker": look.marker, "markersize": 3.8, "markeredgewidth": 0.8, "markeredgecolor": look.colour}


def _scale_x(axes: Axes, panel: Panel) -> None:
    low, high = min(panel.xs), max(panel.xs)
    if panel.log_x and low > 0:
        axes.set_xscale("log")
        space = (high / low) ** 0.05 if high > low else 2.0
        axes.set_xlim(low / space, high * space)
        axes.minorticks_off()
    else:
        space = 0.05 * (high - low) or 1.0
        axes.set_xlim(low - space, high + space)
        scales.linear_ticks(axes.xaxis, 5)
    axes.xaxis.grid(True)


def _pieces(xs: tuple[float, ...], marks: tuple[Mark, ...]) -> Iterator[list[_Point]]:
    """Runs of positions with values: across positions that were never run, but not across failures."""
    piece: list[_Point] = []
    for x, mark in sorted(zip(xs, marks, strict=True), key=lambda pair: pair[0]):
        if mark.value is not None:
            piece.append((x, mark))
        elif mark.failure:
            yield piece
            piece = []
    yield piece


def _band(axes: Axes, points: list[_Point], look: style.Swatch, legend: Legend) -> None:
    """The intervals as a band where neighbours have some, as a bar where one stands alone."""
    spans = [(x, mark.low, mark.high) for x, mark in points if mark.low is not None and mark.high is not None]
    if len(spans) == 1:
        scales.interval(axes, *spans[0], legend, look.colour)
    elif spans:
        xs, lows, highs = zip(*spans, strict=True)
        axes.fill_between(list(xs), list(lows), list(highs), color=look.colour, alpha=0.22, linewidth=0, zorder=2)
        legend.interval(Patch(facecolor=style.MUTED, alpha=0.22))


def _join(axes: Axes, points: list[_Point], look: style.Swatch) -> None:
    """Lines from point to point, dotted where an end was predicted."""
    for dotted, stretch in groupby(pairwise(points), lambda ends: any(mark.source == "predicted" for _, mark in ends)):
        pairs = list(stretch)
        ends = [pairs[0][0], *(second for _, second in pairs)]
        axes.add_line(Line2D(*_coordinates(ends), color=look.colour, linestyle=DOTS if dotted else "-", zorder=3))


def _dots(axes: Axes, points: list[_Point], look: style.Swatch, legend: Legend) -> None:
    """A marker at every value, light where it was predicted."""
    for source, fill in (("measured", look.colour), ("predicted", look.tint)):
        chosen = [point for point in points if point[1].source == source]
        if chosen:
            dots = Line2D(*_coordinates(chosen), linestyle="none", markerfacecolor=fill, clip_on=False, **_shape(look))
            dots.set(zorder=4, markevery=max(1, len(chosen) // _CROWDED))
            axes.add_line(dots)
            if source == "predicted":
                legend.add(1, "predicted", _grey(linestyle=DOTS, markerfacecolor=style.FAINT))


def _coordinates(points: list[_Point]) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [mark.value for _, mark in points if mark.value is not None]


def _grey(**look: Any) -> Line2D:
    """Returns the entry of the legend that stands for all series."""
    grey = style.Swatch(style.MUTED, "o")
    return Line2D([], [], color=grey.colour, **look, **_shape(grey))


def _reported(axes: Axes, pairs: list[tuple[float, float]], look: style.Swatch, legend: Legend) -> None:
    hollow: dict[str, Any] = {"linestyle": DASHES, "linewidth": 1.0, "markerfacecolor": "white"}
    xs, ys = ([pair[i] for pair in sorted(pairs)] for i in (0, 1))
    axes.add_line(Line2D(xs, ys, color=look.colour, zorder=5, clip_on=False, **hollow, **_shape(look)))
    legend.add(2, "paper", _grey(**hollow))


def _failures(frame: Frame) -> None:
    """Marks below the axis, side by side where several series failed at the same place."""
    panel = frame.panel
    for i, x in enumerate(panel.xs):
        ended = [(series.marks[i], look) for series, look in zip(panel.series, frame.looks, strict=True)]
        failed = [(mark, look) for mark, look in ended if mark.value is None and mark.failure]
        for rank, (mark, look) in enumerate(failed):
            aside = (rank - (len(failed) - 1) / 2) * 6
            marker = frame.legend.failure(mark.failure)
            scales.failure(frame.axes, x, marker, look.colour, aside=aside, up=-_STRIP / 2 - 1)
            frame.axes.tick_params(axis="x", pad=_STRIP, length=0)
