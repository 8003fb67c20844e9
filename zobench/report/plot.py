"""Plot: how one figure is laid out, read strictly from a TOML file; all but timelines are a table, drawn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from zobench import recipes
from zobench.machine.reader import checked, read
from zobench.machine.texts import toml_of
from zobench.report import contest as contests
from zobench.report import table as tables
from zobench.report.chart import KINDS, Chart, Panel
from zobench.report.contest import ContestTable
from zobench.report.table import Case, Table, Where
from zobench.runspec import check_choice, named


@dataclass(frozen=True, kw_only=True, slots=True)
class Limit:
    """A line across panels of memory at ``value`` bytes, such as a device's."""

    value: float
    label: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Axes:
    """Labels and scales."""

    x: str = ""
    log_x: bool = False
    log_y: bool = False
    limit: Limit | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Plot:
    """A figure of ``kind``: ``table`` drawn, or ``panels`` one above the other, whose runs all satisfy ``where``: each
    a timeline, or one of the curves, as the best of its runs recorded it.

    Bars and lines have rows along x, a series per column, a panel per metric; a heat map rows down, columns across.
    """

    name: str
    kind: str
    title: str
    paper: str = ""
    artifact: str = ""
    runner: str = ""
    caption: str = ""
    where: Where = field(default_factory=dict)
    panels: tuple[Case, ...]
    axes: Axes = Axes()
    table: Table | None = None
    contest: ContestTable | None = None
    """Whose methods are drawn as points."""
    is_figure: ClassVar[bool] = True


def nothing(plot: Plot, message: str) -> Chart:
    """The figure of which there is nothing to draw, as ``message`` says."""
    kind = "lines" if plot.kind == "curves" else plot.kind
    return Chart(name=plot.name, kind=kind, title=plot.title, source="", panels=(Panel(message=message),),
                 remarks=(plot.caption,) if plot.caption else ())  # fmt: skip


_KINDS = (*KINDS, "curves")
_OF_RUNS = ("timeline", "curves")
"""Kinds that show what single runs recorded; all others draw a table."""
_OF_TASKS = named(lambda field: field.of_task)
"""The fields that a figure of curves leaves open: it shows the task that most of its runs have."""


def parse(stem: str, data: Mapping[str, Any]) -> Plot:
    """The figure in ``data``; ``stem`` names it if it is no paper's. ``ValueError`` names a mistake in it."""
    kind = data.get("kind", "")
    check_choice("kind", kind, _KINDS)
    if kind == "pareto":
        return _of_contest(stem, data)
    return _recorded(stem, data) if kind in _OF_RUNS else _drawn(stem, kind, data)


def _drawn(stem: str, kind: str, data: Mapping[str, Any]) -> Plot:
    axes = read(Axes, data.get("axes", {}), "[axes]")
    body = {key: value for key, value in data.items() if key not in ("kind", "axes")}
    table = tables.parse(stem, body, "the figure", sections=("rows", "axes", "kind"), groups="metrics")
    try:
        for row in table.rows if kind == "lines" else ():
            float(row.header)
    except ValueError:
        raise ValueError(
            "lines need numbers along x, but a row is none; use one numeric field in [rows.product]"
        ) from None
    fields = list(data["rows"].get("product", {})) if kind != "heatmap" else []  # it has its columns along x
    along = fields[0].replace("_", " ").capitalize() if len(fields) == 1 else ""
    return Plot(
        name=table.name, kind=kind, title=table.title, paper=table.paper, artifact=table.artifact, runner=table.runner,
        caption=table.caption, panels=(), axes=replace(axes, x=axes.x or along), table=table,
    )  # fmt: skip


def _recorded(stem: str, data: Mapping[str, Any]) -> Plot:
    plot = read(Plot, data, "the figure", name=tables.name_of(stem, data), axes=Axes(), table=None, contest=None)
    usual = {key: value for key, value in tables.USUAL.items() if plot.kind == "timeline" or key not in _OF_TASKS}
    panels = tuple(replace(panel, where={**usual, **plot.where, **panel.where}) for panel in plot.panels)
    return replace(plot, panels=panels)


def _of_contest(stem: str, data: Mapping[str, Any]) -> Plot:
    """The figure of a protocol's table: a point for each method."""
    keys = {"kind": str, "title": str, "table": str, "caption": str}
    stated = checked(data, keys, "the figure", ("title", "table"))
    path = recipes.find("tables", stated["table"])
    shown = toml_of(path)
    if shown.get("kind") != "protocol":
        raise ValueError(f'`table` must be one with kind = "protocol", but {stated["table"]} is not; name another')
    table = contests.parse(path.stem, shown)
    return Plot(
        name=stem, kind="pareto", title=stated["title"], runner=table.runner, caption=stated.get("caption", ""),
        panels=(), contest=table,
    )  # fmt: skip
