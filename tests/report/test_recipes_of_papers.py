"""The recipes of the papers' tables and figures: all are there, and every reported value stands in one cell."""

import functools
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.support.campaigns import shipped
from tests.support.own_model import changes_for
from tests.support.papers import LOADED, MEASURED, NAMES, REFERENCE, cells
from tests.support.tables import tuned
from zobench import recipes
from zobench.cost.budget import price
from zobench.recipes import matrix
from zobench.report import claims, frames
from zobench.report.artifacts import Recipe, load, shows
from zobench.report.cells import conditions, fill, is_meant
from zobench.report.compose import measured_sheet, paper_sheet
from zobench.report.plot import Plot
from zobench.report.table import Table
from zobench.result import Result
from zobench.runspec import RunSpec


def laid_out() -> dict[str, Table]:
    """Every recipe with cells: the papers' tables and figures, and zobench's own figures."""
    named = {**LOADED, **{name: load(name) for name in recipes.names("plots")}}
    tables = {name: item.table if isinstance(item, Plot) else item for name, item in named.items()}
    return {name: table for name, table in tables.items() if isinstance(table, Table)}


def test_every_reported_value_stands_in_exactly_one_cell_of_its_own_table() -> None:
    shown = Counter(id(cell.paper) for table in MEASURED.values() for cell in cells(table) if cell.paper is not None)
    assert len(REFERENCE.rows) == 1089
    assert [row for row in REFERENCE.rows if shown[id(row)] != 1] == []


@pytest.mark.parametrize("name", sorted(MEASURED))
def test_a_papers_cell_shows_a_value_of_that_table_and_of_no_other(name: str) -> None:
    papers_cells = [
        cell for cell in cells(MEASURED[name]) if cell.column.reference is not None and cell.metric.name != "floor"
    ]
    assert papers_cells
    for cell in papers_cells:
        assert cell.paper is not None, f"{cell.row.header}, {cell.column.header}"
        assert f"{cell.paper['paper']}/{cell.paper['artifact']}" == name
        assert cell.paper["unit"] == cell.metric.unit


@functools.cache
def runs_of(runner: str) -> tuple[RunSpec, ...]:
    """Without and with a GPU."""
    path = recipes.find("runners", runner)
    return tuple(spec.resolve(device) for device in ("cpu", "cuda") for spec in matrix.load(path, device).cells)


@functools.cache
def small_runs() -> tuple[RunSpec, ...]:
    return tuple(spec for on in shipped("small-cpu").on("cpu") for spec in on.cells)


@pytest.mark.parametrize("name", [name for name in NAMES if name in laid_out()])
def test_the_runner_of_a_table_makes_every_run_that_its_cells_show(name: str) -> None:
    """Extra rows are for small machines, whose campaign may have cells of its own for them; a runner need not fill all
    their columns. Extra columns are another's."""
    table = laid_out()[name]
    runs = (*runs_of(table.runner), *small_runs())
    for row in table.rows:
        usual = [column for column in table.columns if not column.extra and is_meant(row, column)]
        wanted = [conditions(table, row, column) for column in usual]
        made = [any(all(getattr(run, key) in where[key] for key in where) for run in runs) for where in wanted]
        assert not made or (any(made) if row.extra else all(made)), row.header


def test_every_claim_can_be_checked_on_the_papers_own_values_which_contradict_these() -> None:
    """Each was read again in the paper: its words say so, and its table does not."""
    broken = Counter[str]()
    for name, table in MEASURED.items():
        for verdict in claims.checked(table, fill(table, [], REFERENCE), claims.reported):
            headers = [ratio.header for ratio in verdict.ratios]
            assert headers, verdict.claim.text
            assert set(headers) >= set(verdict.claim.only), verdict.claim.text
            broken[name] += verdict.verdict == claims.FAILS
    assert +broken == {
        "zo2/table3": 1,
        "zo2/table8": 1,
        "distzo2/table1": 1,
        "distzo2/table5": 1,
        "distzo2/table7": 1,
        "zo-bench/table1": 1,
        "zo-bench/table3": 1,
    }


