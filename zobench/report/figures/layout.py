"""Puts a figure together: title, legend, panels in a row or one above the other, remarks; nothing overlaps or is cut.

Sizes are in points. What stands around the axes is measured, then the axes take what is left of the width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backend_bases import RendererBase
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.legend import Legend as Box
from matplotlib.text import Text

from zobench.report.chart import Chart, Panel
from zobench.report.figures import style
from zobench.report.figures.marks import Legend

Fit = Callable[[], None]
"""What is left to do once an axes' width is known; may be called again when it changes."""

Pads = tuple[float, float, float, float]
"""What the labels around axes take: left, right, above, below."""

MARGIN, GAP, BESIDE = 4.0, 6.0, 12.0
"""Around the figure, between its parts one above the other, and between panels side by side."""

_LEADING = 1.25
_HANDLE, _BETWEEN = 20.0, 10.0
"""Of a legend's row: what stands before a label, and between entries."""


@dataclass(frozen=True, slots=True)
class Frame:
    """What a kind of figure draws with: the axes of one panel, the look of its series, the whole figure's legend."""

    axes: Axes
    panel: Panel
    chart: Chart
    looks: tuple[style.Swatch, ...]
    legend: Legend


@dataclass(frozen=True, slots=True)
class Cell:
    """Axes with their height, the width that they need, and what is left to do; ``names``: title, x and y label."""

    axes: Axes
    height: float
    need: float
    fit: Fit
    names: tuple[str, str, str]


