"""Every figure draws what its table says: numbers read back from a drawing are those of CSV, Markdown and LaTeX."""

import functools
import re
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection

from tests.support.charts import bars, lines, points
from tests.support.tables import published, rows
from zobench.machine.texts import csv_of
from zobench.recipes.reference import Reference
from zobench.report import artifacts, figures
from zobench.report.chart import Chart
from zobench.report.contents import Artifact
from zobench.report.formats import latex, markdown
from zobench.report.plot import Plot
from zobench.report.sheet import rounded

PLOTS = {item.name: item for item in artifacts.load_all()[0] if isinstance(item, Plot)}
OF_CELLS = [name for name, plot in PLOTS.items() if plot.table is not None]


@pytest.fixture(scope="module", params=["published", "empty"])
def stored(request: pytest.FixtureRequest) -> str:
    """Which results are drawn."""
    return str(request.param)


@functools.cache
def made(name: str, stored: str) -> Artifact:
    return artifacts.make(PLOTS[name], published() if stored == "published" else [], Reference.load())[0]


def drawn(chart: Chart) -> list[Axes]:
    return figures.draw(chart).axes[: len(chart.drawn)] if chart.drawn else []


def near(value: float) -> str:
    return f"{value:.9g}"


@pytest.mark.parametrize("name", OF_CELLS)
def test_bars_lines_and_maps_show_the_numbers_that_are_written(name: str, stored: str) -> None:
    plot = PLOTS[name]
    artifact = made(name, stored)
    written = rows(csv_of(artifact.frame))
    machines = sorted({row["machine"] for row in written if row["machine"]}) or [""]
    assert len(artifact.charts) == len(machines)
    for chart, machine in zip(artifact.charts, machines, strict=True):
        # a prediction is of all machines, and drawn where the machine has its line
        labels = {label.text for sheet in artifact.sheets if sheet.label.endswith(machine) for label in sheet.rows}
        of_all = [row for row in written if not row["machine"] and (not machine or row["row"] in labels)]
        lines = [row for row in written if machine and row["machine"] == machine] + of_all
        if plot.kind == "heatmap":
            check_map(plot, artifact, chart, machine)
            continue
        shown_values = {panel.y_label: sorted(map(near, shown(axes)))
                 for panel, axes in zip(chart.drawn, drawn(chart), strict=True)}  # fmt: skip
        assert shown_values == expected(plot, lines)


def shown(axes: Axes) -> Iterator[float]:
    """The values of all bars, points and diamonds."""
    yield from (bar.get_y() + bar.get_height() for bar in bars(axes))
    for line in lines(axes, linestyle="None"):
        if line.get_marker() not in ("x", "+", "1", "2", "3", "_"):
            yield from (y for _, y in points(line))
    for line in lines(axes, markerfacecolor="white", linestyle="--"):
        yield from (y for _, y in points(line))


def expected(plot: Plot, rows: Sequence[dict[str, str]]) -> dict[str, list[str]]:
    """Header of a metric -> what the CSV says of each of its cells, measured or else predicted, and the paper's."""
    assert plot.table is not None
    by_header: dict[str, list[str]] = {}
    for metric in plot.table.metrics:
        cells: dict[tuple[str, str], dict[str, dict[str, str]]] = {}
        for row in rows:
            if row["metric"] == metric.name:
                source = "measured" if row["machine"] else row["source"]
                cells.setdefault((row["row"], row["column"]), {})[source] = row
        for cell in cells.values():
            if cell.get("measured", {"status": "skipped"})["status"] != "skipped":
                cell.pop("predicted", None)
            by_header.setdefault(metric.header, []).extend(
                near(float(row["value"]) / metric.scale) for row in cell.values() if row["value"]
            )
    return {header: sorted(values) for header, values in by_header.items() if values}


