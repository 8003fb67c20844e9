"""Tables: the paper's layout, the paper's numbers cell by cell, and nothing shown that was not measured."""

from __future__ import annotations

import csv
import dataclasses
import io
import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.rates import CALIBRATION
from tests.support.tables import EVIL, MIB, PAPER, TINY, result, table_from
from zobench import models, recipes
from zobench.recipes import matrix
from zobench.recipes.reference import Reference
from zobench.report import FORMATS, Table, load_table, render
from zobench.report.cells import conditions, fill
from zobench.report.quantity import rounded
from zobench.result import Outcome
from zobench.runspec import METHODS


@pytest.fixture
def tiny(tmp_path: Path) -> Table:
    return table_from(tmp_path)


RESULTS = [
    result("M1", memory=200 * MIB, seconds=1.0),
    result("M1", "offload", "fp16", memory=50 * MIB, seconds=2.0),
    result("M2", outcome=Outcome.OOM, reason="device memory: 9 GB needed"),
]


def test_golden_markdown(tiny: Table) -> None:
    assert render(tiny, RESULTS, "markdown", reference=PAPER) == (
        """### Tiny

**measured on box (1x BOX)**

**GPU Memory (MB) ↓<sup>1</sup>**

| Model | A | B |
| --- | ---: | ---: |
| M1 | 200 | 50.0 (x0.25) |
| M2 | -<sup>2</sup> | · |

**Throughput (tokens/s) ↑**

| Model | A | B |
| --- | ---: | ---: |
| M1 | 100 | 50.0 (x0.50) |
| M2 | -<sup>2</sup> | · |

- Own engines.
- (x) is the ratio to A in the same row.
- Throughput is tokens per median step; measured steps: 3; device cuda, weights random, data random, """
        """batch\\_size 1, seq\\_len 100, warmup 1.
- 1 MB here is 1048576 bytes, as nvidia-smi counts and the papers print.
- \\- means out of memory.
- · means never run.
- <sup>1</sup> Measured as the allocator's peak; the paper reads NVML, which adds the CUDA context and the cache.
- <sup>2</sup> out of memory: device memory: 9 GB needed

### Tiny

**paper (p t1), on 1x G-1**

**GPU Memory (MB) ↓<sup>1</sup>**

| Model | A | B |
| --- | ---: | ---: |
| M1 | 400 (x0.50) | 100 (x0.50) |
| M2 | - | 300 |

**Throughput (tokens/s) ↑**

| Model | A | B |
| --- | ---: | ---: |
| M1 | 50 (x2.00) | 80.5 (x0.62) |
| M2 | · | · |

- (x) is measured / paper; measured on box (1x BOX).
- \\- means out of memory in the paper.
- · means that the paper reports no value.
- <sup>1</sup> Measured as the allocator's peak; the paper reads NVML, which adds the CUDA context and the cache.
"""
    )


def test_golden_terminal(tiny: Table) -> None:
    text = render(tiny, RESULTS, "terminal", reference=PAPER, width=60)
    assert text.startswith(
        """Tiny
measured on box (1x BOX)

GPU Memory (MB) ↓¹
 ─────────────────────────
 Model  A     B
 ─────────────────────────
 M1     200   50.0 (x0.25)
 M2       -²     ·
 ─────────────────────────

Throughput (tokens/s) ↑
"""
    )
    assert text.endswith(
        "\n¹ Measured as the allocator's peak; the paper reads NVML,\nwhich adds the CUDA context and the cache.\n"
    )
    assert max(map(len, text.splitlines())) <= 60
    assert "\x1b" not in text
    assert "\x1b[" in render(tiny, RESULTS, "terminal", reference=PAPER, color=True)


