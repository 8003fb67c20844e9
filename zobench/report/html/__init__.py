"""Writes a report as one HTML page with everything inline: no network, no other file, the same bytes every time. Each
run's complete JSON is embedded once."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zobench.recipes.reference import PAPERS
from zobench.report import leaderboard
from zobench.report.chart import Chart
from zobench.report.contents import Artifact, ReportContents
from zobench.report.sheet import CellText, ColumnGroup, Sheet, plain, rounded, without_blanks
from zobench.result import Result
from zobench.store import machine_of, metrics
from zobench.store.query import grouped

if TYPE_CHECKING:
    import jinja2
    from markupsafe import Markup

PARTS = (
    ("measured", "Measured here", ("measured", "partly"), ""),
    ("predicted", "Only predicted", ("predicted",), "No number of these was measured here; each says for which GPU it "
     "is predicted, and how far off such predictions are."),
    ("reported", "Only reported, or not measured yet", ("not measured", "not a measurement"), "Nothing of these was "
     "measured here; where a paper reports values, they are shown."),
)  # fmt: skip
"""The parts of the page: place, heading, the statuses of its tables and figures, and a sentence. All but the first are
folded."""
_COLUMN = 480  # pixels; a figure of one column of a paper is narrower
_ENLARGED = 1.4  # figures are drawn for print, in smaller type than a screen's
_ROOM = 4000  # pixels of height that the figures of what was measured take; further ones are folded
_FOLDER = Path(__file__).parent
_NOTHING = ("", "-", "~-", "—", "·", "n/a")
_NUMBER = re.compile(r"[<>~≈\u00d7x(]*[-+\u2212]?\d")
_ESCAPED = {ord(character): f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"}
_RUN_NUMBERS = (
    ("throughput", 1, ".0f"), ("step_seconds", 1, ".2f"), ("device_peak_bytes", 2**20, ".0f"),
    ("accuracy", 0.01, ".1f"),
)  # fmt: skip
"""(key, base units of the printed unit, format) of the numbers in a run's line."""


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
    """An artifact as the page shows it. ``status`` is one of those of ``PARTS``; ``short`` names it in the contents;
    ``figures`` are those that no section before has, which ``same_as`` names; the first ``unfolded`` of them are seen
    at once; ``sheets`` hold something measured, or are all where none does, and ``others`` are the rest."""

    artifact: Artifact
    status: str
    short: str
    figures: tuple[Figure, ...]
    unfolded: int
    same_as: str
    sheets: tuple[Sheet, ...]
    others: tuple[Sheet, ...]

    @property
    def lacking(self) -> list[str]:
        """Why charts, or panels of them, are not drawn."""
        return list(dict.fromkeys(text for chart in self.artifact.charts if not chart.drawn for text in chart.lacking))


def write(contents: ReportContents, svgs: Mapping[str, Sequence[str]]) -> str:
    """``contents`` as one HTML page. ``svgs``: the text of each of an artifact's charts, in order, by artifact name.

    Nothing that stands in a result can become markup or script.
    """
    template = _environment().get_template("page.html")
    style, script = (_FOLDER.joinpath(name).read_text(encoding="utf-8") for name in ("style.css", "script.js"))
    listed = runs(contents.results)
    drawn = svgs.get(contents.opening.chart.name) if contents.opening else None
    sections = _sections(contents.artifacts, svgs)
    return template.render(
        contents=contents,
        policy=policy(style, script),
        opening=_figure(contents.opening.chart, drawn[0]) if contents.opening and drawn else None,
        style=style,
        script=script,
        parts=[(*part[:2], [item for item in sections if item.status in part[2]], part[3]) for part in PARTS],
        names={artifact.name for artifact in contents.artifacts},
        leaderboard=leaderboard.NAME,
        places={leaderboard.path_of(item): run.name for item, run in zip(contents.results, listed, strict=True)},
        machines=machines(contents.results),
        runs=listed,
        repeated=any(run.result.repeats for run in listed),
        evaluated=any(run.numbers[-1][0] for run in listed),
    )


def _environment() -> jinja2.Environment:
    """Templates that escape everything, and put every text on one line without control characters."""
    import jinja2
    from markupsafe import Markup

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: value if isinstance(value, Markup) else plain(str(value)),
    )
    environment.filters["alignment"] = _alignment
    environment.filters["prose"] = _prose
    return environment


def _prose(text: str) -> Markup:
    """``text`` with what it has between backticks as code."""
    from markupsafe import Markup, escape

    parts = plain(text).split("`")
    if not len(parts) % 2:
        return escape(plain(text))
    return Markup("").join(Markup("<code>{}</code>").format(part) if i % 2 else part for i, part in enumerate(parts))


