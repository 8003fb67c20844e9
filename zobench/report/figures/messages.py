"""A framed sentence in place of axes that would have nothing to show."""

from __future__ import annotations

from zobench.report.chart import Panel
from zobench.report.figures import scales, style
from zobench.report.figures.layout import Fit, Frame

_LINES = 12


def needed(panel: Panel) -> bool:
    """Whether there is nothing to draw; failures are something."""
    marks = [mark for series in panel.series for mark in series.marks]
    drawn = any(mark.value is not None or mark.failure for mark in marks)
    return bool(panel.message) or not (
        drawn or panel.events or any(value is not None for series in panel.series for value in series.paper)
    )


def need(panel: Panel) -> float:
    """Points of width."""
    return 130.0


def height(panel: Panel, length: float) -> float:
    """Points of height of the frame, ``length`` wide."""
    return 16 + style.SMALL * 1.3 * (_text(panel, length).count("\n") + 1)


def paint(frame: Frame) -> Fit:
    """Frames the panel's message; what it returns wraps it to the width."""
    axes, panel = frame.axes, frame.panel
    scales.name(axes, panel.title, "", "")
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_facecolor("#F6F6F6")
    axes.spines[:].set(visible=True, color="#BBBBBB")
    text = axes.text(
        0.5, 0.5, "", transform=axes.transAxes, ha="center", va="center", color=style.MUTED, linespacing=1.25
    )
    return lambda: text.set_text(_text(panel, float(axes.bbox.width)))


def _text(panel: Panel, length: float) -> str:
    return style.wrap(panel.message or "No value: nothing was run.", length - 16, lines=_LINES)
