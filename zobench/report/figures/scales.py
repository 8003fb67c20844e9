"""The parts that the kinds of figures share: the legend and its marks, ranges and ticks of axes, labels along x,
limits, intervals and failures."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.path import Path
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, StrMethodFormatter
from matplotlib.transforms import ScaledTranslation, blended_transform_factory

from zobench.report.chart import Chart, Panel
from zobench.report.figures import style

Fit = Callable[[], None]
"""The work that is left once an axes' width is known; it may be called again when that changes."""
_FAILURES = ("x", "+", "1", "2", "3")
_STEPS = (1, 2, 5)
NUMBER = "{x:,.10g}"
"""How ticks print their number: all digits, thousands set apart, never an offset or a factor."""
_SLANTED = style.SMALL * 1.6
"""Distance of ticks from which slanted labels do not touch."""
_BEYOND = 24.0
"""Points that labels on a line may reach beyond their axes: more makes the axes narrower, and then they touch."""


@dataclass(slots=True)
class Legend:
    """The entries of the figure's legend, in the order of ranks: series, then predictions, the paper, failures,
    limits."""

    entries: dict[tuple[int, str], Artist] = field(default_factory=dict)
    """Rank and label -> an example."""
    failures: dict[str, str] = field(default_factory=dict)
    """Reason of a failure -> its marker."""

    def add(self, rank: int, label: str, handle: Artist) -> None:
        """Names ``handle``, unless the label is there already or empty."""
        if style.plain(label):
            self.entries.setdefault((rank, style.plain(label)), handle)

    def predicted(self) -> None:
        """A bar or a cell that was computed, not measured."""
        light = style.lighter(style.MUTED, 0.6)
        self.add(1, "predicted", Patch(facecolor=light, edgecolor=style.MUTED, hatch=style.HATCH, linewidth=0.5))

    def interval(self, handle: Artist) -> None:
        """Error bars or a band."""
        self.add(1, "95 % interval", handle)

    def paper(self) -> None:
        """A value that a paper reports, as a diamond alone."""
        self.add(2, "paper", paper_marker([], []))

    def failure(self, reason: str) -> str:
        """The marker of ``reason``; the last marker stands for all reasons that are left over."""
        marker = _FAILURES[min(len(self.failures), len(_FAILURES) - 1)]
        return self.failures.setdefault(style.plain(reason), marker)

    def items(self) -> list[tuple[str, Artist]]:
        """Labels and handles in the order in which they are shown."""
        reasons: dict[str, list[str]] = {}
        for reason, marker in self.failures.items():
            reasons.setdefault(marker, []).append(reason)
        crosses = [(3, "; ".join(group), cross([], [], marker, style.INK)) for marker, group in reasons.items()]
        named = [(rank, label, handle) for (rank, label), handle in self.entries.items()]
        return [(label, handle) for _, label, handle in sorted([*named, *crosses], key=lambda entry: entry[0])]


@dataclass(frozen=True, slots=True)
class Frame:
    """The means with which a kind of figure draws: the axes of one panel, the look of its series, the whole figure's
    legend."""

    axes: Axes
    panel: Panel
    chart: Chart
    looks: tuple[style.Swatch, ...]
    legend: Legend


def dots(xs: Sequence[float], ys: Sequence[float], marker: str | Path, size: float, **look: Any) -> Line2D:
    """Markers without a line between them."""
    return Line2D(list(xs), list(ys), linestyle="none", marker=marker, markersize=size, **look)


def paper_marker(xs: Sequence[float], ys: Sequence[float], fill: str = "white") -> Line2D:
    """Hollow diamonds: white inside, so that they show on any bar."""
    return dots(xs, ys, "D", 3.6, markeredgewidth=0.8, zorder=5, markerfacecolor=fill, markeredgecolor=style.INK)