def policy(style: str, script: str) -> str:
    """The Content-Security-Policy that lets exactly this style and this script run, and loads nothing."""
    return (
        f"default-src 'none'; script-src {_digest(script)}; style-src {_digest(style)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _sections(artifacts: Sequence[Artifact], svgs: Mapping[str, Sequence[str]]) -> list[Section]:
    """A section for each artifact, in the report's order; what two figures both draw is drawn by the first."""
    made: list[Section] = []
    first: dict[object, str] = {}
    room = _ROOM
    for artifact in artifacts:
        charts = [chart for chart in artifact.charts if chart.drawn]
        owners = [first.setdefault((chart.kind, chart.drawn), artifact.name) for chart in charts]
        drawn = zip(charts, svgs[artifact.name], owners, strict=True) if artifact.name in svgs else ()
        figures = tuple(_figure(chart, svg) for chart, svg, owner in drawn if owner == artifact.name)
        measured = [sheet for sheet in artifact.sheets if any(entry.tone == "value" for entry in _body(sheet))]
        shown = measured or list(artifact.sheets)
        is_measured = status(artifact) in PARTS[0][2]
        room -= figures[0].height if figures and is_measured else 0
        made.append(Section(
            artifact=artifact, status=status(artifact), short=_short(artifact), figures=figures,
            unfolded=int(bool(figures) and (room >= 0 or not is_measured)),
            same_as=next((owner for owner in owners if owner != artifact.name), "") if not figures else "",
            sheets=tuple(map(without_blanks, shown)),
            others=tuple(without_blanks(sheet) for sheet in artifact.sheets if sheet not in shown),
        ))  # fmt: skip
    return made


def _short(artifact: Artifact) -> str:
    """``ZO2 table 5`` for zo2/table5, ``NeurIPS'24 figure 4`` for zo-offloading-neurips24/figure4; else the words of
    the name."""
    number = re.search(r"(table|figure|fig)([A-Z]?\d+)$", artifact.name)
    if artifact.paper and number:
        return f"{PAPERS.get(artifact.paper, artifact.paper).rpartition(', ')[2]} {artifact.kind} {number[2]}"
    return re.sub(r"[_/]+", " ", artifact.name).capitalize()


def _figure(chart: Chart, svg: str) -> Figure:
    """As an image: inside one, the picture's own styles and names touch nothing else, and no script can run."""
    box = re.search(r'viewBox="\S+ \S+ ([\d.]+) ([\d.]+)"', svg)
    assert box is not None  # matplotlib writes one
    width, height = (round(float(points) * 4 / 3 * _ENLARGED) for points in box.groups())
    address = f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"
    return Figure(chart=chart, address=address, width=width, height=height)


def status(artifact: Artifact) -> str:
    """How much of ``artifact`` was measured: one of the statuses of ``PARTS``."""
    tones = {entry.tone for sheet in artifact.sheets for entry in _body(sheet)}
    if "value" not in tones and (artifact.sheets or not any(_drawn(chart, "measured") for chart in artifact.charts)):
        if "predicted" in tones or any(_drawn(chart, "predicted") for chart in artifact.charts):
            return "predicted"
        return "not a measurement" if not artifact.runner and tones == {"reported"} else "not measured"
    # beside a paper's sheet, what was not measured has the tone "reported" there
    has_paper = any(sheet.source.startswith("paper ") for sheet in artifact.sheets)
    missing = "reported" in tones or (not has_paper and "blank" in tones)
    return "partly" if missing else "measured"


def _body(sheet: Sheet) -> list[CellText]:
    return [entry for group in sheet.groups for row in group.body for entry in row]


def _drawn(chart: Chart, source: str) -> bool:
    """Whether ``chart`` shows anything that is of ``source``, "measured" or "predicted"."""
    marks = [mark for panel in chart.panels for mark in panel.marks]
    recorded = any(panel.events for panel in chart.panels if panel.source == source)
    return recorded or any(mark.value is not None and mark.source == source for mark in marks)


def _alignment(group: ColumnGroup) -> list[str]:
    """``num`` for each column of ``group`` in which every value is a number, to be set flush right, else ``text``."""
    columns = [[row[k] for row in group.body] for k in range(len(group.columns))]
    return ["text" if any(map(_is_word, column)) else "num" for column in columns]


def _is_word(entry: CellText) -> bool:
    return entry.tone not in ("failure", "blank") and entry.text not in _NOTHING and not _NUMBER.match(entry.text)


def machines(results: Sequence[Result]) -> list[dict[str, Any]]:
    """The name of every machine among ``results``, what it is, and (outcome, count) of its runs."""
    return [
        {
            "name": name,
            "about": " / ".join(sorted({run.environment.description for run in runs} - {""})),
            "outcomes": sorted(Counter(run.ending for run in runs).items()),
        }
        for name, runs in grouped(results, machine_of).items()
    ]


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One line of the list. ``name`` is its id on the page; ``numbers`` are (text, exact value to sort by) of
    throughput, step time, memory and accuracy, empty where there is none; ``json`` is what its file holds, of a cell
    with repeats its first run's, on one line."""

    name: str
    result: Result
    engine: str
    dtype: str
    settings: str
    numbers: tuple[tuple[str, str], ...]
    machine: str
    json: Markup


def runs(results: Sequence[Result]) -> list[Run]:
    """Every result in the given order."""
    seen: Counter[str] = Counter()
    listed = []
    for result in results:
        spec, values = result.spec, metrics(result)
        engine, dtype, *settings = spec.label.removeprefix(f"{spec.model} ").split(" ")
        settings += [f"median of {len(result.runs)} processes"] * bool(result.repeats)
        seen[spec.hash] += 1  # the same spec on a second machine has the same hash
        listed.append(Run(
            name=f"run-{spec.hash}" + (f"-{seen[spec.hash]}" if seen[spec.hash] > 1 else ""), result=result,
            engine=engine, dtype=dtype, settings=" ".join(settings), machine=machine_of(result), json=embedded(result),
            numbers=tuple(_number(values.get(key), scale, form) for key, scale, form in _RUN_NUMBERS),
        ))  # fmt: skip
    return listed


def _number(value: float | None, scale: float, form: str) -> tuple[str, str]:
    return ("", "") if value is None else (rounded(value / scale, form), repr(value))


def embedded(result: Result) -> Markup:
    """The JSON of ``result`` for a script element: whatever a string in it says, it cannot end that element."""
    from markupsafe import Markup

    text = json.dumps(result.to_dict(), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return Markup(text.translate(_ESCAPED))
