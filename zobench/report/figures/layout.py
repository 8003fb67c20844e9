"""Puts a figure together: title, legend, panels in a row or one above the other, remarks; nothing overlaps or is cut.

Sizes are in points. matplotlib's constrained layout places the panels. What it cannot do is done here: axes of a given
height in a figure as high as that needs, labels that wrap, and a legend whose rows take as many entries as fit (its
own legends have columns of one width, and it keeps room for one of them only).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backend_bases import RendererBase
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.legend import Legend as Box
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from zobench.report.chart import Chart, Panel
from zobench.report.figures import style
from zobench.report.figures.marks import Legend

Fit = Callable[[], None]
"""What is left to do once an axes' width is known; may be called again when it changes."""

MARGIN, GAP, BESIDE = 4.0, 6.0, 12.0
"""Around the figure, between its parts one above the other, and between panels side by side."""

_LEADING = 1.25
_SPARE = 200.0
"""Added to a figure's height before it is known: axes without any height would not be laid out."""
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
    """Axes with their height and what is left to do; ``names``: title, x and y label."""

    axes: Axes
    height: float
    fit: Fit
    names: tuple[str, str, str]


def blank(width: float) -> Figure:
    """An empty figure whose pixels are points."""
    figure = Figure(figsize=(width / 72, 4), dpi=72, facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def arrange(figure: Figure, rows: Sequence[Sequence[Cell]], title: str, legend: Legend, foot: Sequence[str]) -> None:
    """Places everything and sets the figure's height; the axes of ``rows`` stand in a grid of ``figure``."""
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
    """The axes below ``top`` and above ``bottom``, and the figure's height: in three rounds, because labels depend on
    widths, and both on what the labels take."""
    wanted = sum(max(cell.height for cell in row) for row in rows)
    total = top + bottom + 2 * wanted + _SPARE
    for _ in range(3):
        for cell in itertools.chain(*rows):
            _wrap_names(cell)
            cell.fit()
        _constrain(figure, total, top, bottom)
        total = round(total + wanted - sum(float(row[0].axes.bbox.height) for row in rows), 6)
    _constrain(figure, total, top, bottom)


def _wrap_names(cell: Cell) -> None:
    title, x_label, y_label = cell.names
    length, tall = float(cell.axes.bbox.width), float(cell.axes.bbox.height)
    cell.axes.set_title(style.wrap(title, length, size=style.NORMAL, lines=3))
    cell.axes.set_xlabel(style.wrap(x_label, length, size=style.NORMAL, lines=2))
    cell.axes.set_ylabel(style.wrap(y_label, tall, size=style.NORMAL, lines=3))


def _constrain(figure: Figure, total: float, top: float, bottom: float) -> None:
    """Lays the axes out once, at 72 dots per inch: one that stays would do it anew at each format's resolution."""
    width = figure.get_figwidth() * 72
    figure.set_figheight(total / 72)
    left, low = MARGIN - BESIDE / 2, bottom - GAP / 2  # matplotlib pads all sides of each panel, also the outer ones
    rectangle = (left / width, low / total, 1 - 2 * left / width, (total - top + GAP / 2 - low) / total)
    ConstrainedLayoutEngine(w_pad=BESIDE / 144, h_pad=GAP / 144, wspace=0, hspace=0, rect=rectangle).execute(figure)
    for axes in figure.axes:  # the solver's last digits depend on what the process has drawn before
        axes.set_position(Bbox(axes.get_position().get_points().round(9)))
        axes.set_in_layout(True)  # which a position that is set ends


def _stack(figure: Figure, above: Sequence[tuple[Text | Box, float]], remarks: Sequence[Text]) -> None:
    """Title and legend from the top down, remarks up from the bottom."""
    width, total = figure.get_figwidth() * 72, figure.get_figheight() * 72
    y = total - MARGIN
    for item, height in above:
        if isinstance(item, Text):
            item.set_position((MARGIN / width, y / total))
        else:
            item.set_bbox_to_anchor((MARGIN / width, y / total))
        y -= height
    y = MARGIN
    for text in reversed(remarks):
        text.set(position=(MARGIN / width, y / total), va="bottom")
        y += _tall(text) + 2
