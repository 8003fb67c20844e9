"""A heat map: one row per series, one column per position, every value written into its cell.

A panel's ``limit`` parts the colours: values below and above it differ in hue, as ratios on both sides of 1 should.
"""

from __future__ import annotations

from typing import Any

from matplotlib import colormaps
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap, LinearSegmentedColormap, LogNorm, Normalize, to_hex
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle

from zobench.report.chart import Mark, Panel
from zobench.report.figures import scales, style
from zobench.report.figures.scales import Fit, Frame, cross
from zobench.report.sheet import rounded

_EMPTY: dict[str, Any] = {"edgecolor": "#BBBBBB", "hatch": "xxxxxx", "linewidth": 0}
_LABEL = 110.0


def need(panel: Panel) -> float:
    """Points of width that the row labels, the cells and the colour bar take."""
    texts = [rounded(value, ",.0f") for value in scales.values(panel)]
    cell = max([style.width(f"◇ {text}") for text in texts], default=20.0) + 8
    labels = max([min(style.width(series.label), _LABEL) for series in panel.series], default=0.0)
    return labels + cell * len(panel.positions) + 40


def height(panel: Panel) -> float:
    """Points of height of the axes: a line or two in each cell."""
    wrapped = any("\n" in style.wrap(series.label, _LABEL, lines=2) for series in panel.series)
    return max(72.0, (24.0 if panel.reported else 20.0 if wrapped else 16.0) * len(panel.series))


def paint(frame: Frame) -> Fit:
    """Draws the frame's panel; what it returns sets the labels along x once the width is known."""
    axes, panel = frame.axes, frame.panel
    axes.set(title=panel.title, xlabel=panel.x_label)
    columns, rows = len(panel.positions), len(panel.series)
    axes.set_xlim(-0.5, columns - 0.5)
    axes.set_ylim(rows - 0.5, -0.5)
    mapping = _mapping(panel)
    for row, series in enumerate(panel.series):
        for column, (mark, reported) in enumerate(zip(series.marks, series.paper, strict=True)):
            _cell(frame, column, row, mark, reported, mapping)
    axes.set_yticks(range(rows), [style.wrap(series.label, _LABEL, lines=2) for series in panel.series])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    _bar(frame, mapping)
    return lambda: scales.label_x(axes, range(columns), panel.positions)


def _mapping(panel: Panel) -> ScalarMappable:
    """Value -> colour: light to dark, or two hues that part at the limit; both log where asked and possible."""
    reached = [mark.value for mark in panel.marks if mark.value is not None] or [0.0]
    low, high = min(reached), max(reached)
    log = panel.log_y and low > 0
    centre = panel.limit[0] if panel.limit else None
    if centre is not None and log and centre > 0:
        reach = max(high / centre, centre / low, 1.05)
        low, high = centre / reach, centre * reach
    elif centre is not None:
        reach = max(high - centre, centre - low, abs(centre) * 0.05) or 1.0
        low, high = centre - reach, centre + reach
    elif low == high:
        low, high = (low / 1.1, high * 1.1) if log else (low - (abs(low) * 0.1 or 1), high + (abs(high) * 0.1 or 1))
    norm = LogNorm(low, high) if log and low > 0 else Normalize(low, high)
    return ScalarMappable(norm, _between("YlGnBu", 0.05, 0.9) if centre is None else _between("PuOr_r", 0.12, 0.88))


def _between(name: str, low: float, high: float) -> Colormap:
    """The colours of ``name`` from ``low`` to ``high`` (0 to 1): on its extremes no text can be read."""
    whole = colormaps[name]
    return LinearSegmentedColormap.from_list(name, [whole(low + (high - low) * i / 255) for i in range(256)])


def _cell(frame: Frame, x: int, y: int, mark: Mark, reported: float | None, mapping: ScalarMappable) -> None:
    axes, legend = frame.axes, frame.legend
    fill, hidden = "#FFFFFF", mark.value is None or mark.source == "predicted"
    if mark.value is None:
        axes.add_patch(_square(x, y, facecolor=fill, **_EMPTY))
    else:
        norm: Any = mapping.norm  # its type admits arrays only
        fill = to_hex(mapping.cmap(norm(mark.value)))
        axes.add_patch(_square(x, y, facecolor=fill, linewidth=0))
        if mark.source == "predicted":
            axes.add_patch(_square(x, y, facecolor="none", edgecolor=style.MUTED, hatch=style.HATCH, linewidth=0))
            legend.predicted()
    axes.add_patch(_square(x, y, facecolor="none", edgecolor="white", linewidth=1.2))
    if mark.value is None and mark.failure:
        height = y - (0.2 if reported is not None else 0)
        axes.add_line(Line2D([x], [height], marker="s", markersize=8, color="white", zorder=5))
        axes.add_line(cross([x], [height], legend.failure(mark.failure), style.INK))
    elif mark.value is None:
        legend.add(3, "not run", Patch(facecolor=fill, **_EMPTY))
    lines = [rounded(mark.value, ",.0f")] if mark.value is not None else [""] if mark.failure else []
    if reported is not None:
        lines.append(f"◇ {rounded(reported, ',.0f')}")
        legend.paper()
    back = {"facecolor": fill, "edgecolor": "none", "pad": 0.7} if hidden else None  # else a hatch would hide the text
    look: dict[str, Any] = {"ha": "center", "va": "center_baseline", "color": style.readable(fill), "bbox": back}
    for text, height_of in zip(lines, ([y - 0.2, y + 0.2] if len(lines) == 2 else [y]), strict=False):
        if text:
            axes.text(x, height_of, text, zorder=6, **look)


def _square(x: int, y: int, **look: Any) -> Rectangle:
    return Rectangle((x - 0.5, y - 0.5), 1, 1, **look)


def _bar(frame: Frame, mapping: ScalarMappable) -> None:
    """The colour bar beside the map, with the unit; where the colours part there is a line."""
    axes, panel = frame.axes, frame.panel
    inset = axes.inset_axes((1.02, 0, 0.025, 1))
    figure = axes.get_figure(root=True)
    assert figure is not None
    bar = figure.colorbar(mapping, cax=inset)
    bar.outline.set_visible(False)
    assert bar.solids is not None
    bar.solids.set_edgecolor("face")  # else some viewers show gaps between the colours
    low, high = inset.get_ylim()
    if isinstance(mapping.norm, LogNorm):
        scales.log_ticks(inset.yaxis, low, high)
    else:
        scales.linear_ticks(inset.yaxis, 4)
    if panel.limit is not None:
        inset.axhline(panel.limit[0], color=style.INK, linewidth=0.9)
        frame.legend.add(4, panel.limit[1], Line2D([], [], color=style.INK, linewidth=0.9))
    bar.set_label(style.wrap(panel.y_label, height(panel), size=style.NORMAL, lines=2))