def test_latex_puts_the_metrics_side_by_side(tiny: Table) -> None:
    lines = render(tiny, RESULTS, "latex", reference=PAPER).splitlines()
    assert r"\begin{tabular}{lrrrr}" in lines
    memory = r"\multicolumn{2}{c}{GPU Memory (MB) $\downarrow$\textsuperscript{1}}"
    throughput = r"\multicolumn{2}{c}{Throughput (tokens/s) $\uparrow$}"
    assert rf" & {memory} & {throughput} \\" in lines
    assert r"\cmidrule(lr){2-3} \cmidrule(lr){4-5}" in lines
    assert r"M1 & 200 & 50.0 (x0.25) & 100 & 50.0 (x0.50) \\" in lines
    assert r"M2 & -\textsuperscript{2} & $\cdot$ & -\textsuperscript{2} & $\cdot$ \\" in lines
    assert r"M1 & 400 (x0.50) & 100 (x0.50) & 50 (x2.00) & 80.5 (x0.62) \\" in lines


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_csv_has_one_row_per_value_in_base_units_and_full_precision(tiny: Table) -> None:
    third = result("M1", seconds=0.3, memory=123_456_789)
    told = rows(render(tiny, [third, RESULTS[2]], "csv", reference=PAPER))
    measured = [row for row in told if row["source"] == "measured"]
    assert [(r["row"], r["metric"], r["unit"], r["value"], r["status"]) for r in measured] == [
        ("M1", "gpu_memory", "bytes", "123456789", "ok"),
        ("M1", "throughput", "tokens/s", repr(100 / 0.3), "ok"),
        ("M2", "gpu_memory", "bytes", "", "oom"),
        ("M2", "throughput", "tokens/s", "", "oom"),
    ]
    assert {(r["machine"], r["hardware"]) for r in measured} == {("box", "1x BOX")}
    paper = [row for row in told if row["source"] == "p t1"]
    assert len(paper) == len(told) - 4 == len(PAPER.rows)
    assert paper[0]["value"] == repr(400.0 * MIB)
    assert {row["hardware"] for row in paper} == {"1x G-1"}


@pytest.mark.parametrize("fmt", FORMATS)
def test_the_same_input_gives_the_same_text_in_any_order(tiny: Table, fmt: str) -> None:
    results = [*RESULTS, result("M1", seed=1, seconds=9.0), result("M1", seed=2), result("M1", machine="other")]
    assert render(tiny, results, fmt, reference=PAPER) == render(tiny, results[::-1], fmt, reference=PAPER)


@pytest.mark.parametrize("name", ["zo2/table1", "zo2/table3"])
def test_the_papers_columns_equal_the_reported_values_cell_by_cell(name: str) -> None:
    table = load_table(recipes.find("tables", name))
    artifact = name.removeprefix("zo2/")
    reported = [row for row in Reference.load().rows if row["paper"] == "zo2" and row["artifact"] == artifact]
    told = [row for row in rows(render(table, [], "csv")) if row["source"] != "predicted"]
    assert len(told) == len(reported) == {"table1": 56, "table3": 35}[artifact]
    assert all(row["source"] == f"zo2 {artifact}" and row["hardware"] == "1x A100-80GB" for row in told)

    def method(row: dict[str, str]) -> tuple[str, str]:
        words = {"no scheduler overlap": "no_overlap", "no efficient update": "no_fused_update"}
        words["no reusable memory"] = "no_reusable_memory"
        inside = re.search(r"\((.*)\)", row["column"])
        return row["column"].split()[0].lower(), words.get(inside[1], "") if inside else ""

    scale = {"gpu_memory": MIB, "throughput": 1}
    got = {(r["row"], *method(r), r["dtype"], r["metric"], r["status"], r["value"]) for r in told}
    want = {
        (
            *(row["model"], row["method"], row["switch"], row["dtype"], row["metric"], row["status"]),
            repr(float(row["value"]) * scale[row["metric"]]) if row["value"] else "",
        )
        for row in reported
    }
    assert got == want


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
    floor = 4 * 1_315_758_080 * 2048 / 1e11 / 2
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


OWN = """
title = "Own"
caption = "No paper."
baseline = "first"
[where]
seq_len = 100
[rows]
header = "Variant"
[[rows.variants]]
header = "first"
where = { engine = "resident" }
[[rows.variants]]
header = "second"
where = { engine = "offload", queries = [1, 4] }
[[columns]]
header = "M1"
where = { model = "M1" }
[[columns]]
header = "M2"
where = { model = "M2" }
[[metrics]]
name = "throughput"
header = "Throughput (tokens/s)"
format = ".0f"
better = "higher"
[[metrics]]
name = "update_survival"
header = "Update kept (%)"
format = ".1f"
better = "higher"
"""


