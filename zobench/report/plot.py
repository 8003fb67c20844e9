"""Plot: how one figure is laid out, read strictly from a TOML file; all but timelines are a table, drawn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from zobench import recipes
from zobench.machine.texts import toml_of
from zobench.report import contest as contests
from zobench.report import table as tables
from zobench.report import toml
from zobench.report.chart import KINDS, Chart, Panel
from zobench.report.contest import ContestTable
from zobench.report.table import Table
from zobench.report.toml import Where, check
from zobench.runspec import named, suggestion


@dataclass(frozen=True, kw_only=True, slots=True)
class Axes:
    """Labels and scales. ``limit``: (bytes, label) of a line across panels of memory, such as a device's."""

    x: str = ""
    log_x: bool = False
    log_y: bool = False
    limit: tuple[float, str] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class TimelinePanel:
    """One panel of a timeline, or one of the curves: what the best result that satisfies ``where`` recorded."""

    title: str
    where: Where


@dataclass(frozen=True, kw_only=True, slots=True)
class Plot:
    """A figure of ``kind``: ``table`` drawn, or ``lanes`` one above the other.

    Bars and lines have rows along x, a series per column, a panel per metric; a heat map rows down, columns across.
    """

    name: str
    kind: str
    title: str
    paper: str
    artifact: str
    runner: str
    caption: str
    axes: Axes
    table: Table | None
    lanes: tuple[TimelinePanel, ...]
    contest: ContestTable | None = None
    """Whose methods are drawn as points."""
    is_figure: ClassVar[bool] = True


def nothing(plot: Plot, message: str) -> Chart:
    """The figure of which there is nothing to draw, as ``message`` says."""
    kind = "lines" if plot.kind == "curves" else plot.kind
    return Chart(name=plot.name, kind=kind, title=plot.title, source="", panels=(Panel(message=message),),
                 remarks=(plot.caption,) if plot.caption else ())  # fmt: skip


_WORDS: dict[str, Any] = dict.fromkeys(tables.WORDS, str)
_KINDS = (*KINDS, "curves")
_OF_RUNS = ("timeline", "curves")
"""Kinds that show what single runs recorded; all others draw a table."""
_OF_TASKS = named(lambda field: field.of_task)
"""What a figure of curves leaves open: it shows the task that most of its runs have."""


def load_plot(path: Path) -> Plot:
    """The figure described by the TOML file at ``path``. Raises a one-line ``ValueError`` that names the mistake."""
    path = Path(path)
    try:
        data = toml_of(path)
        kind = data.get("kind", "")
        if kind not in _KINDS:
            raise ValueError(f"`kind` must be one of {', '.join(_KINDS)}, but got {kind!r}; {suggestion(kind, _KINDS)}")
        if kind == "pareto":
            return _of_contest(path.stem, data)
        return _lanes(path.stem, kind, data) if kind in _OF_RUNS else _drawn(path.stem, kind, data)
    except ValueError as error:
        raise ValueError(f"{path.name}: {error}") from error


def _drawn(stem: str, kind: str, data: Mapping[str, Any]) -> Plot:
    optional: dict[str, Any] = {**_WORDS, **tables.BODY, "kind": str, "axes": dict}
    check("the figure", data, {"title": str, "rows": dict, "columns": list, "metrics": list}, optional)
    table = tables.parse(stem, {key: value for key, value in data.items() if key not in ("kind", "axes")})
    if kind == "lines" and not all(_is_number(row.header) for row in table.rows):
        raise ValueError("lines need numbers along x, but a row is none; use one numeric field in [rows.product]")
    rows = data["rows"] if kind != "heatmap" else {}  # a heat map has its columns along x
    axes = _axes({**_along(rows), **data.get("axes", {})})
    return _plot(stem, kind, data, axes, table, ())


def _along(rows: Mapping[str, Any]) -> dict[str, str]:
    """The name of the axis along x that follows from ``rows``: the field of their product, if it is one field."""
    fields = list(rows.get("product", {}))
    return {"x": fields[0].replace("_", " ").capitalize()} if len(fields) == 1 else {}


def _lanes(stem: str, kind: str, data: Mapping[str, Any]) -> Plot:
    check("the figure", data, {"title": str, "panels": list}, {**_WORDS, "kind": str, "where": dict})
    for item in data["panels"]:
        check("[[panels]]", item, {"title": str, "where": dict})
    usual = {field: values for field, values in tables.USUAL.items() if kind == "timeline" or field not in _OF_TASKS}
    common = {**usual, **toml.where("where", data.get("where", {}))}
    lanes = [
        TimelinePanel(title=item["title"], where={**common, **toml.where("panels.where", item["where"])})
        for item in data["panels"]
    ]
    return _plot(stem, kind, data, Axes(), None, tuple(lanes))


def _of_contest(stem: str, data: Mapping[str, Any]) -> Plot:
    """The figure of a protocol's table: a point for each method."""
    check("the figure", data, {"kind": str, "title": str, "table": str}, {"caption": str})
    path = recipes.find("tables", data["table"])
    shown = toml_of(path)
    if shown.get("kind") != "protocol":
        raise ValueError(f'`table` must be one with kind = "protocol", but {data["table"]} is not; name another')
    table = contests.parse(path.stem, shown)
    return Plot(
        name=stem, kind="pareto", title=data["title"], paper="", artifact="", runner=table.runner,
        caption=data.get("caption", ""), axes=Axes(), table=None, lanes=(), contest=table,
    )  # fmt: skip


def _plot(
    stem: str, kind: str, data: Mapping[str, Any], axes: Axes, table: Table | None, lanes: tuple[TimelinePanel, ...]
) -> Plot:
    words = {word: data.get(word, "") for word in tables.WORDS if word != "baseline"}
    name = f"{words['paper']}/{words['artifact']}" if words["paper"] else stem
    return Plot(**words, name=name, kind=kind, axes=axes, table=table, lanes=lanes)


def _axes(data: Mapping[str, Any]) -> Axes:
    check("[axes]", data, {}, {"x": str, "log_x": bool, "log_y": bool, "limit": dict})
    limit = data.get("limit")
    if limit is not None:
        check("`limit` in [axes]", limit, {"value": toml.NUMBER, "label": str})
    return Axes(**{**data, "limit": (float(limit["value"]), limit["label"]) if limit is not None else None})


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