METHODS = {"MeZO": "mezo", "ZO2": "zo2", "ZO-Offload": "zo2", "DistZO2": "distzo2"}
PRECISIONS = {"(FP32)": "fp32", "(FP16)": "fp16", "(32)": "fp32", "(16)": "fp16"}
BY_HEADING = (
    *("zo-offloading-neurips24/table1", "zo-offloading-neurips24/table2", "zo-offloading-iclr25/table1"),
    *("zo-offloading-iclr25/table2", "zo2/table1", "zo2/table3", "zo2/table6", "zo2/table7", "zo2/table8"),
    *("distzo2/table1", "distzo2/table3"),
)
"""Tables whose columns are headed by a method and, where there are two, a precision."""


@pytest.mark.parametrize("name", BY_HEADING)
def test_every_value_stands_under_the_heading_of_its_own_method_precision_and_model(name: str) -> None:
    table = MEASURED[name]
    for cell in cells(table):
        if cell.paper is None or cell.row.extra:
            continue
        words = cell.column.header.replace("+", " ").replace("-Offloading", "-Offload").split()
        assert cell.paper["method"] == METHODS[words[0]], (cell.row.header, cell.column.header)
        for word, dtype in PRECISIONS.items():
            if word in words:
                assert cell.paper["dtype"] == dtype, (cell.row.header, cell.column.header)
        assert cell.paper["model"] in cell.row.header.split(", ")
        for field in ("batch_size", "seq_len"):
            if field in cell.row.where:
                assert cell.paper[field] in cell.row.header.split(", ")


@functools.cache
def items() -> dict[str, Recipe]:
    """All tables and figures that ship."""
    return {name: load(name) for kind in ("tables", "plots") for name in recipes.names(kind)}


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
@pytest.mark.parametrize("name", recipes.names("runners"))
def test_every_runner_loads_and_each_of_its_cells_is_shown_by_one_of_its_tables_or_figures(
    name: str, device: str, tmp_path: Path
) -> None:
    """Nothing is measured that nobody sees; `smoke` only tries the engine."""
    path = recipes.find("runners", name)
    changes = changes_for(path, tmp_path)
    if changes:
        with pytest.raises(ValueError, match=re.escape(f"{path.name}: `model` must be given")):
            matrix.load(path, device)
    loaded = matrix.load(path, device, changes, price=price)
    assert loaded.cells
    for cell in loaded.cells:  # several ranks have a device each
        assert cell.device == (device if cell.gpus == 1 else device.partition(":")[0])
    assert len({cell.hash for cell in loaded.cells}) == len(loaded.cells)
    assert set(loaded.tables) <= items().keys()
    shown = [item for item in items().values() if item.runner == name or item.name in loaded.tables]
    unseen = [spec.label for spec in loaded.cells if not any(shows(item, spec) for item in shown)]
    assert name == "smoke" or unseen == []


@pytest.mark.parametrize(
    ("name", "differences"),
    [
        ("zo-bench/table1", ["0.1", "9.5", "10.2", "8.3", "10.6", "10.5"]),
        (
            "zo-bench/table7",
            ["11.07", "1.98", "10.11", "1.88", "8.79", "1.55", "7.21", "0.24", "5.76", "0.18", "2.21", "0.03", "0.00",
             "0.00"],
        ),
    ],
)  # fmt: skip
def test_differences_are_those_that_the_paper_prints(name: str, differences: list[str]) -> None:
    printed = [cell.paper for cell in cells(MEASURED[name]) if cell.column.minus and not cell.row.extra]
    assert [paper["value"] for paper in printed if paper] == differences


def test_the_one_value_that_the_paper_leaves_out_is_marked_as_inferred() -> None:
    assert [(row["paper"], row["artifact"], row["value"]) for row in REFERENCE.rows if row["status"] == "inferred"] == [
        ("zo-bench", "table1", "89.4")
    ]
    table = MEASURED["zo-bench/table1"]
    sheet = paper_sheet(table, fill(table, [], REFERENCE), None)
    marked = [entry.text for row in sheet.groups[0].body for entry in row if entry.marks]
    assert (marked, [note.partition(":")[0] for note in sheet.notes]) == (["89.4"], ["Inferred"])


