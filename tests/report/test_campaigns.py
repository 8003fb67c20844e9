"""The shipped campaigns: each fills every table and figure of costs, in the real report, and no part is too long."""

import functools
from collections.abc import Sequence

import pytest

from tests.support import campaigns
from tests.support.papers import LOADED, REFERENCE
from tests.support.tables import published
from zobench import recipes
from zobench.cost import hardware
from zobench.execute import campaign, together
from zobench.recipes.campaign import PartOn
from zobench.report import artifacts
from zobench.report.cells import fill
from zobench.report.compose import measured_sheet
from zobench.report.facts import FactTable
from zobench.report.html import status
from zobench.report.plot import Plot
from zobench.report.render import grids
from zobench.report.sheet import Sheet
from zobench.report.table import Table
from zobench.result import Result
from zobench.runspec import RunSpec
from zobench.runspec.registries import METRICS

MEASURES = ("bytes", "s", "tokens/s", "params/s")
"""Base units of costs."""
HOUR = 3600.0
TIMES_LATE = 3
"""A cell may take so many times what is predicted before it is ended."""


def is_of_costs(name: str) -> bool:
    """Whether a table or figure of a paper shows what a run costs; one of configurations or formulas shows no run."""
    item = LOADED[name]
    if isinstance(item, FactTable):
        return False
    if isinstance(item, Plot) and item.table is None:
        return item.kind == "timeline"
    table = item.table if isinstance(item, Plot) else item
    return any(METRICS.get(metric.name).base_unit in MEASURES for metric in table.metrics)


COSTS = sorted(filter(is_of_costs, LOADED))
SEVERAL_GPUS = {"distzo2/table2", "distzo2/table3", "distzo2/table4", "distzo2/table7", "distzo2/figure6"}
"""Of nothing that one GPU does."""
EMPTY = {
    "small-cpu": {
        "distzo2/figure6": {"2 nodes", "3 nodes"},  # a machine is one node
        "zo-bench/figure3": {"FO-SGD, OPT-13B", "ZO-SGD, OPT-13B"},  # which 24 GB do not hold
    },
    "one-gpu": {
        "distzo2/table1": {"DistZO2 (PertP)", "DistZO2 (DDP)", "DistZO2 (2D)"},
        "zo-bench/figure3": {"FO-SGD, OPT-13B"},  # 104 GB of weights and gradients
        **{name: set() for name in SEVERAL_GPUS},
    },
}
"""Columns that a campaign leaves empty, and why."""
NAMES = sorted(EMPTY)


@functools.cache
def ran(name: str) -> tuple[tuple[PartOn, tuple[RunSpec, ...]], ...]:
    """All parts of a campaign with those of their cells that fit a machine of its size."""
    shipped = campaigns.shipped(name)
    if shipped.device == "cpu":
        outlooks = [campaign.outlook(on, [], campaigns.rates(), campaigns.ROOM) for on in shipped.on("cpu")]
        return tuple((part.on, tuple(step.spec for step in part.steps if step.action == "run")) for part in outlooks)
    gpu = hardware.load("h100-pcie")
    return tuple((on, tuple(campaigns.seconds_on(on, gpu))) for on in shipped.on("cuda:0"))


@functools.cache
def results(name: str) -> Sequence[Result]:
    """Of the parts that the campaign is for, without those beyond."""
    return tuple(campaigns.results([(on, cells) for on, cells in ran(name) if not on.part.more]))


def columns(table: Table, stored: Sequence[Result]) -> set[str]:
    """The headers of a paper's own columns in which every metric of costs has a value."""
    costs = [j for j, metric in enumerate(table.metrics) if METRICS.get(metric.name).base_unit in MEASURES]
    grid = fill(table, stored, REFERENCE)
    return {
        column.header
        for k, column in enumerate(table.columns)
        if all(any(row[j][k].value is not None for row in grid) for j in costs)
    }


