"""Everything a report holds, as data: artifacts with their sheets, charts and claims, the summary, the runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from zobench.report.chart import Chart
from zobench.report.sheet import Sheet
from zobench.result import Result

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Artifact:
    """One table or figure. ``name`` like "zo2/table5"; ``paper`` its paper's short name, or "" for zobench's own.

    ``runner``: the matrix that measures it, or "".
    ``command``: what makes it, if it is not ``zobench reproduce NAME``.
    ``sheets``: its tables (of a figure: the numbers that it draws); ``frame``: the same as data; ``charts``: one per
    machine.
    """

    name: str
    kind: str  # "table" or "figure"
    title: str
    paper: str
    runner: str
    sheets: tuple[Sheet, ...]
    frame: pd.DataFrame | None = None
    charts: tuple[Chart, ...] = ()
    command: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Opening:
    """The opening of a report: one chart, and some sentences."""

    chart: Chart
    sentences: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportContents:
    """A report. ``summary``: the one-page comparison with the papers; ``problems``: results that could not be read."""

    title: str
    summary: tuple[Sheet, ...]
    artifacts: tuple[Artifact, ...]
    results: tuple[Result, ...]
    problems: tuple[str, ...] = ()
    opening: Opening | None = None
