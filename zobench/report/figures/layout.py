"""Puts a figure together: title, legend, panels in a row or one above the other, remarks; nothing overlaps or is cut.

Sizes are in points. matplotlib's constrained layout places everything: the title is the legend's, the remarks are a
label of the whole figure's x axis. What it has not are axes of a given height in a figure as high as that needs, and
labels that wrap, so it is executed three times.
"""

from __future__ import annotations

from types import ModuleType

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.transforms import Bbox

from zobench.report.chart import Chart, Panel
from zobench.report.figures import bars, heatmap, lines, pareto, style, timeline
from zobench.report.figures.scales import Frame, Legend

_KINDS: dict[str, ModuleType] = {
    "bars": bars, "lines": lines, "heatmap": heatmap, "timeline": timeline, "pareto": pareto,
}  # fmt: skip
_AROUND = 48.0
"""Points that the labels of one panel's y axis take, about."""

MARGIN = 4.0
"""Around the figure and between its parts."""

_SPARE = 200.0
"""Added to a figure's height before it is known: axes without any height would not be laid out."""
_HANDLE, _BETWEEN = 20.0, 10.0
"""The widths in a legend's row of what stands before a label, and between entries."""


def figure(chart: Chart) -> Figure:
    """The figure of a checked ``chart``, with a remark for each panel that has nothing to draw; call it with the look
    of :func:`zobench.report.figures.style.context`."""
    kind, panels = _KINDS[chart.kind], chart.drawn
    width, columns = _size(chart.kind, panels)
    whole, legend = Figure(figsize=(width / 72, 4), dpi=72, facecolor="white"), Legend()  # whose pixels are points
    FigureCanvasAgg(whole)
    looks = style.swatches(chart)
    needs, heights = [kind.need(panel) for panel in panels], [kind.height(panel) for panel in panels]
    ratios = {"width_ratios": needs[:columns], "height_ratios": heights[::columns]}
    grid = whole.add_gridspec(len(panels) // columns, columns, **ratios)
    cells = []
    for i, panel in enumerate(panels):
        axes = whole.add_subplot(grid[i])
        fit = kind.paint(Frame(axes, panel, chart, looks[i], legend))
        cells.append((axes, fit, axes.get_title(loc="left"), axes.get_xlabel(), axes.get_ylabel()))
    _heads_and_foot(whole, chart, legend)
    wanted = max(heights) if columns > 1 else sum(heights)
    total = 2 * wanted + _SPARE
    for _ in range(3):  # labels depend on widths, and both on what the labels take
        for axes, fit, *names in cells:
            _wrap_names(axes, *names)
            fit()
        _constrain(whole, total)
        total = round(total + wanted - sum(float(axes.bbox.height) for axes, *_ in cells[::columns]), 6)
    _constrain(whole, total)
    return whole


def _size(kind: str, panels: tuple[Panel, ...]) -> tuple[float, int]:
    """Width of the figure, and panels in a row: a column of a paper if that holds them, else the page, else stacked."""
    needed = sum(_KINDS[kind].need(panel) + _AROUND for panel in panels)
    labels = dict.fromkeys(series.label for panel in panels for series in panel.series)
    named = sum(style.width(label) + 30 for label in labels)
    if needed > style.PAGE:
        return style.PAGE, 1
    return style.COLUMN if needed <= style.COLUMN and named <= 3 * style.COLUMN else style.PAGE, len(panels)


def _heads_and_foot(figure: Figure, chart: Chart, legend: Legend) -> None:
    """The title, as the legend's where there is one, and the remarks."""
    width = figure.get_figwidth() * 72
    room = width - 2 * MARGIN
    heading = style.wrap(chart.title, room, size=style.LARGE, weight="bold", lines=3)
    if legend.items():
        _legend(figure, legend, heading, room)
    else:
        figure.suptitle(heading, x=MARGIN / width, ha="left", size=style.LARGE, weight="bold")
    foot = (*chart.remarks, *chart.lacking, chart.source)
    remarks = [style.wrap(text, room) for text in foot if style.plain(text)]
    if remarks:
        figure.supxlabel("\n".join(remarks), x=MARGIN / width, ha="left", size=style.SMALL, color=style.MUTED)


def _legend(figure: Figure, legend: Legend, heading: str, room: float) -> None:
    """The legend above the panels, below the figure's title, in as many columns as fit."""
    labels = [style.wrap(label, room - _HANDLE - 4, lines=2) for label, _ in legend.items()]
    wide = [_HANDLE + max(map(style.width, label.split("\n"))) + 1 for label in labels]

    def taken(columns: int) -> float:
        return float(sum(max(part) + _BETWEEN for part in np.array_split(wide, columns)))

    em = style.SMALL
    figure.legend(
        [handle for _, handle in legend.items()], labels, loc="outside upper left", alignment="left", frameon=False,
        ncols=next((n for n in range(len(labels), 1, -1) if taken(n) <= room), 1), title=heading,
        title_fontproperties={"size": style.LARGE, "weight": "bold"}, borderpad=0, borderaxespad=MARGIN / em,
        columnspacing=_BETWEEN / em, handlelength=(_HANDLE - 4) / em, handletextpad=4 / em,
    )  # fmt: skip


def _wrap_names(axes: Axes, title: str, x_label: str, y_label: str) -> None:
    length, tall = float(axes.bbox.width), float(axes.bbox.height)
    axes.set_title(style.wrap(title, length, size=style.NORMAL, lines=3))
    axes.set_xlabel(style.wrap(x_label, length, size=style.NORMAL, lines=2))
    axes.set_ylabel(style.wrap(y_label, tall, size=style.NORMAL, lines=3))


def _constrain(figure: Figure, total: float) -> None:
    """Lays the figure out once, at 72 dots per inch: an engine that stays would do it anew at each format's."""
    figure.set_figheight(total / 72)
    ConstrainedLayoutEngine(w_pad=MARGIN / 72, h_pad=MARGIN / 72, wspace=0, hspace=0).execute(figure)
    for axes in figure.axes:  # the solver's last digits depend on what the process has drawn before
        axes.set_position(Bbox(axes.get_position().get_points().round(9)))
        axes.set_in_layout(True)  # which a position that is set ends
