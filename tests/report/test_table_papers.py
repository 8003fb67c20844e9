"""Tables of papers: the paper's layout, the paper's numbers cell by cell, and what was measured beside them."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.predictions import FORWARD
from tests.support.rates import CALIBRATION
from tests.support.tables import MIB, PAPER, TINY, result, table_from
from zobench import models, recipes
from zobench.recipes import matrix
from zobench.recipes.reference import Reference
from zobench.report import load_table, render
from zobench.report.cells import conditions, fill
from zobench.report.sheet import rounded
from zobench.runspec import METHODS


def test_the_papers_table_prints_its_numbers_as_the_paper_does() -> None:
    text = render(load_table(recipes.find("tables", "zo2/table1")), [], "markdown")
    assert "| OPT-1.3B | 8898 | 5098 | 5814 | 3750 |" in text
    assert "| OPT-30B | - | 122 | 641 | 514 |" in text
    text = render(load_table(recipes.find("tables", "zo2/table3")), [], "markdown")
    assert "| OPT-6.7B | 492 | 225 | 184 | 373 | 485 |" in text
    assert "| OPT-175B | - | 8 | 5 | 13 | 14 |" in text


def test_zobenchs_own_column_and_the_floor_are_beside_the_papers_and_not_in_its_sheet() -> None:
    own: dict[str, Any] = {"noise": "counter", "granularity": "linear", "writeback_every": "inf"}
    results = [
        result("OPT-1.3B", "offload", seconds=2.0, seq_len=2048, calibration=CALIBRATION),
        result("OPT-1.3B", "offload", seconds=1.0, seq_len=2048, **own),
        result("OPT-1.3B", "offload", "bf16", seconds=0.5, seq_len=2048, device="cpu", **own),
    ]
    text = render(load_table(recipes.find("tables", "zo2/table1")), results, "markdown")
    first, paper = text.split("### ")[1:]
    ahead = r"\*\\~\d+\*(?:<sup>\d</sup>)?"  # of what was not run
    assert re.search(rf"\| OPT-1.3B \| {ahead} \| 1024 \| 2048 \| {ahead} \| {ahead} \| 4096 \|", first)
    floor = 2 * FORWARD / 1e11 / 2
    assert f"| OPT-1.3B | n/a | {rounded(100 * floor, '.0f')} | — | n/a | n/a | — |" in first
    assert "- — means that the machine's rates were not stored with the result." in first
    assert "Measured with dtype bf16; the heading means fp16." in first
    assert "zobench" not in paper.partition("measured on")[0]
    assert "Floor" not in paper


def test_the_papers_ratios_follow_from_the_same_rule() -> None:
    """Fed with the paper's own numbers, the measured table prints the paper's own parentheses."""
    cells = [
        ("resident", "fp32", 8898),
        ("offload", "fp32", 5098),
        ("resident", "fp16", 5814),
        ("offload", "fp16", 3750),
    ]
    results = [result("OPT-1.3B", e, d, memory=mb * MIB, seq_len=2048) for e, d, mb in cells]
    text = render(load_table(recipes.find("tables", "zo2/table1")), results, "markdown")
    line = r"\| OPT-1.3B \| 8898 \| 5098 \(x0.57\) \| \*\\~\d+\* \| 5814 \(x0.65\) \| 3750 \(x0.42\) \| \*\\~\d+\* \|"
    assert re.search(line, text)
    assert "| OPT-1.3B | 8898 (x1.00) | 5098 (x1.00) | 5814 (x1.00) | 3750 (x1.00) |" in text
    assert "zobench's own implementations" in text


def test_each_ablation_lands_in_its_own_column() -> None:
    off = {"overlap": 4.0, "reusable_memory": 5.0, "fused_update": 2.5}
    results = [result("OPT-1.3B", "offload", seconds=s, seq_len=2048, **{name: False}) for name, s in off.items()]
    results += [result("OPT-1.3B", seconds=1.0, seq_len=2048), result("OPT-1.3B", "offload", seconds=2.0, seq_len=2048)]
    text = render(load_table(recipes.find("tables", "zo2/table3")), results, "markdown")
    assert "| OPT-1.3B | 2048 | 512 (x0.25) | 410 (x0.20) | 819 (x0.40) | 1024 (x0.50) |" in text
    assert "results match" not in text


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
@pytest.mark.parametrize("runner", ["main_table", "ablation", "fast_ablation", "update_accuracy", "gpu_fast"])
def test_every_cell_of_a_shipped_runner_has_one_place_in_its_first_table(runner: str, device: str) -> None:
    loaded = matrix.load(recipes.find("runners", runner), device)
    table = load_table(recipes.find("tables", loaded.tables[0]))
    for spec in loaded.cells:
        if not METHODS.get(spec.method).draws:  # of the papers' figures only
            continue
        places = [
            (row.header, column.header)
            for row in table.rows
            for column in table.columns
            if all(getattr(spec, k) in v for k, v in conditions(table, row, column).items())
        ]
        assert len(places) == 1, (spec.label, places)


def test_extra_rows_appear_only_when_measured_and_name_their_source() -> None:
    table = load_table(recipes.find("tables", "zo2/table1"))
    assert "OPT-125M" not in render(table, [], "markdown")
    text = render(table, [result("OPT-125M", seq_len=2048, seconds=1.0)], "markdown")
    assert "| OPT-125M<sup>1</sup> | 200 |" in text
    assert "Not in the paper's table." in text
    ahead = r"\\~\(x[\d.]+\)"  # predicted / reported
    line = rf"\| OPT-125M<sup>1</sup> \| 3091 \(x0.065\) \| 2941 {ahead} \| 1801 {ahead} \| 1661 {ahead} \|"
    assert re.search(line, text)
    assert "From zo-offloading-iclr25 table1." in text


@pytest.mark.parametrize("width", range(60, 140, 7))
def test_no_value_is_cut_at_any_width(width: int) -> None:
    machine: dict[str, Any] = {"seq_len": 2048, "device": "cpu", "warnings": ("a", "b", "c")}
    results = [result(model, memory=3 * MIB, **machine) for model in ("OPT-125M", "OPT-350M")]
    results += [
        result(model, "offload", dtype, memory=100 * MIB + i, noise=noise, **machine)
        for i, model in enumerate(("OPT-125M", "OPT-350M", "OPT-175B"))
        for dtype in ("fp32", "bf16")
        for noise in ("torch", "counter")
    ]
    table = load_table(recipes.find("tables", "zo2/table1"))
    text = render(table, results, "terminal", width=width)
    assert max(map(len, text.splitlines())) <= width
    wide = render(table, results, "terminal", width=400)
    for value in set(re.findall(r"\d+ \(x[\d.]+\)[⁰¹²³⁴⁵⁶⁷⁸⁹]*", wide)):
        assert value in text


def test_every_table_says_how_close_its_runs_come_to_the_machines_floor() -> None:
    table = load_table(recipes.find("tables", "zo2/table3"))
    one = result("OPT-1.3B", seconds=2.0, seq_len=2048, calibration=CALIBRATION)
    share = 100 * 2 * FORWARD / 1e11 / 2
    told = render(table, [one], "markdown")
    assert f"These runs reach {share:.0f} % of this machine's floor" in told
    both = [one, result("OPT-1.3B", "offload", seconds=4.0, seq_len=2048, calibration=CALIBRATION)]
    assert f"reach {share / 2:.0f} to {share:.0f} % of" in render(table, both, "markdown")
    assert "floor" not in render(table, [result("OPT-1.3B", seq_len=2048)], "markdown")


def test_quantities_of_one_column_stand_side_by_side_on_a_terminal() -> None:
    table = load_table(recipes.find("tables", "zo-bench/table4"))
    text = render(table, [], "terminal", width=80)
    ahead, line = (line for line in text.splitlines() if line.startswith(" ZO-SGD-Cons "))
    assert re.fullmatch(r" ZO-SGD-Cons( +~[\d.]+ \(x[\d.]+\)¹){3} *", ahead)
    assert line.split() == ["ZO-SGD-Cons", "64", "1", "27.6"]
    one = result("OPT-13B", memory=70 * 2**30, seconds=2.0, batch_size=4, seq_len=400)
    measured = render(table, [one], "terminal", width=80).split("paper (")[0]
    (line,) = [line for line in measured.splitlines() if line.startswith(" ZO-SGD ")]
    assert line.split() == ["ZO-SGD", "70.0", "1", "2.00"]
    heading = next(line for line in measured.splitlines() if "Memory (GB)" in line)
    assert re.search(r"Memory \(GB\) ↓[¹²] +Consumed GPUs ↓ +Runtime cost \(s\) ↓", heading), "its note stays with it"


def test_uploads_and_offloads_are_both_the_papers_link_rate_and_each_stands_in_its_own_column() -> None:
    table = load_table(recipes.find("tables", "distzo2/table2"))
    fields: dict[str, Any] = {"seq_len": 2048, "batch_size": 4, "gpus": 4, "parallel": "2d", "parts": True}
    streamed = 24 * models.get("OPT-1.3B").block
    runs = [
        dataclasses.replace(
            result("OPT-1.3B", "offload", "fp16", transfers=transfers, **fields),
            parts={"upload_seconds": [up] * 3, "offload_seconds": [down] * 3},
        )
        for transfers, up, down in (("naive", 0.25, 0.5), ("sliced", 0.0625, 0.125))
    ]
    (row,) = [row for row in fill(table, runs, Reference.load()) if row[0][0].row.header == "OPT-1.3B"]
    assert [cell.value for cell in row[0]] == [streamed / seconds for seconds in (0.25, 0.0625, 0.5, 0.125)]
    assert [cell.paper_value for cell in row[0]] == [4.73e9, 19.24e9, 1.79e9, 8.32e9]
    bare = [dataclasses.replace(run, parts={}) for run in runs]
    assert "— means that transfers alone were not measured (parts=true)." in render(table, bare, "markdown")


def test_an_extra_row_of_a_table_that_no_paper_has_is_not_said_to_be_missing_there(tmp_path: Path) -> None:
    own = TINY.replace('paper = "p"\nartifact = "t1"\n', "")
    for text, told in ((TINY, True), (own, False)):
        shown = render(table_from(tmp_path, text), [result("M0")], "markdown", reference=PAPER)
        assert "M0" in shown
        assert ("Not in the paper's table." in shown) is told
