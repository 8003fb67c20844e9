"""Builds the figure of a chart: chooses its size, draws each panel with the module of its kind, arranges them."""

from __future__ import annotations

from types import ModuleType

from matplotlib.figure import Figure

from zobench.report.chart import Chart, Panel
from zobench.report.figures import bars, heatmap, layout, lines, pareto, style, timeline
from zobench.report.figures.marks import Legend

_KINDS: dict[str, ModuleType] = {
    "bars": bars, "lines": lines, "heatmap": heatmap, "timeline": timeline, "pareto": pareto,
}  # fmt: skip
_AROUND = 48.0
"""Points that the labels of one panel's y axis take, about."""


def figure(chart: Chart) -> Figure:
    """The figure of a checked ``chart``, with a remark for each panel that has nothing to draw; call it with the look
    of :func:`zobench.report.figures.style.context`."""
    panels = chart.drawn
    width, columns = _size(chart.kind, panels)
    whole, legend = layout.blank(width), Legend()
    looks = style.swatches(chart)
    heights = [_KINDS[chart.kind].height(panel, width / columns - _AROUND) for panel in panels]
    if columns > 1:
        needs = [_KINDS[chart.kind].need(panel) for panel in panels]
        grid = whole.add_gridspec(1, columns, width_ratios=needs)
    else:
        grid = whole.add_gridspec(len(panels), 1, height_ratios=heights)
    cells = [
        _cell(layout.Frame(whole.add_subplot(grid[i]), panel, chart, looks[i], legend), heights[i])
        for i, panel in enumerate(panels)
    ]
    rows = [cells[i : i + columns] for i in range(0, len(cells), columns)]
    layout.arrange(whole, rows, chart.title, legend, (*chart.remarks, *chart.lacking, chart.source))
    return whole


def _size(kind: str, panels: tuple[Panel, ...]) -> tuple[float, int]:
    """Width of the figure, and panels in a row: a column of a paper if that holds them, else the page, else stacked."""
    needed = sum(_KINDS[kind].need(panel) + _AROUND for panel in panels)
    labels = dict.fromkeys(series.label for panel in panels for series in panel.series)
    named = sum(style.width(label) + 30 for label in labels)
    if kind == "timeline" or needed > style.PAGE:
        return style.PAGE, 1
    return style.COLUMN if needed <= style.COLUMN and named <= 3 * style.COLUMN else style.PAGE, len(panels)


def _cell(frame: layout.Frame, height: float) -> layout.Cell:
    axes = frame.axes
    fit = _KINDS[frame.chart.kind].paint(frame)
    return layout.Cell(axes, height, fit, names=(axes.get_title(loc="left"), axes.get_xlabel(), axes.get_ylabel()))
