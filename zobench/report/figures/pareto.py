"""Labelled points with 95 % intervals: what is gained against what it costs, the size of a point a second cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from zobench.report.chart import Panel
from zobench.report.figures import scales, style
from zobench.report.figures.layout import Fit, Frame

HEIGHT = 250.0
_LARGEST = 11.0
"""Points of diameter of the largest size; areas are as the sizes."""
_SMALLEST = 3.0
_BEHIND: dict[str, Any] = {"facecolor": "white", "edgecolor": "none", "alpha": 0.7, "pad": 0.4}
_LOOK: dict[str, Any] = {"size": style.SMALL, "ha": "left", "va": "baseline", "zorder": 6}
_SPACE = 1.5
"""Points between a marker and its label."""


def need(panel: Panel) -> float:
    """Points of width below which labels would not find room."""
    return 400.0


def height(panel: Panel, length: float) -> float:
    """Points of height of the axes."""
    return HEIGHT


def paint(frame: Frame) -> Fit:
    """Draws the frame's panel; what it returns writes the labels once the width is known."""
    axes, panel, legend = frame.axes, frame.panel, frame.legend
    scales.name(axes, panel.title, panel.x_label, panel.y_label)
    scales.scale_y(axes, panel, from_zero=False)
    _scale_x(axes, panel)
    points = _points(panel)
    best = front(points)
    stairs = Line2D(*_stairs(points, best), color=style.MUTED, linestyle=(0, (4, 2)), linewidth=0.8, zorder=2)
    axes.add_line(stairs)
    legend.add(1, "not beaten in both", Line2D([], [], color=style.MUTED, linestyle=(0, (4, 2)), linewidth=0.8))
    diameters = _diameters(panel)
    for place, ((x, y), diameter, mark) in enumerate(zip(points, diameters, panel.series[0].marks, strict=True)):
        colour = frame.looks[0].colour if place in best else style.lighter(frame.looks[0].colour, 0.55)
        if mark.low is not None and mark.high is not None:
            scales.interval(axes, x, mark.low, mark.high, legend, style.lighter(style.INK, 0.45))
        axes.add_line(_dot([x], [y], diameter, colour))
    for size in _examples(panel):
        label = f"{size:.0f} {panel.size_unit}"
        legend.add(2, label, _dot([], [], _diameter(size, panel), frame.looks[0].colour))
    written: list[Text | Line2D] = []
    return lambda: _label(axes, panel, points, diameters, best, written)


def front(points: Sequence[tuple[float, float]]) -> list[int]:
    """Places of the points that no other beats: none is at most as far right, at least as high, and not the same."""
    return [
        place for place, (x, y) in enumerate(points)
        if not any(a <= x and b >= y and (a, b) != (x, y) for a, b in points)
    ]  # fmt: skip


def _points(panel: Panel) -> list[tuple[float, float]]:
    return [(x, mark.value) for x, mark in zip(panel.xs, panel.series[0].marks, strict=True) if mark.value is not None]


def _stairs(points: Sequence[tuple[float, float]], best: Sequence[int]) -> tuple[list[float], list[float]]:
    """From left to right along the unbeaten points: level until the next one is reached, then up to it."""
    ordered = sorted(points[place] for place in best)
    xs, ys = [ordered[0][0]], [ordered[0][1]]
    for x, y in ordered[1:]:
        xs += [x, x]
        ys += [ys[-1], y]
    return xs, ys


def _scale_x(axes: Axes, panel: Panel) -> None:
    low, high = min(panel.xs), max(panel.xs)
    if panel.log_x and low > 0:
        axes.set_xscale("log")
        low, high = low / 1.25, high * 1.6  # to the right of a point stands its label
        axes.set_xlim(low, high)
        scales.log_ticks(axes.xaxis, low, high)
    else:
        space = 0.08 * (high - low) or 1.0
        axes.set_xlim(low - space, high + 2 * space)
        scales.linear_ticks(axes.xaxis, 6)
    axes.xaxis.grid(True)


def _dot(xs: Sequence[float], ys: Sequence[float], diameter: float, colour: str) -> Line2D:
    dot = Line2D(list(xs), list(ys), linestyle="none", marker="o", markersize=diameter, color=colour, zorder=5)
    dot.set(markeredgecolor="white", markeredgewidth=0.5)
    return dot


def _known(panel: Panel) -> list[float]:
    return [size for size in panel.sizes if size is not None]


def _diameter(size: float | None, panel: Panel) -> float:
    return _SMALLEST if size is None else max(_SMALLEST, _LARGEST * math.sqrt(size / max(_known(panel))))