def cross(xs: Sequence[float], ys: Sequence[float], marker: str, colour: str) -> Line2D:
    """The mark of a run that gave no value."""
    return dots(xs, ys, marker, 4.5, markeredgewidth=1.1, zorder=6, markeredgecolor=colour)


def values(panel: Panel) -> list[float]:
    """Every value of ``panel``: its own, the paper's, and the limit."""
    measured = [mark.value for mark in panel.marks if mark.value is not None]
    return [*measured, *panel.reported, *([panel.limit[0]] if panel.limit else [])]


def scale_y(axes: Axes, panel: Panel, *, from_zero: bool) -> None:
    """Range, ticks and grid of y. Logarithmic only if every value is above zero, so that none is left out."""
    reached = values(panel)
    ends = [end for mark in panel.marks for end in (mark.low, mark.high) if end is not None]
    axes.yaxis.grid(True)
    if not reached:
        axes.set_ylim(0, 1)
        axes.set_yticks([])
    elif panel.log_y and min(reached) > 0:
        reached += [end for end in ends if end > 0]
        axes.set_yscale("log")
        axes.set_ylim(*_log_ends(min(reached) / 1.3, max(reached) * 1.15))
        log_ticks(axes.yaxis, *axes.get_ylim())
    else:
        reached += ends
        axes.set_ylim(*_linear(min(reached), max(reached), from_zero))
        linear_ticks(axes.yaxis, 6)


def _linear(low: float, high: float, from_zero: bool) -> tuple[float, float]:
    if from_zero or 0 <= low < 0.4 * high:
        low, high = min(low, 0.0), max(high, 0.0)
    space = 0.07 * (high - low) or abs(high) * 0.1 or 1.0
    return (low - space if low != 0 else 0.0), (high + space if high != 0 else 0.0 if low < 0 else space)


def _log_ends(low: float, high: float) -> tuple[float, float]:
    """The next 1, 2 or 5 times a power of ten that is not above ``low``, and the next that is not below ``high``."""
    powers = range(math.floor(math.log10(low)) - 1, math.floor(math.log10(high)) + 2)
    steps = [step * 10.0**power for power in powers for step in _STEPS]
    least = max(step for step in steps if step <= low * (1 + 1e-9))
    return least, min(step for step in steps if step >= high * (1 - 1e-9))


def log_ticks(axis: Axis, low: float, high: float) -> None:
    """Powers of ten, with 2 and 5 between where the range is short; unlabelled ticks between show that it is a log."""
    steps = _STEPS if math.log10(high / low) < 2 else (1,)
    axis.set_major_locator(LogLocator(subs=steps, numticks=8))
    axis.set_major_formatter(StrMethodFormatter(NUMBER))
    axis.set_minor_locator(LogLocator(subs=range(1, 10), numticks=8))
    axis.set_minor_formatter(NullFormatter())


def linear_ticks(axis: Axis, count: int) -> None:
    """About ``count`` ticks at round numbers."""
    axis.set_major_locator(MaxNLocator(nbins=count, steps=[1, 2, 5, 10]))
    axis.set_major_formatter(StrMethodFormatter(NUMBER))


def label_x(axes: Axes, ticks: Sequence[float], labels: Sequence[str]) -> None:
    """Ticks with labels that do not touch: on a line, else wrapped, else slanted, else with some left out."""
    points = [float(x) for x, _ in axes.transData.transform([(tick, axes.get_ylim()[0]) for tick in ticks])]
    gap = min((b - a for a, b in pairwise(sorted(points))), default=float(axes.bbox.width))
    texts = [style.plain(label) for label in labels]
    if _are_apart(points, texts) and _near(axes, points, texts):
        return _set_x(axes, ticks, texts, 0)
    for breaks in (" ", " -_/"):
        wrapped = [style.wrap(text, gap - 4, lines=3, breaks=breaks) for text in texts]
        if all(_whole(text, lines, breaks) for text, lines in zip(texts, wrapped, strict=True)):
            return _set_x(axes, ticks, wrapped, 0)
    if gap >= _SLANTED:
        lines = 2 if gap >= 2.4 * _SLANTED else 1
        return _set_x(axes, ticks, [style.wrap(text, 90, lines=lines, breaks=" -_/") for text in texts], 40)
    kept: dict[float, str] = {}
    for x, text in sorted(zip(points, texts, strict=True), reverse=True):
        if _are_apart([x, *kept], [text, *kept.values()]):
            kept[x] = text
    _set_x(axes, ticks, [kept.get(x, "") for x in points], 0)


