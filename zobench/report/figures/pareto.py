"""Labelled points with 95 % intervals: what is gained against what it costs, on a logarithmic axis, the size of a point
a second cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.text import Annotation
from matplotlib.transforms import Bbox

from zobench.report.chart import Panel
from zobench.report.figures import scales, style
from zobench.report.figures.scales import Fit, Frame

_LARGEST = 11.0
"""Points of diameter of the largest size; areas are as the sizes."""
_SMALLEST = 3.0
_BEHIND: dict[str, Any] = {"facecolor": "white", "edgecolor": "none", "alpha": 0.7, "pad": 0.4}
_ROWS = (0, 1, -1, 2, -2, 3, -3, 4, -4, 5, -5)
"""The lines by which a name is moved up or down, in the order in which they are tried."""
_SPACE = 1.5
"""Points between a marker and its label."""


def need(panel: Panel) -> float:
    """Points of width below which labels would not find room."""
    return 400.0


def height(panel: Panel) -> float:
    """Points of height of the axes."""
    return 250.0


def paint(frame: Frame) -> Fit:
    """Draws the frame's panel; what it returns writes the labels once the width is known."""
    axes, panel, legend = frame.axes, frame.panel, frame.legend
    axes.set(title=panel.title, xlabel=panel.x_label, ylabel=panel.y_label)
    scales.scale_y(axes, panel, from_zero=False)
    _scale_x(axes, panel)
    marks = panel.series[0].marks
    points = [(x, mark.value) for x, mark in zip(panel.xs, marks, strict=True) if mark.value is not None]
    best = front(points)
    stairs: dict[str, Any] = {"color": style.MUTED, "linestyle": (0, (4, 2)), "linewidth": 0.8}
    steps = zip(*sorted(points[index] for index in best), strict=True)  # level until the next one, then up to it
    axes.add_line(Line2D(*map(list, steps), drawstyle="steps-post", zorder=2, **stairs))
    legend.add(1, "not beaten in both", Line2D([], [], **stairs))
    sizes = [size for size in panel.sizes if size is not None]
    diameter_of = {size: max(_SMALLEST, _LARGEST * math.sqrt(size / max(sizes))) for size in sizes}
    diameters = [_SMALLEST if size is None else diameter_of[size] for size in panel.sizes or [None] * len(panel.xs)]
    for index, ((x, y), diameter, mark) in enumerate(zip(points, diameters, marks, strict=True)):
        colour = frame.looks[0].colour if index in best else style.lighter(frame.looks[0].colour, 0.55)
        if mark.low is not None and mark.high is not None:
            scales.interval(axes, x, mark.low, mark.high, legend, style.lighter(style.INK, 0.45))
        axes.add_line(_dot([x], [y], diameter, colour))
    for size in sorted({min(sizes), max(sizes)}) if sizes else ():
        legend.add(2, f"{size:.0f} {panel.size_unit}", _dot([], [], diameter_of[size], frame.looks[0].colour))
    written: list[Annotation] = []
    return lambda: _label(axes, panel, points, diameters, written)


def front(points: Sequence[tuple[float, float]]) -> list[int]:
    """Places of the points that no other beats: none is at most as far right, at least as high, and not the same."""
    return [
        index for index, (x, y) in enumerate(points)
        if not any(a <= x and b >= y and (a, b) != (x, y) for a, b in points)
    ]  # fmt: skip


def _scale_x(axes: Axes, panel: Panel) -> None:
    low, high = min(panel.xs) / 1.25, max(panel.xs) * 1.6  # to the right of a point stands its label
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    scales.log_ticks(axes.xaxis, low, high)
    axes.xaxis.grid(True)


def _dot(xs: Sequence[float], ys: Sequence[float], diameter: float, colour: str) -> Line2D:
    edge = {"markeredgecolor": "white", "markeredgewidth": 0.5}
    return scales.dots(xs, ys, "o", diameter, color=colour, zorder=5, **edge)


def _label(
    axes: Axes, panel: Panel, points: Sequence[tuple[float, float]], diameters: Sequence[float],
    written: list[Annotation],
) -> None:  # fmt: skip
    """The name of each point at its right or left, moved up or down until it covers no point and no other name; from a
    name that was moved a thin line leads to its point."""
    while written:
        written.pop().remove()
    centres = axes.transData.transform(points)
    taken = [Bbox.from_bounds(x - d / 2, y - d / 2, d, d) for (x, y), d in zip(centres, diameters, strict=True)]
    for i in sorted(range(len(points)), key=lambda i: -points[i][1]):
        text, tall, aside = style.plain(panel.positions[i]), style.SMALL, diameters[i] / 2 + _SPACE
        wide, (x, y) = style.width(text), centres[i]
        offsets = [(dx, row * tall - tall / 2) for row in _ROWS for dx in (aside, -aside - wide)]
        boxes = [Bbox.from_bounds(x + dx, y + dy, wide, tall) for dx, dy in offsets]
        inside = [all(axes.bbox.contains(*corner) for corner in box.get_points()) for box in boxes]
        k = next((k for k, box in enumerate(boxes) if inside[k] and not box.count_overlaps(taken)), 0)
        taken.append(boxes[k])
        line = {"arrowstyle": "-", "color": style.MUTED, "linewidth": 0.5, "shrinkB": diameters[i] / 2}
        written.append(axes.annotate(
            text, points[i], offsets[k], textcoords="offset points", size=tall, color=style.INK, bbox=_BEHIND, zorder=6,
            verticalalignment="bottom", arrowprops=line if k > 1 else None,
        ))  # fmt: skip