def test_a_table_of_no_paper_has_rows_of_its_own_and_ratios_to_one_of_them(tmp_path: Path) -> None:
    table = table_from(tmp_path, OWN)
    results = [result("M1"), result("M1", "offload", seconds=2.0, survival=0.123, queries=4)]
    text = render(table, results, "markdown", reference=PAPER)
    assert text.count("### Own") == 1
    assert "| Variant | M1 |\n" in text  # M2 was never run
    assert "| first | 100 |" in text
    assert re.search(r"\| second \| 50.0 \(x0.50\)(<sup>1</sup>)? \|", text)
    assert "(x) is the ratio to first in the same column." in text
    assert "| second | 12.3 |" in text
    assert "Measured with queries 4; the heading means 1." in text
    assert "— means that it was not asked for (survival=true)." in text
    assert "| Variant | M1 |\n" in render(table, [], "markdown", reference=PAPER)
    both = render(table, [*results, result("M2", seconds=0.5)], "markdown", reference=PAPER)
    assert "| first | 100 | 200 |" in both
    assert {row["source"] for row in rows(render(table, results, "csv", reference=PAPER))} == {"measured"}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('header = "Variant"', "", "`header` must be given in [rows], but is missing"),
        ('header = "second"', 'header = "first"', "row headers must differ, but got first, first; rename one"),
        ('header = "second"', "", "`header` must be given in [[rows.variants]], but is missing"),
        ("queries = [1, 4]", "querys = 1", "unknown key 'querys'; did you mean queries?"),
        ("queries = [1, 4]", "queries = 0", "`queries >= 1` must hold, but got queries=0; "),
        ('baseline = "first"', 'baseline = "furst"', "`baseline` must be the header of a column or a row, but got 'fu"),
    ],
)
def test_a_mistake_in_a_table_of_no_paper_is_one_line(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in OWN
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        table_from(tmp_path, OWN.replace(old, new, 1))
    assert "\n" not in str(caught.value)


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


def test_the_cpus_main_table_measures_the_smallest_model_in_all_columns_first() -> None:
    cells = matrix.load(recipes.find("runners", "main_table"), "cpu").cells
    assert [cell.model for cell in cells[:7]] == ["OPT-125M"] * 6 + ["OPT-350M"]


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


def test_cpu_memory_and_another_16_bit_type_are_said_once_at_the_heading(tiny: Table) -> None:
    results = [
        result("M1", device="cpu"),
        result("M1", "offload", "bf16", device="cpu"),
        result("M2", device="cpu"),
    ]
    text = render(tiny, results, "markdown", reference=PAPER)
    first, second = text.split("### Tiny")[1:]
    for sheet in (first, second):
        assert "**GPU Memory (MB) ↓<sup>1</sup>**" in sheet
        assert "**Throughput (tokens/s) ↑**" in sheet
        assert sheet.count("| Model | A | B<sup>2</sup> |") == 2
        assert "<sup>1</sup> Measured on a CPU: the process's peak resident memory" in sheet
        assert "<sup>2</sup> Measured with dtype bf16; the paper has fp16." in sheet
    on_gpu = render(tiny, [result("M1"), result("M1", "offload", "fp16")], "markdown", reference=PAPER)
    assert "**GPU Memory (MB) ↓<sup>1</sup>**" in on_gpu
    assert "<sup>1</sup> Measured as the allocator's peak; the paper reads NVML" in on_gpu
    assert "CPU" not in on_gpu
    assert "bf16" not in on_gpu


def test_fp16_is_preferred_to_bf16_and_the_choice_is_told(tiny: Table) -> None:
    results = [
        result("M1", "offload", "bf16", memory=77 * MIB),
        result("M1", "offload", "fp16", memory=88 * MIB),
        result("M1", "offload", "fp16", memory=99 * MIB, tier="disk"),
    ]
    text = render(tiny, results, "markdown", reference=PAPER)
    assert "| M1 | · | 88.0<sup>2</sup> |" in text
    assert (
        "3 results match. Shown: tier=pinned dtype=fp16 (88.0). "
        "Not shown: tier=disk dtype=fp16 (99.0); tier=pinned dtype=bf16 (77.0)."
    ) in text


def test_a_finished_result_is_preferred_to_a_failed_one_and_the_failure_is_told(tiny: Table) -> None:
    results = [result("M1", outcome=Outcome.FAILED, reason="boom"), result("M1", seed=3)]
    text = render(tiny, results, "markdown", reference=PAPER)
    assert "| M1 | 200<sup>2</sup> |" in text
    assert "Shown: seed=3 (200). Not shown: seed=0 (failed)." in text


@pytest.mark.parametrize("outcome", sorted(set(Outcome) - {Outcome.OK}))
def test_every_other_outcome_shows_its_word_and_reason_and_no_number(tiny: Table, outcome: Outcome) -> None:
    text = render(tiny, [result("M1", outcome=outcome, reason="because of X")], "markdown", reference=PAPER)
    word = "-" if outcome is Outcome.OOM else str(outcome)
    name = "out of memory" if outcome is Outcome.OOM else str(outcome)
    assert text.count(f"| M1 | {word}<sup>1</sup> | · |") == 2
    assert f"<sup>1</sup> {name}: because of X" in text
    assert "200" not in text.split("### Tiny")[1]


def test_what_a_machine_cannot_measure_is_not_zero(tiny: Table) -> None:
    text = render(tiny, [result("M1", memory=None)], "markdown", reference=PAPER)
    assert "| M1 | n/a | · |" in text
    assert "n/a means that this machine cannot measure it." in text


def test_warnings_shared_weights_and_skipped_updates_are_told(tiny: Table) -> None:
    odd = dataclasses.replace(
        result("M1", "offload", "fp16", weights="shared", warnings=("clock went backwards",)), skipped_updates=2
    )
    text = render(tiny, [odd], "markdown", reference=PAPER)
    for said in ("Weights are shared", "2 updates were skipped", "Warning: clock went backwards"):
        assert said in text


def test_each_machine_has_its_own_tables(tiny: Table) -> None:
    results = [result("M1", machine="b", seconds=1.0), result("M1", machine="a", seconds=4.0), result("X", machine="c")]
    text = render(tiny, results, "markdown", reference=PAPER)
    sources = re.findall(r"^\*\*(measured.*|paper.*)\*\*$", text, re.MULTILINE)
    paper = "paper (p t1), on 1x G-1"
    assert sources == ["measured on a (1x A)", paper, "measured on b (1x B)", paper]
    assert "measured on a" not in render(tiny, results, "markdown", machine="b", reference=PAPER)
    with pytest.raises(ValueError, match="no results of machine 'z'; use one of a, b, c"):
        render(tiny, results, "markdown", machine="z", reference=PAPER)


def test_nothing_measured_still_shows_the_paper(tiny: Table) -> None:
    text = render(tiny, [], "terminal", reference=PAPER)
    assert "Nothing measured yet: no runner does it." in text
    assert "400" in text


@pytest.mark.parametrize("fmt", FORMATS)
def test_markup_in_names_and_reasons_is_shown_as_text(tmp_path: Path, fmt: str) -> None:
    table = table_from(tmp_path)
    table = dataclasses.replace(
        table, title=EVIL, rows=(dataclasses.replace(table.rows[1], header=EVIL, where={"model": (EVIL,)}),)
    )
    bad = result(EVIL, outcome=Outcome.FAILED, reason=EVIL, warnings=(EVIL,))
    text = render(table, [bad, result(EVIL, "offload", "fp16", warnings=(EVIL,))], fmt, reference=PAPER, width=300)
    assert "\x1b" not in text
    if fmt == "terminal":
        assert "[red]x[/red] | a & b_c \\\\ $d$ {e} %f #g ~h ^i <j> [31mk :smile: *l* `m`" in text
    elif fmt == "csv":
        assert [r["row"] for r in rows(text)][:2] == [" ".join(EVIL.replace("\x1b", " ").split())] * 2
    elif fmt == "markdown":
        cells = {len(re.findall(r"(?<!\\)\|", line)) for line in text.splitlines() if line.startswith("|")}
        assert cells == {4}
    else:
        body = [line for line in text.splitlines() if line.endswith(r" \\") and "failed" in line]
        assert [len(re.findall(r"(?<!\\)&", line)) for line in body] == [4]
        assert not re.search(r"(?<!\\)[#^~]|(?<!\\)_|^\[", text, re.MULTILINE)


def test_small_numbers_keep_three_digits() -> None:
    assert [rounded(v, ".0f") for v in (0, 12345.6, 123.4, 99.96, 12.34, 1.5, 0.0123)] == [
        *("0", "12346", "123", "100", "12.3", "1.50", "0.0123"),
    ]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('title = "Tiny"', 'titel = "Tiny"', "unknown key 'titel' in the table; did you mean title?"),
        ('title = "Tiny"', "", "`title` must be given in the table, but is missing"),
        ('title = "Tiny"', "title = 3", "`title` in the table must be of type str, but got 3"),
        (
            'baseline = "A"',
            'baseline = "C"',
            "`baseline` must be the header of a column or a row, but got 'C'; use one of A",
        ),
        ('header = "B"', 'header = "A"', "column headers must differ, but got A, A; rename one"),
        ("seq_len = 100", "seqlen = 100", "unknown key 'seqlen'; did you mean seq_len"),
        ("seq_len = 100", 'seq_len = "100"', "`seq_len` must be of type int, but got '100'"),
        ("seq_len = 100", "seq_len = []", "`where.seq_len` must allow a value, but got []"),
        ('engine = "resident"', 'engine = "residant"', "`engine` must be one of resident, offload, but got 'residant'"),
        ('method = "mezo"', 'methot = "mezo"', "unknown key 'methot' in `reference`; did you mean method"),
        ('model = ["M1", "M2"]', 'modle = ["M1"]', "unknown key 'modle' in [rows.product]; did you mean model"),
        ('model = ["M1", "M2"]', "model = []", "`model` in [rows.product] must be a list of values, but got []"),
        ('model = ["M1", "M2"]', "model = [1]", "`model` must be of type str, but got 1"),
        (
            'model = ["M1", "M2"]',
            'setting = ["ddp"]',
            "`rows.product.setting` is no field of a run, so `lacks` must",
        ),
        ('header = "M0"', 'header = "M1"', "row headers must differ, but got M1, M1, M2; rename one"),
        (
            'better = "lower"',
            'better = "lower"\nunit = "TB"',
            "`unit` of gpu_memory must be one of MB, GB, but got",
        ),
        ('artifact = "t1"', "", "`paper` and `artifact` must be given both or neither, but one is missing; add it"),
        (
            'header = "A"',
            'header = "A"\nquantity = "offload_rat"',
            "unknown quantity 'offload_rat'; did you mean offload_rate",
        ),
        (
            'header = "A"',
            'header = "A"\nquantity = "offload_rate"',
            "`quantity` must have the units of gpu_memory, MB, GB, but offload_rate of column 'A' has 1e9",
        ),
        ('name = "gpu_memory"', 'name = "gpu_memmory"', "unknown metric 'gpu_memmory'; did you mean gpu_memory"),
        ('better = "lower"', 'better = "smaller"', "`better` must be lower or higher, but got 'smaller'"),
        ('format = ".0f"', 'format = ".0q"', "`format` must be a number format, but got '.0q'; for example .0f"),
        ("[where]", "[where", "Expected"),
    ],
)
def test_a_mistake_in_the_file_is_one_line_that_names_it(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in TINY
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        table_from(tmp_path, TINY.replace(old, new, 1))
    assert str(caught.value).startswith("tiny.toml: ")
    assert "\n" not in str(caught.value)


def test_an_ambiguous_paper_value_is_an_error(tiny: Table) -> None:
    twice = Reference((PAPER.rows[0], PAPER.rows[0]))
    with pytest.raises(ValueError, match=r"one paper value must match, but 2 match paper=p, .*; narrow `reference`"):
        render(tiny, [], "markdown", reference=twice)


def test_an_unknown_format_names_the_known_ones(tiny: Table) -> None:
    with pytest.raises(ValueError, match="unknown format 'markdwon'; did you mean markdown"):
        render(tiny, [], "markdwon", reference=PAPER)


def test_a_reference_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match=r"the header of other\.csv must be paper,artifact,.*but got \['a', 'b'\]"):
        Reference.load(tmp_path / "other.csv")


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_no_column_is_lost_on_a_narrow_terminal(width: int) -> None:
    text = render(load_table(recipes.find("tables", "zo2/table1")), [], "terminal", width=width)
    rows = " ".join(line for line in text.splitlines() if "OPT-175B" in line)
    for value in ("34015", "18039", "14", "37"):  # all that the paper has of it
        assert re.search(rf"\b{value}\b", rows), value


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