def tuned_smol(**changes: Any) -> Result:
    """A run as the runner real_accuracy stores it."""
    fields = {"model": "SmolLM2-135M", "config_hash": "b9", "weights_hash": "8a", "noise": "counter", "batch_size": 8}
    sizes = {"seq_len": 96, "dev_size": 100, "length_grouping": True, "steps": 400, "dtype": "fp32", "lr": 1e-5}
    return tuned(**{"accuracy": 0.64, **fields, **sizes, **changes})


def test_runs_of_another_model_stand_in_a_column_of_their_own_and_never_in_a_papers() -> None:
    for name, header in (("zo-bench/table2", "SmolLM2-135M FT"), ("zo2/table2", "SmolLM2-135M SST-2")):
        table = MEASURED[name]
        line = next(row for row in table.rows if row.header in ("ZO-SGD", "MeZO"))
        grid = fill(table, [tuned_smol()], REFERENCE)
        (cells,) = (row[0] for row in grid if row[0][0].row is line)
        columns = [cell.column for cell in cells if cell.result]
        assert [column.header for column in columns] == [header]
        assert all(cell.paper is None and cell.ratio is None for cell in cells if cell.result)
        shown = [column.text for column in measured_sheet(table, grid, "box").groups[0].columns]
        assert shown == [column.header for column in table.columns if not column.extra or column in columns]
        reported = [column.text for column in paper_sheet(table, grid, "box").groups[0].columns]
        assert reported == [column.header for column in table.columns if not column.extra]
        nothing = measured_sheet(table, fill(table, [], REFERENCE), "box").groups[0].columns
        assert [column.text for column in nothing] == reported


def test_real_accuracy_shows_zero_shot_a_mean_over_seeds_with_its_range_and_wilsons_interval() -> None:
    table = load("real_accuracy")
    assert isinstance(table, Table)
    seeds = [tuned_smol(seed=seed, accuracy=accuracy) for seed, accuracy in ((0, 0.64), (1, 0.61), (2, 0.70))]
    worse = [tuned_smol(seed=seed, lr=1e-6, accuracy=0.9, dev_loss=0.6) for seed in (0, 1)]
    runs = [*seeds, *worse, tuned_smol(lr=0.0, steps=1, accuracy=0.52, dev_loss=0.4), tuned_smol(scheme="lora")]
    sheet = measured_sheet(table, fill(table, runs, REFERENCE), "box")
    (group,) = sheet.groups
    assert (group.header.text, [column.text for column in group.columns]) == (
        "SST-2", ["Dev, start (%) ↑", "Dev, best (%) ↑", "Test (%) ↑"],
    )  # fmt: skip
    shown = {label.text: f"{row[2].text} {row[2].detail}" for label, row in zip(sheet.rows, group.body, strict=True)}
    assert shown["Zero-shot"] == "52.0 [48.7, 55.3]"
    assert shown["ZO-SGD, three seeds"] == "65.0 [61.0, 70.0]"
    assert shown["ZO-SGD, LoRA"] == "64.0 [60.8, 67.1]"
    assert "The mean over seed 0, 1, 2; in brackets the least and the most." in sheet.notes
    assert not any("Measured with seed" in note for note in sheet.notes)  # the heading means all three
    assert "seed 0/1/2" in next(remark for remark in sheet.remarks if remark.startswith("Tuned for"))
    assert "In brackets after Test (%): the 95 % interval." in sheet.remarks
    numbers = frames.of_cells(table, [("box", fill(table, seeds, REFERENCE))])
    (row,) = numbers[numbers["metric"] == "accuracy"].itertuples()
    assert all(run.spec.hash in row.spec_hash for run in seeds)
    assert (row.value, row.low, row.high) == (pytest.approx(0.65), 0.61, 0.7)
