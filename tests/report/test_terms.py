"""Terms: every reported value in a run's own words, and every cell of the papers' tables holds the runs it reports."""

import dataclasses
from typing import Any

import pytest

from tests.support.papers import MEASURED, REFERENCE, cells
from tests.support.tables import paper_row, tuned
from zobench.report import terms
from zobench.report.artifacts import load
from zobench.report.cells import conditions, fill
from zobench.report.table import Table
from zobench.result import Result
from zobench.runspec import DECLARED
from zobench.runspec.registries import METRICS


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"method": "zo2", "batch_size": "1", "seq_len": "2048", "task": "SST-2"},
         {"method": ("zo-sgd",), "batch_size": (1,), "seq_len": (2048,)}),
        ({"method": "fo-adam-noforeach"}, {"method": ("fo-adam",), "foreach": (False,)}),
        ({"method": "fo-sgd", "dtype": "amp-fp16"}, {"method": ("fo-sgd",), "dtype": ("fp32",), "autocast": ("fp16",)}),
        ({"method": "zo-adam", "metric": "accuracy", "task": "SST-2", "setting": "unaligned"},
         {"method": ("zo-adam",), "task": ("sst2",), "steps": (20_000,), "aligned": (False,)}),
        ({"method": "hybrid", "setting": "zo_layers=8"}, {"method": ("hybrid",), "zo_layers": (8,)}),
        ({"method": "hybrid", "setting": "zo_layers=0"}, {"method": ("fo-sgd",), "steps": (625,)}),
        ({"method": "zo-sgd", "setting": "sparsity=30%"},
         {"method": ("zo-sgd", "zo-sgd-sparse"), "sparsity": (0.3,)}),
        ({"method": "mezo", "setting": "forward_passes=1"}, {"method": ("zo-sgd",), "queries": (1,)}),
        ({"method": "zo-sgd-block", "setting": "forward_passes=26"}, {"method": ("zo-sgd-block",)}),
        ({"method": "distzo2", "setting": "ddp", "gpus": "1"},
         {"method": ("zo-sgd",), "gpus": (1,), "parallel": ("none",)}),
        ({"method": "distzo2", "setting": "pertp+ddp", "gpus": "4"},
         {"method": ("zo-sgd",), "gpus": (4,), "parallel": ("2d",)}),
        ({"method": "mezo", "setting": "ddp(inner)+pertp(outer)", "gpus": "4"},
         {"method": ("zo-sgd",), "gpus": (4,), "parallel": ("2d-outer",)}),
        ({"method": "fo-sgd", "gpus": "2"}, {"method": ("fo-sgd",)}),  # ZO-Bench: one model on two GPUs
    ],
)  # fmt: skip
def test_a_reported_value_in_the_words_of_a_run(row: dict[str, str], expected: dict[str, tuple[Any, ...]]) -> None:
    assert terms.fields(paper_row(**row)) == expected


def test_every_reported_value_can_be_a_run() -> None:
    for row in REFERENCE.rows:
        for name, values in terms.fields(row).items():
            assert name in DECLARED
            assert set(values) <= set(DECLARED[name].choices or values), (name, values)


@pytest.mark.parametrize("name", sorted(MEASURED))
def test_a_cell_holds_only_runs_of_the_method_scheme_task_and_setting_that_it_reports(name: str) -> None:
    """What a run may differ in, with a note: dtype (bf16 for fp16) and the number of steps."""
    table = MEASURED[name]
    for cell in cells(table):
        if cell.paper is None or cell.row.extra or cell.is_derived:
            continue
        where = conditions(table, cell.row, cell.column)
        for field, allowed in terms.fields(cell.paper).items():
            if field not in ("steps", "dtype", "autocast"):
                assert set(where[field]) <= set(allowed), (cell.row.header, cell.column.header, field)


def shown(table: Table, results: list[Result], row: str, column: str) -> Any:
    for line in fill(table, results, REFERENCE):
        for cell in line[0]:
            if (cell.row.header, cell.column.header) == (row, column):
                return cell
    raise AssertionError(row)


def test_of_several_learning_rates_the_least_loss_on_dev_is_shown_whatever_the_test_says() -> None:
    table = MEASURED["zo-bench/table2"]
    runs = [tuned(0.95, dev_loss=0.6, lr=1e-7), tuned(0.91, dev_loss=0.4)]
    cell = shown(table, runs, "ZO-SGD", "OPT-1.3B FT")
    assert (cell.value, cell.ratio) == (0.91, pytest.approx(0.91 / 0.908))
    assert cell.notes == ("2 results match. Shown, by its loss on dev: lr=1e-06 (91.0). Not shown: lr=1e-07 (95.0).",)
    assert cell.caveats == ("Of 872 test examples; always giving the commonest answer is right in 50.9%.",)
    assert shown(table, runs, "ZO-SGD", "OPT-1.3B LoRA").value is None
    assert shown(table, runs, "ZO-Adam", "OPT-1.3B FT").value is None


def test_the_loss_on_dev_decides_before_the_order_in_which_a_table_lists_values() -> None:
    table = load("tiny_accuracy")
    small = {"model": "opt-mini", "engine": "resident", "dtype": "fp32", "lr": 2e-4, "eps": 1e-2}
    listed_first = tuned(0.95, dev_loss=0.6, batch_size=32, length_grouping=True, **small)
    better = tuned(0.91, dev_loss=0.4, batch_size=16, **small)
    line = fill(table, [listed_first, better], REFERENCE)[0]
    assert [cell.result for (cell,) in line] == [better] * len(table.metrics)
    assert len({cell.notes for (cell,) in line}) == 1  # one footnote, whatever the metric


def test_the_tokens_of_a_task_are_not_counted() -> None:
    run = dataclasses.replace(tuned(0.9), samples={"step_seconds": [1.0]})
    assert METRICS.get("throughput").of(run) is None
    assert METRICS.get("step_time").of(run) == 1.0