def test_runs_on_the_cpu_of_a_machine_with_a_gpu_are_not_mixed_with_those_on_the_gpu(tiny: Table) -> None:
    both = [result("M1", device="cpu", memory=9 * MIB), result("M1", "offload", "fp16", memory=8 * MIB)]
    gpu: dict[str, Any] = {"machine": "box", "description": "1x BOX", "hardware": {"gpus": ["G"]}}
    text = render(tiny, [dataclasses.replace(one, environment=gpu) for one in both], "markdown", reference=PAPER)
    assert "**measured on box (1x BOX)**" in text
    assert "**measured on box-cpu (1x BOX)**" in text
    assert "(x0.89)" not in text
    only = render(tiny, [dataclasses.replace(one, environment=gpu) for one in both], "csv", machine="box-cpu")
    assert {row["device"] for row in rows(only) if row["source"] == "measured"} == {"cpu"}
    plain = render(tiny, both, "markdown", reference=PAPER)
    assert "box-cpu" not in plain


def test_every_table_says_how_close_its_runs_come_to_the_machines_floor() -> None:
    table = load_table(recipes.find("tables", "zo2/table3"))
    one = result("OPT-1.3B", seconds=2.0, seq_len=2048, calibration=CALIBRATION)
    share = 100 * 4 * 1_315_758_080 * 2048 / 1e11 / 2
    told = render(table, [one], "markdown")
    assert f"These runs reach {share:.0f} % of this machine's floor" in told
    both = [one, result("OPT-1.3B", "offload", seconds=4.0, seq_len=2048, calibration=CALIBRATION)]
    assert f"reach {share / 2:.0f} to {share:.0f} % of" in render(table, both, "markdown")
    assert "floor" not in render(table, [result("OPT-1.3B", seq_len=2048)], "markdown")


