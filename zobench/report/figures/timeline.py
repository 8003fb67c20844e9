"""A timeline: one row per lane, one rectangle per operation, coloured by its kind, with the number of its block."""

from __future__ import annotations

from itertools import groupby, pairwise
from typing import Any

from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.patches import Patch
from matplotlib.text import Text

from zobench.report.chart import Chart, Event, Panel
from zobench.report.figures import scales, style
from zobench.report.figures.scales import Fit, Frame

ROW = 20.0
_LANES = {
    "upload": "blue", "compute": "orange", "update": "green", "offload": "wine", "copy": "sky", "save": "pink",
}  # fmt: skip
"""Kinds of operations that a step and a checkpoint have; any others take the colours that are left. Lanes are in the
same order."""

_BAR = 0.58
"""Share of its row that a rectangle takes; above it stand the numbers that do not fit inside."""
_MINIMUM_SHARE = 0.004
"""Share of the time axis, about 2 points, below which a rectangle has no edge to tell it from the next one."""

_INSIDE: dict[str, Any] = {"ha": "center", "va": "center_baseline"}
_ABOVE: dict[str, Any] = {
    "ha": "center",
    "va": "baseline",
    "color": style.MUTED,
    "bbox": {"facecolor": "white", "edgecolor": "none", "pad": 0.2},
}


def need(panel: Panel) -> float:
    """Timelines stand one above the other, as wide as the page: beside its labels one alone needs more than that."""
    return style.PAGE


def height(panel: Panel) -> float:
    """Points of height of the axes."""
    return ROW * max(1, len(_lanes(panel))) + 4


def unit(chart: Chart) -> tuple[str, float]:
    """The unit of time in which the longest step has a readable number, and how many are in a second."""
    longest = max((abs(event.end) for panel in chart.panels for event in panel.events), default=1.0)
    return next((pair for pair in (("s", 1.0), ("ms", 1e3)) if longest * pair[1] >= 2), ("µs", 1e6))


def span(chart: Chart) -> tuple[float, float]:
    """From the first start (or the step's) to the last end, in seconds, of all panels together."""
    events = [event for panel in chart.panels for event in panel.events]
    low, high = min([0.0, *(event.start for event in events)]), max([0.0, *(event.end for event in events)])
    return low, high if high > low else low + 1.0


def colours(chart: Chart) -> dict[str, str]:
    """Kind of operation -> its colour, equal in all panels."""
    kinds = dict.fromkeys(event.kind for panel in chart.panels for event in panel.events)
    free = [code for code, _, name in style.SWATCHES if name not in _LANES.values()]
    fixed = {kind: style.colour(name) for kind, name in _LANES.items() if kind in kinds}
    free_kinds = [kind for kind in kinds if kind not in _LANES]
    return fixed | {kind: free[i % len(free)] for i, kind in enumerate(free_kinds)}


def paint(frame: Frame) -> Fit:
    """Draws the frame's panel on the time axis that all panels share; what it returns writes the blocks' numbers."""
    axes, panel, chart = frame.axes, frame.panel, frame.chart
    lanes, palette = _lanes(panel), colours(chart)
    name, scale = unit(chart)
    low, high = span(chart)
    last = panel is chart.drawn[-1]
    x_label = (panel.x_label or f"time since the first operation ({name})") if last else ""
    axes.set(title=panel.title, xlabel=x_label, ylabel=panel.y_label)
    axes.tick_params(axis="x", labelbottom=last)
    axes.set_xlim(low * scale, (high + 0.01 * (high - low)) * scale)
    axes.set_ylim(len(lanes) - 0.58, -0.72)
    axes.set_yticks(range(len(lanes)), [style.wrap(lane, 90, lines=1) for lane in lanes])
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.xaxis.grid(True)
    scales.linear_ticks(axes.xaxis, 8)
    for kind, code in palette.items():
        frame.legend.add(0, kind, Patch(facecolor=code))
    for kind, code in palette.items():
        for wide, edge, line in ((False, code, 0.5), (True, "white", 0.25)):  # an edge in white would hide a thin one
            drawn = (
                e for e in panel.events if e.kind == kind and (e.end - e.start >= _MINIMUM_SHARE * (high - low)) == wide
            )
            boxes = [_corners(event, lanes, scale) for event in drawn]
            axes.add_collection(PolyCollection(boxes, facecolors=code, edgecolors=edge, linewidths=line), autolim=False)
    written: list[Text] = []
    return lambda: _number(axes, panel, lanes, palette, scale, written)


def _corners(event: Event, lanes: list[str], scale: float) -> list[tuple[float, float]]:
    start, end, y = event.start * scale, event.end * scale, lanes.index(event.lane)
    return [(start, y - _BAR / 2), (end, y - _BAR / 2), (end, y + _BAR / 2), (start, y + _BAR / 2)]


def _lanes(panel: Panel) -> list[str]:
    """Lanes from top to bottom, in the order in which a block passes them."""
    lanes = dict.fromkeys(event.lane for event in panel.events)
    return [lane for lane in _LANES if lane in lanes] + [lane for lane in lanes if lane not in _LANES]


def _number(
    axes: Axes, panel: Panel, lanes: list[str], palette: dict[str, str], scale: float, written: list[Text]
) -> None:
    """The block's number inside each rectangle of a lane if all fit, else above as many as do not touch."""
    while written:
        written.pop().remove()
    low, high = axes.get_xlim()
    points = float(axes.bbox.width) / (high - low) * scale
    for row, lane in enumerate(lanes):
        events = sorted((event for event in panel.events if event.lane == lane), key=lambda event: event.start)
        groups = [list(run) for _, run in groupby(events, key=lambda event: event.block)]  # which need a number once
        if all(len(group) == 1 and _fits(group[0], points) for group in groups):
            for (event,) in groups:
                ink = style.readable(palette[event.kind])
                written.append(axes.text(_middle([event]) * scale, row, str(event.block), color=ink, **_INSIDE))
            continue
        for block, middle in _every([(str(group[0].block), _middle(group)) for group in groups], points):
            written.append(axes.text(middle * scale, row - _BAR / 2 - 0.08, block, **_ABOVE))


def _fits(event: Event, points: float) -> bool:
    return (event.end - event.start) * points >= style.width(str(event.block)) + 2


def _middle(group: list[Event]) -> float:
    return (group[0].start + max(event.end for event in group)) / 2


def _every(numbers: list[tuple[str, float]], points: float) -> list[tuple[str, float]]:
    """Each nth of the (block, middle), with the least n for which they stand apart."""
    for n in range(1, len(numbers)):
        chosen = numbers[::n]
        if all((y - x) * points >= (style.width(a) + style.width(b)) / 2 + 3 for (a, x), (b, y) in pairwise(chosen)):
            return chosen
    return numbers[:1]
