"""Tables of papers: the paper's layout, the paper's numbers cell by cell, and what was measured beside them."""

import dataclasses
import re
from typing import Any

import pytest

from tests.support.rates import CALIBRATION, FORWARD
from tests.support.tables import MIB, result
from zobench import models, recipes
from zobench.recipes.reference import Reference
from zobench.report import load_table, render
from zobench.report.cells import fill
from zobench.report.sheet import rounded


def test_the_papers_table_prints_its_numbers_as_the_paper_does() -> None:
    text = render(load_table(recipes.find("tables", "zo2/table1")), [], "markdown")
    assert "| OPT-1.3B | 8898 | 5098 | 5814 | 3750 |" in text
    assert "| OPT-30B | - | 122 | 641 | 514 |" in text
    text = render(load_table(recipes.find("tables", "zo2/table3")), [], "markdown")
    assert "| OPT-6.7B | 492 | 225 | 184 | 373 | 485 |" in text
    assert "| OPT-175B | - | 8 | 5 | 13 | 14 |" in text


def test_zobenchs_own_column_and_the_floor_are_beside_the_papers_and_not_in_its_sheet() -> None:
    settings: dict[str, Any] = {"noise": "counter", "granularity": "linear", "writeback_every": "inf"}
    results = [
        result("OPT-1.3B", "offload", seconds=2.0, seq_len=2048, calibration=CALIBRATION),
        result("OPT-1.3B", "offload", seconds=1.0, seq_len=2048, **settings),
        result("OPT-1.3B", "offload", "bf16", seconds=0.5, seq_len=2048, device="cpu", **settings),
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


@pytest.mark.parametrize("width", [60, 88, 130])
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