@pytest.mark.parametrize("name", ["zo-bench/table1", "zo-bench/tableA1"])
def test_what_cannot_be_measured_is_said_also_where_nothing_was_measured_yet(name: str) -> None:
    text = render(load_table(recipes.find("tables", name)), [], "markdown")
    assert re.search(rf"Nothing measured yet: .*{name}.*Parts of it cannot be measured: they need \w", text)


def test_quantities_of_one_column_stand_side_by_side_on_a_terminal() -> None:
    table = load_table(recipes.find("tables", "zo-bench/table4"))
    text = render(table, [], "terminal", width=80)
    ahead, line = (line for line in text.splitlines() if line.startswith(" ZO-SGD-Cons "))
    assert re.fullmatch(r" ZO-SGD-Cons +~[\d.]+ \(x[\d.]+\)¹ +~[\d.]+ \(x[\d.]+\)¹ *", ahead)
    assert line.split() == ["ZO-SGD-Cons", "64", "27.6"]
    one = result("OPT-13B", memory=70 * 2**30, seconds=2.0, batch_size=4, seq_len=400)
    measured = render(table, [one], "terminal", width=80).split("paper (")[0]
    (line,) = [line for line in measured.splitlines() if line.startswith(" ZO-SGD ")]
    assert line.split() == ["ZO-SGD", "70.0", "2.00"]
    heading = next(line for line in measured.splitlines() if "Memory (GB)" in line)
    assert re.search(r"Memory \(GB\) ↓[¹²] +Runtime cost \(s\) ↓", heading), "the note on memory stays with it"


