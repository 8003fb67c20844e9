"""A protocol's methods as points: accuracy on test against seconds of a step, and memory as the size."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from zobench.report.chart import Chart, Mark, Panel, Series
from zobench.report.contest import ContestTable, Ranking, rankings
from zobench.report.plot import Plot
from zobench.result import Result


def pareto(plot: Plot, results: Sequence[Result]) -> list[tuple[str | None, Chart]]:
    """The figure for each machine, with a panel for each model; without any run the message once."""
    assert plot.contest is not None
    found = [one for one in rankings(plot.contest, results) if one.finished]
    machines: dict[str, list[Ranking]] = {}
    for ranking in found:
        machines.setdefault(ranking.machine, []).append(ranking)
    if machines:
        return [(machine, _chart(plot, plot.contest, own)) for machine, own in machines.items()]
    message = f"Nothing measured yet: `zobench sweep {plot.runner}` measures here what it can."
    return [(None, Chart(name=plot.name, kind="pareto", title=plot.title, source="", panels=(Panel(message=message),)))]


def _chart(plot: Plot, table: ContestTable, found: Sequence[Ranking]) -> Chart:
    first = found[0]
    remark = (
        f"Every run has {table.protocol.amount:g} {table.protocol.unit}. Means over seeds; intervals: of the test set, "
        "which all seeds share. Below and right of the line a method is beaten in both by another."
    )
    return Chart(
        name=plot.name, kind="pareto", title=plot.title,
        source=f"Measured on {first.machine}" + (f" ({first.description})" if first.description else ""),
        panels=tuple(map(_panel, found)), remarks=tuple(filter(None, (remark, plot.caption))),
    )  # fmt: skip


def _panel(ranking: Ranking) -> Panel:
    shown = [one for one in ranking.finished if one.step_times]
    marks = []
    for one in shown:
        assert one.scores is not None
        low, high = one.scores.interval
        marks.append(Mark(value=100 * one.scores.mean, low=100 * low, high=100 * high))
    return Panel(
        title=f"{ranking.spec.model}, {ranking.spec.task_name}", x_label="Step (s)", y_label="Test (%)",
        positions=tuple(one.header for one in shown), xs=tuple(statistics.fmean(one.step_times) for one in shown),
        series=(Series(label="", marks=tuple(marks), paper=(None,) * len(marks)),), log_x=True,
        sizes=tuple(statistics.fmean(one.memories) / 2**20 if one.memories else None for one in shown),
        size_unit="MB of memory",
    )  # fmt: skip
