"""Tables: their texts in every format, which run a cell shows, and nothing shown that was not measured."""

import dataclasses
import re
from pathlib import Path

import pytest

from tests.support.tables import EVIL, MIB, PAPER, result, rows, table_from
from zobench.report import FORMATS, Table, render
from zobench.report.cells import fill
from zobench.report.sheet import WARNING, rounded
from zobench.result import Facts, Outcome
from zobench.result.record import DISTURBED

RESULTS = [
    result("M1", memory=200 * MIB, seconds=1.0),
    result("M1", "offload", "fp16", memory=50 * MIB, seconds=2.0),
    result("M2", outcome=Outcome.OOM, reason="device memory: 9 GB needed"),
]


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


@pytest.mark.parametrize("fmt", FORMATS)
def test_the_same_input_gives_the_same_text_in_any_order(tiny: Table, fmt: str) -> None:
    results = [*RESULTS, result("M1", seed=1, seconds=9.0), result("M1", seed=2), result("M1", machine="other")]
    assert render(tiny, results, fmt, reference=PAPER) == render(tiny, results[::-1], fmt, reference=PAPER)


def test_cpu_memory_and_another_16_bit_type_are_said_once_at_the_heading(tiny: Table) -> None:
    results = [result("M1", device="cpu"), result("M1", "offload", "bf16", device="cpu"), result("M2", device="cpu")]
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
    assert "**nothing measured yet on box (1x BOX)**" in text
    assert "200" not in text.split("### Tiny")[1]


def test_what_a_machine_cannot_measure_is_not_zero(tiny: Table) -> None:
    text = render(tiny, [result("M1", memory=None)], "markdown", reference=PAPER)
    assert "| M1 | n/a | · |" in text
    assert "n/a means that this machine cannot measure it." in text


def test_each_machine_has_its_own_tables(tiny: Table) -> None:
    results = [result("M1", machine="b", seconds=1.0), result("M1", machine="a", seconds=4.0), result("X", machine="c")]
    text = render(tiny, results, "markdown", reference=PAPER)
    sources = re.findall(r"^\*\*(measured.*|paper.*)\*\*$", text, re.MULTILINE)
    paper = "paper (p t1), on 1x G-1"
    assert sources == ["measured on a (1x A)", paper, "measured on b (1x B)", paper]
    assert "measured on a" not in render(tiny, results, "markdown", machine="b", reference=PAPER)
    with pytest.raises(ValueError, match="no results of machine 'z'; use one of a, b, c"):
        render(tiny, results, "markdown", machine="z", reference=PAPER)


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


def test_warnings_about_times_are_said_of_times_alone(tiny: Table) -> None:
    warnings = (f"{DISTURBED}1.3 cores busy meanwhile; expect slower steps", "swapped: 3 pages")
    ((memory, throughput), *_) = fill(tiny, [result("M1", warnings=warnings)], PAPER)
    warned = [[note.removeprefix(WARNING) for note in group[0].caveats if note.startswith(WARNING)]
              for group in (memory, throughput)]  # fmt: skip
    assert warned == [["swapped: 3 pages"], list(warnings)]


def test_small_numbers_keep_three_digits() -> None:
    assert [rounded(v, ".0f") for v in (0, 12345.6, 123.4, 99.96, 12.34, 1.5, 0.0123)] == [
        *("0", "12346", "123", "100", "12.3", "1.50", "0.0123")
    ]


def test_runs_on_the_cpu_of_a_machine_with_a_gpu_are_not_mixed_with_those_on_the_gpu(tiny: Table) -> None:
    both = [result("M1", device="cpu", memory=9 * MIB), result("M1", "offload", "fp16", memory=8 * MIB)]
    gpu = Facts(machine="box", description="1x BOX", hardware={"gpus": ["G"]})
    text = render(tiny, [dataclasses.replace(sheet, environment=gpu) for sheet in both], "markdown", reference=PAPER)
    assert "**measured on box (1x BOX)**" in text
    assert "**measured on box-cpu (1x BOX)**" in text
    assert "(x0.89)" not in text
    only = render(tiny, [dataclasses.replace(sheet, environment=gpu) for sheet in both], "csv", machine="box-cpu")
    assert {row["device"] for row in rows(only) if row["source"] == "measured"} == {"cpu"}
    plain = render(tiny, both, "markdown", reference=PAPER)
    assert "box-cpu" not in plain
