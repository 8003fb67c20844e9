"""The shared look of all figures: sizes, fonts, colours, and plain text that fits.

Lengths are in points (1/72 inch), also where matplotlib would say pixels: figures are laid out at 72 dots per inch.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import matplotlib
from matplotlib.backends.backend_agg import RendererAgg
from matplotlib.colors import to_hex, to_rgb
from matplotlib.font_manager import FontProperties

from zobench.report.chart import Chart
from zobench.report.sheet import plain as plain

COLUMN, PAGE = 3.4 * 72, 7.0 * 72
"""Widths of a figure: one column of a two-column paper, or both."""

SMALL, NORMAL, LARGE = 7.0, 7.5, 8.5
"""Sizes of text: ticks, legend and remarks; axis labels and panel titles; the figure's title."""

INK, MUTED, FAINT = "#222222", "#555555", "#DDDDDD"
FONT = "DejaVu Sans"
"""It comes with matplotlib, so that text is as wide on every machine."""

SWATCHES = (
    ("#0064A0", "o", "blue"),
    ("#EBA51E", "s", "orange"),
    ("#771C50", "^", "wine"),
    ("#12A67C", "v", "green"),
    ("#A3D8F4", "P", "sky"),
    ("#14161F", "X", "black"),
    ("#CC79A7", "<", "pink"),
    ("#F0E442", ">", "yellow"),
)
"""Colour, marker and name of the series in turn. The hues are near those of Okabe and Ito, which differ for any colour
vision; lightness differs too, by ten of 100 at least among the first six, so that grey print tells them apart."""

HATCH = "//////"

_TICKS: dict[str, Any] = {
    "color": MUTED,
    "labelcolor": INK,
    "labelsize": SMALL,
    "major.pad": 2.5,
    "major.size": 2.5,
    "major.width": 0.6,
    "minor.size": 1.5,
    "minor.width": 0.4,
}
_RC: dict[str, Any] = {
    "axes.axisbelow": True,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.labelpad": 3.0,
    "axes.labelsize": NORMAL,
    "axes.linewidth": 0.6,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlepad": 4.0,
    "axes.titlesize": NORMAL,
    "font.family": [FONT],
    "font.size": SMALL,
    "grid.color": FAINT,
    "grid.linewidth": 0.5,
    "hatch.linewidth": 0.5,
    "legend.fontsize": SMALL,
    "lines.linewidth": 1.1,
    "path.simplify": False,
    "pdf.fonttype": 42,
    # Text stays text: it can be searched, copied and read aloud, and a file is half the size. The common sans-serif
    # fonts are no wider than DejaVu Sans, for which the places were computed, so none runs over where it is missing.
    "svg.fonttype": "none",
    "text.color": INK,
    "text.hinting": "none",
    "text.parse_math": False,
    **{f"{axis}tick.{key}": value for axis in "xy" for key, value in _TICKS.items()},
}


@contextlib.contextmanager
def context(salt: str) -> Iterator[None]:
    """The look, whatever the user's own settings are, which hold again afterwards. ``salt`` seeds the ids of an SVG."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        settings: Any = matplotlib.rcParams
        settings.update(_RC)
        settings["svg.hashsalt"] = salt
        yield


@dataclass(frozen=True, slots=True)
class Swatch:
    """How one series looks."""

    colour: str
    marker: str

    @property
    def tint(self) -> str:
        """The lighter colour of what was predicted."""
        return lighter(self.colour, 0.6)


def swatches(chart: Chart) -> tuple[tuple[Swatch, ...], ...]:
    """Returns for each panel the look of each series; a label looks the same in all panels.

    Raises ``ValueError`` if there are more than can be told apart.
    """
    ranks: dict[tuple[str, int], int] = {}
    panels = []
    for panel in chart.drawn:
        labels = [series.label for series in panel.series]
        keys = [(label, labels[:i].count(label)) for i, label in enumerate(labels)]
        panels.append([ranks.setdefault(key, len(ranks)) for key in keys])
    if len(ranks) > len(SWATCHES) and chart.kind != "heatmap":
        raise ValueError(
            f"a figure must have at most {len(SWATCHES)} different series, but {chart.name} has {len(ranks)}; "
            "split it into several"
        )
    looks = [Swatch(colour, marker) for colour, marker, _ in SWATCHES]
    return tuple(tuple(looks[rank % len(looks)] for rank in panel) for panel in panels)


def colour(name: str) -> str:
    """The colour called ``name`` among the swatches."""
    return next(code for code, _, label in SWATCHES if label == name)


def lighter(code: str, share: float) -> str:
    """``code`` mixed with white; ``share`` is how much of it is white."""
    red, green, blue = (channel + (1 - channel) * share for channel in to_rgb(code))
    return to_hex((red, green, blue))


def readable(code: str) -> str:
    """Black or white, whichever has more contrast on a fill of colour ``code``."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(code)]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "#FFFFFF" if luminance < 0.21 else INK


@functools.lru_cache(maxsize=4096)
def width(text: str, size: float = SMALL, weight: str = "normal") -> float:
    """How wide ``text`` is on one line."""
    font = FontProperties(family=[FONT], size=size, weight=weight)
    return float(_renderer().get_text_width_height_descent(plain(text), font, ismath=False)[0])


@functools.cache
def _renderer() -> Any:
    create: Any = RendererAgg  # matplotlib leaves it untyped
    return create(1, 1, 72)


def wrap(
    text: str, limit: float, *, size: float = SMALL, weight: str = "normal", lines: int = 12, breaks: str = " "
) -> str:
    """``text`` in lines no wider than ``limit``, parted after one of ``breaks``, or within words that are too long.

    What does not fit on so many lines ends in "…".
    """
    rows: list[str] = []
    for word in re.findall(rf"[^{re.escape(breaks)}]*[{re.escape(breaks)}]?", plain(text)):
        while word:
            joined = rows[-1] + word if rows else word
            if rows and width(joined.rstrip(), size, weight) <= limit:
                rows[-1], word = joined, ""
                continue
            fitting = _fitting(word, limit, size, weight)
            rows.append(word[:fitting])
            word = word[fitting:]
            if len(rows) > lines:
                return "\n".join([*map(str.rstrip, rows[: lines - 1]), _cut(rows[lines - 1], limit, size, weight)])
    return "\n".join(map(str.rstrip, rows))


def _fitting(word: str, limit: float, size: float, weight: str) -> int:
    """How many characters of ``word`` fit, at least one."""
    count = 1
    while count < len(word) and width(word[: count + 1].rstrip(), size, weight) <= limit:
        count += 1
    return count


def _cut(row: str, limit: float, size: float, weight: str) -> str:
    while row and width(row + "…", size, weight) > limit:
        row = row[:-1]
    return row.rstrip() + "…"
