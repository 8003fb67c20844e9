"""Draws charts with matplotlib, without touching its global state: one small module per kind of figure."""

from __future__ import annotations

import hashlib
import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zobench.report.chart import Chart, Panel

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = ("png", "svg", "pdf")

_UNDATED: dict[str, dict[str, Any]] = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None, "Format": None, "Type": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
_DOTS_PER_INCH = 300


def draw(chart: Chart) -> Figure:
    """The figure of ``chart``, as large as it is printed. Raises ``ValueError`` for a chart that cannot be drawn."""
    _check(chart)
    from zobench.report.figures import layout, style

    with style.context(_key(chart)):
        return layout.figure(chart)


def save(chart: Chart, stem: Path, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Writes ``chart`` to ``stem`` with each format's suffix; the same chart gives the same bytes each time."""
    figure = draw(chart)
    stem.parent.mkdir(parents=True, exist_ok=True)
    paths = [stem.with_name(f"{stem.name}.{form}") for form in formats]
    for path, form in zip(paths, formats, strict=True):
        path.write_bytes(_bytes(chart, figure, form))
    return paths


def _bytes(chart: Chart, figure: Figure, form: str) -> bytes:
    from zobench.report.figures import style

    buffer = io.BytesIO()
    metadata = {**_UNDATED[form], "Title": style.plain(chart.title)}
    with style.context(_key(chart)):
        figure.savefig(buffer, format=form, dpi=_DOTS_PER_INCH if form == "png" else 72, metadata=metadata)
    return buffer.getvalue()


def _key(chart: Chart) -> str:
    """A short name of everything in ``chart``: charts of one name, one per machine, have different ids too."""
    return hashlib.sha256(repr(chart).encode()).hexdigest()[:12]


def _check(chart: Chart) -> None:
    """Raises ``ValueError`` with the first thing in ``chart`` that cannot be drawn."""
    for panel in chart.panels:
        if not all(math.isfinite(number) for number in _numbers(panel)):
            raise ValueError(f"every number of a chart must be finite, but {chart.name} has one that is not")
    if not chart.drawn:
        raise ValueError(f"a chart must have something to draw, but {chart.name} has none: {'; '.join(chart.lacking)}")


def _numbers(panel: Panel) -> list[float]:
    numbers = [number for mark in panel.marks for number in (mark.value, mark.low, mark.high)]
    numbers += [*panel.reported, *panel.xs, *panel.sizes, *([panel.limit[0]] if panel.limit else [])]
    numbers += [time for event in panel.events for time in (event.start, event.end)]
    return [number for number in numbers if number is not None]