def _are_apart(points: Sequence[float], texts: Sequence[str]) -> bool:
    placed = sorted((x, style.width(text)) for x, text in zip(points, texts, strict=True))
    return all(b - a >= (wide + wider) / 2 + 3 for (a, wide), (b, wider) in pairwise(placed))


def _near(axes: Axes, points: Sequence[float], texts: Sequence[str]) -> bool:
    """Whether no label reaches far beyond the axes."""
    low, high = axes.bbox.x0 - _BEYOND, axes.bbox.x1 + _BEYOND
    halves = [style.width(text) / 2 for text in texts]
    return all(low <= x - half and x + half <= high for x, half in zip(points, halves, strict=True))


def _whole(text: str, wrapped: str, breaks: str) -> bool:
    """Whether ``wrapped`` parts no word and leaves nothing out."""
    ends = [line[-1:] for line in wrapped.split("\n")[:-1]]
    return wrapped.replace("\n", "").replace(" ", "") == text.replace(" ", "") and (
        all(end in breaks for end in ends) or wrapped.replace("\n", " ") == text
    )


def _set_x(axes: Axes, ticks: Sequence[float], labels: Sequence[str], slant: int) -> None:
    axes.set_xticks(ticks, labels)
    axes.tick_params(axis="x", labelrotation=slant)
    for label in axes.get_xticklabels():
        label.set_rotation_mode("anchor" if slant == 40 else "default")
        label.set_horizontalalignment("right" if slant == 40 else "center")


def limit(axes: Axes, panel: Panel, legend: Legend) -> None:
    """A dashed line across, named in the legend, where it covers nothing."""
    if panel.limit is not None:
        value, label = panel.limit
        dashed: dict[str, Any] = {"color": style.INK, "linestyle": (0, (4, 2)), "linewidth": 0.9}
        axes.axhline(value, zorder=4, **dashed)
        legend.add(4, label, Line2D([], [], **dashed))


_BAR_WITH_ENDS = Path([(-1, -2), (1, -2), (0, -2), (0, 2), (-1, 2), (1, 2)], [1, 2, 1, 2, 1, 2])


def interval(axes: Axes, x: float, low: float, high: float, legend: Legend, colour: str = style.INK) -> None:
    """A 95 % interval as a thin line with ends, on a white one that sets it off from dark bars."""
    for ink, extra in (("white", 0.9), (colour, 0.0)):
        line = Line2D([x, x], [low, high], color=ink, linewidth=0.7 + extra, zorder=4)
        line.set(marker="_", markersize=3.2 + extra, markeredgewidth=0.7 + extra)
        axes.add_line(line)
    legend.interval(dots([], [], _BAR_WITH_ENDS, 7, color=style.INK, markeredgewidth=0.7))


def failure(axes: Axes, x: float, marker: str, colour: str, *, aside: float = 0, up: float = 5.5) -> None:
    """A mark at the foot of ``x``: ``aside`` points to the right and ``up`` points above the axis."""
    line = cross([x], [0], marker, colour)
    figure = axes.get_figure(root=True)
    assert figure is not None
    shift = ScaledTranslation(aside / 72, up / 72, figure.dpi_scale_trans)
    line.set_transform(blended_transform_factory(axes.transData, axes.transAxes) + shift)
    line.set_clip_on(False)
    axes.add_artist(line)