@pytest.mark.parametrize("campaign_name", NAMES)
@pytest.mark.parametrize("name", COSTS)
def test_a_campaign_fills_every_column_of_every_table_and_figure_of_costs(name: str, campaign_name: str) -> None:
    item, stored = LOADED[name], results(campaign_name)
    if campaign_name == "one-gpu" and name in SEVERAL_GPUS:
        assert not any(artifacts.shows(item, result.spec) for result in stored)
        return
    if isinstance(item, Plot) and item.table is None:
        made, _ = artifacts.make(item, stored, REFERENCE)
        assert status(made) == "measured"
        assert all(panel.events for chart in made.charts for panel in chart.panels)
        return
    table = item.table if isinstance(item, Plot) else item
    assert isinstance(table, Table)
    papers_columns = {column.header for column in table.columns if not column.extra and not column.minus}
    assert papers_columns - columns(table, stored) == EMPTY[campaign_name].get(name, set())


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_measured_that_no_table_and_no_figure_shows(name: str) -> None:
    items = [artifacts.load(item) for kind in ("tables", "plots") for item in recipes.names(kind)]
    alone = [spec.label for on in campaigns.shipped(name).on("cpu" if name == "small-cpu" else "cuda:0")
             for spec in on.cells if not any(artifacts.shows(item, spec) for item in items)]  # fmt: skip
    assert alone == []


@pytest.mark.parametrize("name", NAMES)
def test_cells_that_a_part_lets_take_turns_can_and_two_parts_never_run_one_in_one_round(name: str) -> None:
    for on, cells in ran(name):
        assert [together.obstacle(spec) for spec in cells if on.part.turns and together.obstacle(spec)] == []
    runs = [(spec.hash, number) for on, cells in ran(name) for spec in cells for number in on.rounds]
    assert len(set(runs)) == len(runs)


def test_on_two_cores_every_cell_fits_and_no_part_is_predicted_to_take_two_hours() -> None:
    shipped = campaigns.shipped("small-cpu")
    outlooks = [campaign.outlook(on, [], campaigns.rates(), campaigns.ROOM) for on in shipped.on("cpu")]
    assert {part.on.part.name: [step.reason for step in part.unfit] for part in outlooks if part.unfit} == {}
    assert {part.on.part.name: part.whole / HOUR for part in outlooks if part.whole > 2 * HOUR} == {}
    longest = max(step.estimate.seconds for part in outlooks for step in part.steps if step.estimate)
    assert longest * TIMES_LATE < 40 * 60
    assert shipped.timeout == "40m"


@pytest.mark.parametrize("gpu", ["h100-pcie", "h100-sxm", "h200"])
def test_on_one_gpu_no_part_is_predicted_to_take_nine_minutes_and_it_begins_with_the_selftest(gpu: str) -> None:
    shipped, place = campaigns.shipped("one-gpu"), hardware.load(gpu)
    parts = [(on.part, campaigns.seconds_on(on, place).values()) for on in shipped.on("cuda:0")]
    seconds = {part.name: part.repeats * sum(cells) for part, cells in parts}
    assert {name: taken for name, taken in seconds.items() if not 0 < taken <= 540} == {}
    assert shipped.selftest == "3m"


@functools.cache
def published_sheets() -> tuple[tuple[str, Sheet], ...]:
    """The measured sheets of all tables, by machine, from the runs in results/published."""
    stored = published()
    tables = [item for name in recipes.names("tables") if isinstance(item := artifacts.load(name), Table)]
    return tuple(
        (f"{table.name}, {machine}", measured_sheet(table, grid, machine))
        for table in tables
        for machine, grid in grids(table, stored, None, REFERENCE, expected=False, foretold=False)
        if machine is not None
    )  # fmt: skip


def test_every_ratio_between_published_runs_has_an_interval() -> None:
    """But of bytes that are counted, which are the same each time, and of the H100, where each cell is one process."""
    groups = [(place, group) for place, sheet in published_sheets() for group in sheet.groups if "h100" not in place]
    entries = [(place, group.header.text, cell) for place, group in groups for row in group.body for cell in row]
    ratios = [
        (place, header, cell.text, cell.detail) for place, header, cell in entries if cell.detail.startswith("(x")
    ]
    bare = [cell for cell in ratios if " to " not in cell[-1]]
    assert len(ratios) > 100
    assert [cell for cell in bare if not cell[1].startswith("Moved a step")] == []


@pytest.mark.parametrize("name", COSTS)
def test_no_table_and_no_figure_of_costs_is_without_a_published_value(name: str) -> None:
    stored = [result for result in published() if result.round is not None and result.is_ok]
    made, _ = artifacts.make(LOADED[name], stored, REFERENCE)
    assert status(made) in ("measured", "partly")
