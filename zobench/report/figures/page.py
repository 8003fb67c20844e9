"""Builds the figure of a chart: chooses its size, draws each panel with the module of its kind, arranges them."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from matplotlib.figure import Figure

from zobench.report.chart import Chart, Panel
from zobench.report.figures import bars, heatmap, layout, lines, messages, style, timeline
from zobench.report.figures.marks import Legend

_KINDS: dict[str, ModuleType] = {"bars": bars, "lines": lines, "heatmap": heatmap, "timeline": timeline}
_AROUND = 48.0
"""Points that the labels of one panel's y axis take, about."""


def figure(chart: Chart) -> Figure:
    """The figure of a checked ``chart``; call it with the look of :func:`zobench.report.figures.style.context`."""
    panels = chart.panels or (Panel(),)
    width, columns = _size(chart.kind, panels)
    whole, legend = layout.blank(width), Legend()
    looks = style.swatches(chart) or ((),)
    frames = [
        layout.Frame(whole.add_subplot(), panel, chart, look, legend) for panel, look in zip(panels, looks, strict=True)
    ]
    cells = [_cell(chart, frame, width / columns - _AROUND) for frame in frames]
    rows = [cells[i : i + columns] for i in range(0, len(cells), columns)]
    layout.arrange(whole, rows, chart.title, legend, (*chart.remarks, chart.source))
    return whole


def _size(kind: str, panels: tuple[Panel, ...]) -> tuple[float, int]:
    """Width of the figure, and panels in a row: a column of a paper if that holds them, else the page, else stacked."""
    needed = sum(_drawer(kind, panel).need(panel) + _AROUND for panel in panels)
    labels = dict.fromkeys(series.label for panel in panels for series in panel.series)
    named = sum(style.width(label) + 30 for label in labels)
    if kind == "timeline" or needed > style.PAGE:
        return style.PAGE, 1
    return style.COLUMN if needed <= style.COLUMN and named <= 3 * style.COLUMN else style.PAGE, len(panels)


def _drawer(kind: str, panel: Panel) -> Any:
    return messages if messages.needed(panel) else _KINDS[kind]


def _cell(chart: Chart, frame: layout.Frame, length: float) -> layout.Cell:
    axes, drawer = frame.axes, _drawer(chart.kind, frame.panel)
    fit = drawer.paint(frame)
    names = (axes.get_title(loc="left"), axes.get_xlabel(), axes.get_ylabel())
    return layout.Cell(axes, drawer.height(frame.panel, length), drawer.need(frame.panel), fit, names)