def _diameters(panel: Panel) -> list[float]:
    return [_diameter(size, panel) for size in panel.sizes or [None] * len(panel.xs)]


def _examples(panel: Panel) -> list[float]:
    """Sizes that the legend shows: the least and the most."""
    known = _known(panel)
    return sorted({min(known), max(known)}) if known else []


def _label(
    axes: Axes, panel: Panel, points: Sequence[tuple[float, float]], diameters: Sequence[float], best: Sequence[int],
    written: list[Text | Line2D],
) -> None:  # fmt: skip
    """The name of each point where it covers least: beside it, else above or below, the crowded ones last. From a name
    that does not touch its point a thin line leads there."""
    while written:
        written.pop().remove()
    places = [_place(axes, *point) for point in points]
    taken = [Bbox.from_bounds(x - d / 2, y - d / 2, d, d) for (x, y), d in zip(places, diameters, strict=True)]
    taken += _lines(axes, panel, points, best)
    room = axes.bbox
    order = sorted(range(len(points)), key=lambda i: sum(_near(places[i], other) for other in places))
    for i in order:
        text = style.plain(panel.positions[i])
        wide, tall, aside = style.width(text), style.SMALL, diameters[i] / 2 + _SPACE
        x, y = places[i]
        boxes = [
            Bbox.from_bounds(x + dx, y + dy, wide, tall)
            for dx, dy in (
                (aside, -tall / 2), (-aside - wide, -tall / 2), (aside * 0.7, aside * 0.7),
                (-aside * 0.7 - wide, aside * 0.7), (aside * 0.7, -aside * 0.7 - tall),
                (-aside * 0.7 - wide, -aside * 0.7 - tall), (-wide / 2, aside), (-wide / 2, -aside - tall),
                *((aside, step * tall) for step in (1.0, -2.0, 2.0, -3.0, 3.0, -4.0)),
                *((-aside - wide, step * tall) for step in (1.0, -2.0, 2.0, -3.0, 3.0, -4.0)),
            )
        ]  # fmt: skip
        box = min(boxes, key=lambda one: _covered(one, taken) + 10 * _outside(one, room))
        taken.append(box)
        if (end := _leader(box, x, y, aside)) is not None:
            written.append(axes.add_line(_led(axes, (x, y), end)))
        left, low = axes.transData.inverted().transform((box.x0, box.y0 + tall * 0.2))
        written.append(axes.text(left, low, text, color=style.INK, bbox=_BEHIND, **_LOOK))


def _leader(box: Bbox, x: float, y: float, near: float) -> tuple[float, float] | None:
    """The place of ``box`` that is nearest to a point, if that is further than ``near`` and a bit, else None."""
    end = min(max(x, box.x0), box.x1), min(max(y, box.y0), box.y1)
    return end if math.dist(end, (x, y)) > near + _SPACE else None


def _led(axes: Axes, start: tuple[float, float], end: tuple[float, float]) -> Line2D:
    """A thin line between two places in points."""
    ends = axes.transData.inverted().transform((start, end))
    return Line2D(ends[:, 0], ends[:, 1], color=style.MUTED, linewidth=0.5, zorder=4)


def _place(axes: Axes, x: float, y: float) -> tuple[float, float]:
    """Where a point stands, in points."""
    left, low = axes.transData.transform((x, y))
    return float(left), float(low)


def _lines(axes: Axes, panel: Panel, points: Sequence[tuple[float, float]], best: Sequence[int]) -> list[Bbox]:
    """Boxes of the intervals and of the stairs, a line wide."""
    known = [(x, mark.low, mark.high) for x, mark in zip(panel.xs, panel.series[0].marks, strict=True)]
    ends = [((x, low), (x, high)) for x, low, high in known if low is not None and high is not None]
    corners = list(zip(*_stairs(points, best), strict=True))
    placed = [(_place(axes, *a), _place(axes, *b)) for a, b in (*ends, *pairwise(corners))]
    return [Bbox.from_extents(min(a, c) - 1, min(b, d) - 1, max(a, c) + 1, max(b, d) + 1) for (a, b), (c, d) in placed]


def _near(one: tuple[float, float], other: tuple[float, float]) -> bool:
    return abs(one[0] - other[0]) < 60 and abs(one[1] - other[1]) < 12


def _covered(box: Bbox, others: Sequence[Bbox]) -> float:
    """The area of ``box`` that others take."""
    shared = (Bbox.intersection(box, other) for other in others)
    return sum(one.width * one.height for one in shared if one is not None)


def _outside(box: Bbox, room: Bbox) -> float:
    """The area of ``box`` outside the axes."""
    inside = Bbox.intersection(box, room)
    return box.width * box.height - (inside.width * inside.height if inside is not None else 0.0)
