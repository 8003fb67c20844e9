"""Writes a book as one HTML page with everything inline: no network, no other file, the same bytes every time."""

from __future__ import annotations

import base64
import hashlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from zobench.recipes.reference import PAPERS
from zobench.report import leaderboard
from zobench.report.book import Artifact, Book
from zobench.report.chart import Chart
from zobench.report.html.machines import machines
from zobench.report.html.runs import runs
from zobench.report.sheet import CellText, Group, Sheet, plain

if TYPE_CHECKING:
    import jinja2

OWN = "zobench's own"
STATUSES = ("measured", "partly", "predicted", "not measured", "not a measurement")

_TOLD = {
    "partly": ("Missing", "some of its values were not measured here"),
    "not measured": ("Missing", "nothing was measured here yet"),
    "predicted": ("Predicted", "none of these numbers was measured here; below stands for which GPU they are"),
}
"""Status -> what a reader must know of it before the numbers: a word, and a sentence."""
_COLUMN = 480  # pixels; a figure of one column of a paper is narrower
_ENLARGED = 1.4  # figures are drawn for print, in smaller type than a screen's
_PLACE = Path(__file__).parent
_NOTHING = ("", "-", "~-", "—", "·", "n/a")
_NUMBER = re.compile(r"[<>~≈\u00d7x(]*[-+\u2212]?\d")


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """A drawn chart. ``width`` and ``height`` in pixels keep its place while the picture is read."""

    chart: Chart
    address: str
    width: int
    height: int

    @property
    def wide(self) -> bool:
        """Whether a phone should scroll it rather than shrink it."""
        return self.width > _COLUMN


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """An artifact as the page shows it. ``status`` is one of ``STATUSES``; ``told``: a word and a sentence on what
    is not there or not measured, or two empty texts."""

    artifact: Artifact
    status: str
    told: tuple[str, str]
    short: str
    figures: tuple[Figure, ...]


def write(book: Book, svgs: Mapping[str, Sequence[str]]) -> str:
    """``book`` as one HTML page. ``svgs``: the text of each of an artifact's charts, in order, by artifact name.

    Nothing that stands in a result can become markup or script. Raises ``ImportError`` without jinja2.
    """
    template = _environment().get_template("page.html")
    style, script = (_PLACE.joinpath(name).read_text(encoding="utf-8") for name in ("style.css", "script.js"))
    listed = runs(book.results)
    drawn = svgs.get(book.opening.chart.name) if book.opening else None
    sections = [_section(artifact, svgs.get(artifact.name)) for artifact in book.artifacts]
    return template.render(
        book=book,
        policy=policy(style, script),
        opening=_figure(book.opening.chart, drawn[0]) if book.opening and drawn else None,
        style=style,
        script=script,
        papers=_papers(sections),
        names={artifact.name for artifact in book.artifacts},
        leaderboard=leaderboard.NAME,
        places={leaderboard.path_of(one): run.name for one, run in zip(book.results, listed, strict=True)},
        counts=Counter(section.status for section in sections),
        statuses=STATUSES,
        machines=machines(book.results),
        runs=listed,
        evaluated=any(run.accuracy.text for run in listed),
    )


def _environment() -> jinja2.Environment:
    """Templates that escape everything, and put every text on one line without control characters."""
    try:
        import jinja2
        from markupsafe import Markup
    except ImportError:
        raise ImportError(
            "an HTML report needs jinja2, but it is not installed; pip install 'zobench[report]'"
        ) from None
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_PLACE),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: value if isinstance(value, Markup) else plain(str(value)),
    )
    environment.filters["alignment"] = _alignment
    return environment


def policy(style: str, script: str) -> str:
    """The Content-Security-Policy that lets exactly this style and this script run, and loads nothing."""
    return (
        f"default-src 'none'; script-src {_digest(script)}; style-src {_digest(style)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _papers(sections: Sequence[Section]) -> list[tuple[str, list[Section]]]:
    """Sections under the papers' names, in the book's order."""
    names = dict.fromkeys(section.artifact.paper for section in sections)
    return [
        (PAPERS.get(name, name) or OWN, [section for section in sections if section.artifact.paper == name])
        for name in names
    ]


def _section(artifact: Artifact, svgs: Sequence[str] | None) -> Section:
    figures = [_figure(*pair) for pair in zip(artifact.charts, svgs, strict=True)] if svgs is not None else []
    how = status(artifact)
    return Section(
        artifact=artifact, status=how, told=_TOLD.get(how, ("", "")), short=_short(artifact), figures=tuple(figures)
    )


def _short(artifact: Artifact) -> str:
    """``Table 5`` for zo2/table5, ``Figure 3`` for zo2/figure3; the title of what has no number."""
    number = re.search(r"(?:table|figure|fig)([A-Z]?\d+)$", artifact.name)
    return f"{artifact.kind.capitalize()} {number[1]}" if artifact.paper and number else artifact.title


def _figure(chart: Chart, svg: str) -> Figure:
    """As an image: inside one, the picture's own styles and names touch nothing else, and no script can run."""
    root = re.search(r"<svg\b[^>]*>", svg)
    box = re.search(r'viewBox="\S+ \S+ ([\d.]+) ([\d.]+)"', root[0]) if root else None
    if root is None or box is None:
        raise ValueError(f"the picture of {chart.name} must be an SVG with a viewBox, but is not; draw it again")
    width, height = (round(float(points) * 4 / 3 * _ENLARGED) for points in box.groups())
    address = f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"
    return Figure(chart=chart, address=address, width=width, height=height)


def status(artifact: Artifact) -> str:
    """How much of ``artifact`` was measured: one of ``STATUSES``."""
    tones = {entry.tone for sheet in artifact.sheets for entry in _body(sheet)}
    if "value" not in tones and (artifact.sheets or not any(_drawn(chart, "measured") for chart in artifact.charts)):
        if "predicted" in tones or any(_drawn(chart, "predicted") for chart in artifact.charts):
            return "predicted"
        return "not a measurement" if not artifact.runner and tones == {"reported"} else "not measured"
    beside = any(
        sheet.source.startswith("paper ") for sheet in artifact.sheets
    )  # then what is not measured is reported
    missing = "reported" in tones or (not beside and "blank" in tones)
    return "partly" if missing else "measured"


def _body(sheet: Sheet) -> list[CellText]:
    return [entry for group in sheet.groups for row in group.body for entry in row]


def _drawn(chart: Chart, source: str) -> bool:
    """Whether ``chart`` shows anything that is of ``source``, "measured" or "predicted"."""
    marks = [mark for panel in chart.panels for series in panel.series for mark in series.marks]
    recorded = any(panel.events for panel in chart.panels if panel.source == source)
    return recorded or any(mark.value is not None and mark.source == source for mark in marks)


def _alignment(group: Group) -> list[str]:
    """``num`` for each column of ``group`` in which every value is a number, to be set flush right, else ``text``."""
    columns = [[row[k] for row in group.body] for k in range(len(group.columns))]
    return ["text" if any(map(_is_word, column)) else "num" for column in columns]


def _is_word(entry: CellText) -> bool:
    return entry.tone not in ("failure", "blank") and entry.text not in _NOTHING and not _NUMBER.match(entry.text)