def check_map(plot: Plot, artifact: Artifact, chart: Chart, machine: str) -> None:
    """A cell of a map says what its column is of the baseline's in the same row: the (x) of the table, or the quotient
    of two of the paper's values."""
    base = plot.table.baseline
    for panel, axes in zip(chart.drawn, drawn(chart), strict=True):
        kind = "measured" if "measured" in panel.title else "paper"
        sheet = next(sheet for sheet in artifact.sheets if sheet.label == f"{plot.name}-{kind}-{machine or 'none'}")
        columns = [column.text for column in sheet.groups[0].columns]
        wanted = []
        for label, line in zip(sheet.rows, sheet.groups[0].body, strict=True):
            if label.text not in [series.label for series in panel.series]:
                continue
            entries = dict(zip(columns, line, strict=True))
            if kind == "paper":
                values = {head: float(entry.text) for head, entry in entries.items() if entry.text[0].isdigit()}
                wanted += [values[head] / values[base] for head in columns if {head, base} <= values.keys()]
            else:
                ratios = [re.match(r"\(x([\d.]+)", entry.detail) for head, entry in entries.items() if head != base]
                wanted += [1.0, *(float(ratio[1]) for ratio in ratios if ratio)]
        assert [float(text.get_text()) for text in axes.texts] == pytest.approx(wanted, abs=0.006)


@pytest.mark.parametrize("name", [name for name in OF_CELLS if PLOTS[name].kind != "heatmap"])
def test_the_tables_print_the_numbers_of_the_csv(name: str, stored: str) -> None:
    table = PLOTS[name].table
    assert table is not None
    artifact = made(name, stored)
    printed: dict[frozenset[str], set[str]] = {}
    for sheet in artifact.sheets:
        for group in sheet.groups:
            for label, line in zip(sheet.rows, group.body, strict=True):
                for column, entry in zip(group.columns, line, strict=True):
                    heads = (group.header.text.rstrip(" ↑↓"), label.text, column.text.rstrip(" ↑↓"))
                    printed.setdefault(frozenset(heads), set()).add(entry.text)
    texts = {"md": markdown.write(artifact.sheets), "tex": latex.write(artifact.sheets)}
    metrics = {metric.name: metric for metric in table.metrics}
    for row in rows(csv_of(artifact.frame)):
        if row["value"] and row["source"] in ("measured", "predicted"):
            metric = metrics[row["metric"]]
            shown_text = rounded(float(row["value"]) / metric.scale, metric.format)
            shown_text = f"~{shown_text}" if row["source"] == "predicted" else shown_text
            assert shown_text in printed[frozenset((metric.header, row["row"], row["column"]))]
            assert markdown.escape(shown_text) in texts["md"]
            assert latex.escape(shown_text) in texts["tex"]


def test_timelines_curves_and_points_are_those_of_their_csv(stored: str) -> None:
    for plot in PLOTS.values():
        if plot.table is None:
            artifact = made(plot.name, stored)
            written = [] if artifact.frame is None else rows(csv_of(artifact.frame))
            for chart in artifact.charts:
                own_rows = [row for row in written if row.get("figure", chart.name) == chart.name]
                _check_recorded(plot, chart, own_rows)


def _check_recorded(plot: Plot, chart: Chart, written: list[dict[str, Any]]) -> None:
    for panel, axes in zip(chart.drawn, drawn(chart), strict=True):
        if plot.kind == "timeline":
            drawn_by_kind = [patch for patch in axes.collections if isinstance(patch, PolyCollection)]
            boxes = [box for patch in drawn_by_kind for box in patch.get_paths()]
            lengths = [float(np.ptp(np.asarray(box.vertices)[:, 0])) for box in boxes]
            scale = figures.timeline.unit(chart)[1]
            numbers = [
                scale * (float(row["end_s"]) - float(row["start_s"])) for row in written if row["panel"] == panel.title
            ]
            assert sorted(lengths) == pytest.approx(sorted(numbers))
        elif plot.kind == "curves":
            numbers = [float(row["value"]) for row in written if row["quantity"] == panel.y_label]
            assert sorted(map(near, shown(axes))) == sorted(map(near, numbers))
        else:
            model, _, task = panel.title.partition(", ")
            machine = chart.source.split()[2]
            tests: dict[str, list[float]] = {}
            for row in written:
                place = row["model"], row["task"], row["machine"], row["stage"]
                if place == (model, task, machine, "final") and row["quantity"] in ("test_accuracy", "test_f1"):
                    tests.setdefault(row["method"], []).append(100 * float(row["value"]))
            dots = [y for line in lines(axes, linestyle="None", marker="o") for _, y in points(line)]
            assert sorted(dots) == pytest.approx(sorted(map(statistics.fmean, tests.values())))
