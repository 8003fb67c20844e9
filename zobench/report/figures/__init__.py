"""Draws charts with matplotlib, without touching its global state: one small module per kind of figure."""

from __future__ import annotations

import hashlib
import html
import io
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zobench.report.chart import KINDS, Chart, Panel

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
    """The figure of ``chart``, at the size in which it is meant to be printed.

    Raises ``ValueError`` for a chart that cannot be drawn, and ``ImportError`` where matplotlib is missing.
    """
    _check(chart)
    try:
        from zobench.report.figures import layout, style
    except ImportError as error:
        if error.name != "matplotlib":
            raise
        raise ImportError("a figure needs matplotlib, but it is not installed; pip install 'zobench[report]'") from None
    with style.context(_key(chart)):
        return layout.figure(chart)


def save(chart: Chart, stem: Path, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Writes ``chart`` to ``stem`` with each format's suffix; the same chart gives the same bytes each time."""
    wrong = next((form for form in formats if form not in FORMATS), None)
    if wrong is not None:
        raise ValueError(
            f"a figure's format must be one of {', '.join(FORMATS)}, but got {wrong!r}; choose one of them"
        )
    figure = draw(chart)
    paths = [stem.with_name(f"{stem.name}.{form}") for form in formats]
    for path, form in zip(paths, formats, strict=True):
        path.write_bytes(_bytes(chart, figure, form))
    return paths


def svg(chart: Chart) -> str:
    """``chart`` as an ``<svg>`` element to stand in a page: as wide as its place, up to 1.4 times its printed size.

    Its ids are those of no other chart.
    """
    figure, key = draw(chart), _key(chart)

    from zobench.report.figures import style

    text = _bytes(chart, figure, "svg").decode()
    ids = re.compile(r'( id="|url\(#|href="#)')  # what carries an id or refers to one
    text = re.sub("<[^>]+>", lambda tag: ids.sub(rf"\g<1>z{key}-", tag[0]), text[text.index("<svg") :])
    label = html.escape(style.plain(chart.title))
    shape = f"width:100%;max-width:{1.4 * figure.get_figwidth():.2f}in;height:auto"
    size = f'style="{shape}" role="img" aria-label="{label}"'
    return re.sub(r'(<svg[^>]*?) width="[^"]*" height="[^"]*"', lambda match: f"{match[1]} {size}", text, count=1)


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
    if chart.kind not in KINDS:
        raise ValueError(f"a chart's kind must be one of {', '.join(KINDS)}, but {chart.name} has {chart.kind!r}")
    for panel in chart.panels:
        if not all(math.isfinite(number) for number in _numbers(panel)):
            raise ValueError(f"every number of a chart must be finite, but {chart.name} has one that is not")
        count = len(panel.xs) if chart.kind == "lines" else len(panel.positions)
        counts = [len(values) for series in panel.series for values in (series.marks, series.paper)]
        if any(length != count for length in counts) or len(panel.positions) not in (0, count):
            raise ValueError(
                f"every series must have a mark and a paper's value or None for each of the {count} positions, "
                f"but one of {chart.name} does not"
            )
    if not chart.drawn:
        raise ValueError(f"a chart must have something to draw, but {chart.name} has none: {'; '.join(chart.lacking)}")


def _numbers(panel: Panel) -> list[float]:
    marks = [mark for series in panel.series for mark in series.marks]
    numbers = [number for mark in marks for number in (mark.value, mark.low, mark.high)]
    numbers += [value for series in panel.series for value in series.paper]
    numbers += [*panel.xs, *(time for event in panel.events for time in (event.start, event.end))]
    numbers += [*panel.sizes, *([panel.limit[0]] if panel.limit else [])]
    return [number for number in numbers if number is not None]