def blank(width: float) -> Figure:
    """An empty figure whose pixels are points."""
    figure = Figure(figsize=(width / 72, 4), dpi=72, facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def arrange(figure: Figure, rows: Sequence[Sequence[Cell]], title: str, legend: Legend, foot: Sequence[str]) -> None:
    """Places everything and sets the figure's height."""
    width = figure.get_figwidth() * 72
    room = width - 2 * MARGIN
    heading = style.wrap(title, room, size=style.LARGE, weight="bold", lines=3)
    head = _lines(figure, heading, style.LARGE, weight="bold")
    boxes = _legend(figure, legend, room)
    remarks = [
        _lines(figure, style.wrap(text, room), style.SMALL, color=style.MUTED) for text in foot if style.plain(text)
    ]
    above: list[tuple[Text | Box, float]] = [
        (head, _tall(head) + GAP if heading else 0.0),
        *((box, _box_height(figure, box) + 3) for box in boxes),
    ]
    top = MARGIN + sum(height for _, height in above) + GAP
    bottom = MARGIN + sum(_tall(text) + 2 for text in remarks) + (GAP if remarks else 0)
    _place(figure, rows, top, bottom)
    _stack(figure, above, remarks)


def _lines(figure: Figure, text: str, size: float, **look: Any) -> Text:
    return figure.text(0, 0, text, size=size, ha="left", va="top", linespacing=_LEADING, **look)


def _tall(text: Text) -> float:
    return (text.get_text().count("\n") + 1) * float(text.get_fontsize()) * _LEADING


def _box_height(figure: Figure, box: Box) -> float:
    return float(box.get_window_extent(_renderer(figure)).height)


def _renderer(figure: Figure) -> RendererBase:
    canvas: Any = figure.canvas  # of Agg, see blank()
    renderer: RendererBase = canvas.get_renderer()
    return renderer


def _legend(figure: Figure, legend: Legend, room: float) -> list[Box]:
    """The legend's rows, each as long as fits; entries read from left to right."""
    rows: list[list[tuple[str, Artist]]] = []
    left = 0.0
    for label, handle in legend.items():
        label = style.wrap(label, room - _HANDLE - 4, lines=2)
        wide = _HANDLE + max(style.width(line) for line in label.split("\n")) + 1
        if left < wide:
            rows.append([])
            left = room
        rows[-1].append((label, handle))
        left -= wide + _BETWEEN
    return [_row(figure, row) for row in rows]


def _row(figure: Figure, items: Sequence[tuple[str, Artist]]) -> Box:
    em = style.SMALL
    return figure.legend(
        [handle for _, handle in items],
        [label for label, _ in items],
        ncols=len(items),
        loc="upper left",
        frameon=False,
        borderpad=0,
        borderaxespad=0,
        columnspacing=_BETWEEN / em,
        handlelength=(_HANDLE - 4) / em,
        handletextpad=4 / em,
    )


def _place(figure: Figure, rows: Sequence[Sequence[Cell]], top: float, bottom: float) -> None:
    """The axes: three rounds, because labels depend on widths and widths on what the labels take."""
    cells = [cell for row in rows for cell in row]
    for cell in cells:
        cell.axes.set_position((0.15, 0.15, 0.7, 0.7))
    for last in (False, False, True):
        pads = [[_pads(figure, cell) for cell in row] for row in rows]
        _set(figure, rows, pads, top, bottom)
        for cell in cells if not last else []:
            _wrap_names(cell)
            cell.fit()


def _wrap_names(cell: Cell) -> None:
    title, x_label, y_label = cell.names
    length, tall = float(cell.axes.bbox.width), float(cell.axes.bbox.height)
    cell.axes.set_title(style.wrap(title, length, size=style.NORMAL, lines=3))
    cell.axes.set_xlabel(style.wrap(x_label, length, size=style.NORMAL, lines=2))
    cell.axes.set_ylabel(style.wrap(y_label, tall, size=style.NORMAL, lines=3))


def _pads(figure: Figure, cell: Cell) -> Pads:
    """What the axes' labels take at the left, right, top and bottom."""
    inner, outer = (
        cell.axes.get_window_extent(),
        cell.axes.get_tightbbox(_renderer(figure), bbox_extra_artists=cell.axes.child_axes),
    )
    assert outer is not None
    return inner.x0 - outer.x0, outer.x1 - inner.x1, outer.y1 - inner.y1, inner.y0 - outer.y0


def _set(
    figure: Figure, rows: Sequence[Sequence[Cell]], pads: Sequence[Sequence[Pads]], top: float, bottom: float
) -> None:
    """Positions of the axes, in line with each other, and the figure's height."""
    width = figure.get_figwidth() * 72
    columns = range(len(rows[0]))
    left = [max(row[i][0] for row in pads) for i in columns]
    right = [max(row[i][1] for row in pads) for i in columns]
    over = [max(pad[2] for pad in row) for row in pads]
    under = [max(pad[3] for pad in row) for row in pads]
    heights = [max(cell.height for cell in row) for row in rows]
    free = width - 2 * MARGIN - sum(left) - sum(right) - BESIDE * (len(columns) - 1)
    needs = [max(row[i].need for row in rows) for i in columns]
    total = top + sum(over) + sum(under) + sum(heights) + GAP * (len(rows) - 1) + bottom
    figure.set_figheight(total / 72)
    y = total - top
    for row, above, below, height in zip(rows, over, under, heights, strict=True):
        y -= above + height
        x = MARGIN
        for i in columns:
            share = max(10.0, free * needs[i] / sum(needs))
            row[i].axes.set_position(((x + left[i]) / width, y / total, share / width, height / total))
            x += left[i] + share + right[i] + BESIDE
        y -= below + GAP


def _stack(figure: Figure, above: Sequence[tuple[Text | Box, float]], remarks: Sequence[Text]) -> None:
    """Title and legend from the top down, remarks up from the bottom."""
    width, total = figure.get_figwidth() * 72, figure.get_figheight() * 72
    y = total - MARGIN
    for part, height in above:
        if isinstance(part, Text):
            part.set_position((MARGIN / width, y / total))
        else:
            part.set_bbox_to_anchor((MARGIN / width, y / total))
        y -= height
    y = MARGIN
    for text in reversed(remarks):
        text.set(position=(MARGIN / width, y / total), va="bottom")
        y += _tall(text) + 2