def test_uploads_and_offloads_are_both_the_papers_link_rate_and_each_stands_in_its_own_column() -> None:
    table = load_table(recipes.find("tables", "distzo2/table2"))
    fields: dict[str, Any] = {"seq_len": 2048, "batch_size": 4, "gpus": 4, "parallel": "2d", "parts": True}
    streamed = 24 * models.block_parameter_count("OPT-1.3B")
    runs = [
        dataclasses.replace(
            result("OPT-1.3B", "offload", "fp16", transfers=transfers, **fields),
            parts={"upload_seconds": [up] * 3, "offload_seconds": [down] * 3},
        )
        for transfers, up, down in (("whole", 0.25, 0.5), ("sliced", 0.0625, 0.125))
    ]
    (row,) = [row for row in fill(table, runs, Reference.load()) if row[0][0].row.header == "OPT-1.3B"]
    assert [cell.value for cell in row[0]] == [streamed / seconds for seconds in (0.25, 0.0625, 0.5, 0.125)]
    assert [cell.paper_value for cell in row[0]] == [4.73e9, 19.24e9, 1.79e9, 8.32e9]
    bare = [dataclasses.replace(run, parts={}) for run in runs]
    assert "— means that transfers alone were not measured (parts=true)." in render(table, bare, "markdown")
