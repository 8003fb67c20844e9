"""A protocol's methods as points: accuracy on test against seconds of a step, and memory as the size."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from zobench.report.chart import Chart, Mark, Panel, Series
from zobench.report.contest import ContestTable, Ranking, rankings
from zobench.report.plot import Plot, nothing
from zobench.result import Result


def pareto(plot: Plot, results: Sequence[Result]) -> list[tuple[str | None, Chart]]:
    """The figure for each machine, with a panel for each model; without any run the message once."""
    assert plot.contest is not None
    ranked = [ranking for ranking in rankings(plot.contest, results) if ranking.finished]
    machines: dict[str, list[Ranking]] = {}
    for ranking in ranked:
        machines.setdefault(ranking.machine, []).append(ranking)
    if machines:
        return [(machine, _chart(plot, plot.contest, shown)) for machine, shown in machines.items()]
    message = f"Nothing measured yet: `zobench sweep {plot.runner}` measures here what it can."
    return [(None, nothing(plot, message))]


def _chart(plot: Plot, table: ContestTable, ranked: Sequence[Ranking]) -> Chart:
    first = ranked[0]
    remark = (
        f"Every run has {table.protocol.amount:g} {table.protocol.unit}. Means over seeds; intervals: of the test set, "
        "which all seeds share. Below and right of the line a method is beaten in both by another."
    )
    return Chart(
        name=plot.name, kind="pareto", title=plot.title,
        source=f"Measured on {first.machine}" + (f" ({first.description})" if first.description else ""),
        panels=tuple(map(_panel, ranked)), remarks=tuple(filter(None, (remark, plot.caption))),
    )  # fmt: skip


def _panel(ranking: Ranking) -> Panel:
    shown = [standing for standing in ranking.finished if standing.step_times]
    marks = []
    for standing in shown:
        assert standing.scores is not None
        mean, low, high = standing.scores
        marks.append(Mark(value=100 * mean, low=100 * low, high=100 * high))
    return Panel(
        title=f"{ranking.spec.model}, {ranking.spec.task_name}", x_label="Step (s)", y_label="Test (%)",
        positions=tuple(standing.header for standing in shown),
        xs=tuple(statistics.fmean(standing.step_times) for standing in shown),
        series=(Series(label="", marks=tuple(marks), paper=(None,) * len(marks)),), log_x=True,
        sizes=tuple(statistics.fmean(standing.memories) / 2**20 if standing.memories else None for standing in shown),
        size_unit="MB of memory",
    )  # fmt: skip
