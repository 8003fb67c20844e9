"""The command line: one line for a mistake, the answer alone on standard output, sweeps that survive being killed."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.console import Console
from transformers import AutoConfig

from tests.support.rates import CALIBRATION, RATES, calibrate
from zobench import cli, predict, recipes
from zobench.cli import console, measure
from zobench.execute import plan, process, rates
from zobench.predict import footprint
from zobench.recipes import matrix
from zobench.result import Outcome, Result
from zobench.runspec import FIELDS, RunSpec
from zobench.store import Store, StoreError, files

linux = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and prctl")
GB = 10**9
OPTIONS = {
    "calibrate": 3,
    "sweep": 18, "ablate": 9, "run": 11, "table": 4, "list": 0, "doctor": 2, "reproduce": 7, "report": 2, "status": 1,
    "cancel": 1, "selftest": 6, "results": 4, "plan": 10, "predict": 8, "compare": 5, "trace": 2, "finetune": 15,
    "search": 13,
}  # fmt: skip
"""Options per command. A new one needs a user, and a change here."""


@pytest.fixture
def cells(monkeypatch: pytest.MonkeyPatch, machine: str) -> list[RunSpec]:
    """Replaces the processes of cells; the cells that ran. A seed of 1 fails, of 2 runs out of memory."""
    ran: list[RunSpec] = []

    def run(spec: RunSpec, **_: Any) -> Result:
        ran.append(spec)
        outcome = {1: Outcome.FAILED, 2: Outcome.OOM}.get(spec.seed, Outcome.OK)
        samples: dict[str, list[float | None]] = {"step_seconds": [0.5] * spec.steps} if outcome is Outcome.OK else {}
        return Result(
            spec=spec, outcome=outcome, reason="" if outcome is Outcome.OK else "a reason", samples=samples,
            environment={"machine": machine}, memory={"device_peak_bytes": 2**20},
        )  # fmt: skip

    monkeypatch.setattr(process, "run_in_process", run)
    monkeypatch.setattr("zobench.execute.sweep.run_in_process", run)
    return ran


def write(folder: Path, text: str) -> str:
    (folder / "mine.toml").write_text(text)
    return "mine.toml"


# ---- mistakes


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("run --model opt-tiny --set seq_len=0", "`seq_len >= 2` must hold, but got seq_len=0; a causal loss needs"),
        ("run --model opt-tiny --set batch_size=-1", "`batch_size >= 1` must hold, but got batch_size=-1; the papers"),
        ("run --model opt-tiny --set dtype=fp12", "`dtype` must be one of fp32, fp16, bf16, but got 'fp12'; did you"),
        ("run --model OPT-1.3", "unknown model 'OPT-1.3'; did you mean OPT-1.3B or "),
        ("run --model opt-tiny --engine mezo", "`engine` must be one of resident, offload, but got 'mezo'; use one of"),
        ("run --model opt-tiny --set eps=0", "`eps > 0` must hold, but got eps=0.0; MeZO uses eps=1e-3"),
        ("run --model opt-tiny --set steps=0", "`steps >= 1` must hold, but got steps=0; ask for at least one"),
        ("run --model llama-tiny --set seq_len=65", "`seq_len <= 64` must hold for llama-tiny, but got seq_len=65; "),
        ("run --model opt-tiny --engine offload --set resident_blocks=4", "`resident_blocks <= 3` must hold for opt-"),
        ("run --model opt-tiny --set step=5", "unknown key 'step'; did you mean steps or eps? see `zobench list fi"),
        ("run --model opt-tiny --set qqqq=5", "unknown key 'qqqq'; see `zobench list fields`"),
        ("run --model opt-tiny --set", "Option '--set' requires an argument. (see `zobench list fields`)"),
        ("table --set", "No such option: --set (Possible options: --out) (see `zobench table --help`)"),
        ("run --model opt-tiny --set options.beta=1", "unknown option 'beta' of method=zo-sgd, scheme=f"),
        ("run --model opt-tiny --set options=1", "`options` must be a table, but got '1'; write options.NAME=VALUE"),
        ("run --model opt-tiny --set program=mezo", "`program` must be one of zobench, but got 'mezo'; if a pac"),
        ("run --model opt-tiny --set steps", "`--set` needs KEY=VALUE, but got 'steps'; for example --set steps=5, see "
                                             "`zobench list fields`"),
        ("run --model opt-tiny --set steps=many", "`steps` must be a whole number, but got 'many'; for example "),
        ("run --model opt-tiny --engine offload --set tier=pinned", "`tier=pinned` needs a CUDA device, but got "),
        ("run --model opt-tiny --timeout soon", "`--timeout` must be a time, but got 'soon'; write 90s, 10m or 2h"),
        ("run --model opt-tiny --json no/x.json", "`--json` must be a file in a folder that exists, but got 'no/"),
        ("run --model opt-tiny --json .", "`--json` must be a file in a folder that exists, but got '.'; "),
        ("run --model opt-tiny --disk-dir no", "`--disk-dir` must be a folder, but got 'no'; create it first"),
        ("run --model opt-tiny --device-memory 8XB", "`device_memory` must be a size, but got '8XB'; write "),
        ("run --model opt-tiny --device-memory 8GB", "`device_memory=8GB` needs engine=offload, but got engine="),
        ("run --model opt-tiny --engine offload --device-memory 8GB", "`device_memory=8GB` needs noise=counter, but "),
        ("run --model opt-tiny --device-memory 8GB --set device_memory=4GB", "`device_memory` must be given once, "),
        ("sweep smoke --device-memory much", "`device_memory` must be a size, but got 'much'; write device_memory="),
        ("run", "`model` must be given, but got no model; see `zobench list models`"),
        ("run --model", "Option '--model' requires an argument"),
        ("run --modle opt-tiny", "No such option: --modle "),
        ("run opt-tiny", "Got unexpected extra argument"),
        ("runn", "No such command 'runn'."),
        ("sweep", "Missing argument 'NAME|FILE'"),
        ("sweep main_tabel", "no such recipe in runners: 'main_tabel'; did you mean main_table? see "),
        ("sweep smoke --set seqlen=32", "unknown key 'seqlen'; did you mean seq_len"),
        ("sweep smoke --set steps=0", "smoke.toml: `steps >= 1` must hold, but got steps=0; "),
        ("sweep smoke --set device=gpu", "`device` must be auto, cpu, cuda or cuda:N, but got 'gpu'; use device=auto"),
        ("sweep smoke --budget 5d", "`--budget` must be a time, but got '5d'; write 90s, 10m or 2h"),
        ("sweep smoke --budget 0", "`--budget > 0` must hold, but got '0'; write 90s, 10m or 2h"),
        ("sweep smoke --budget nan", "`--budget > 0` must hold, but got 'nan'; write 90s, 10m or 2h"),
        ("sweep smoke --retry oomm", "`--retry` takes oom, timeout, failed, skipped, contaminated or none, but got "
                                     "'oomm'; did you mean oom?"),
        ("sweep smoke --retry ok", "`--retry` takes oom, timeout, failed, skipped, contaminated or none, but got 'ok'"),
        ("sweep smoke --disk-dir no", "`--disk-dir` must be a folder, but got 'no'; create it first"),
        ("run --model opt-tiny --set model=qwen3-tiny", "`model` must be given once, but got it twice; leave one out"),
        ("sweep smoke --results file", "`--results` must be a folder, but got 'file'; it is a file; name a folder"),
        ("sweep bad_key.toml", "bad_key.toml: unknown key 'axis' in the file; did you mean axes?"),
        ("sweep bad_table.toml", "no such recipe in tables or plots: 'zo2/tabel1'; did you mean zo2/table1"),
        ("table zo2/tabl1", "no such recipe in tables or plots: 'zo2/tabl1'; did you mean zo2/table1"),
        ("table zo2/table1 --format pdf", "unknown format 'pdf'; use one of terminal, markdown, latex, csv"),
        ("table zo2/table1 --machine ../x", "no results of machine '../x', nor of any other; run a sweep first"),
        ("table zo2/table1 --results file/x", "`--results` must be a folder, but got "),
        ("list model", "unknown list 'model'; did you mean models?"),
        ("doctor --device tpu", "`device` must be auto, cpu, cuda or cuda:N, but got 'tpu'; use device=auto"),
    ],
)  # fmt: skip
def test_a_mistake_ends_in_one_line_and_exit_code_2(
    here: Path, zobench: Any, cells: list[RunSpec], arguments: str, message: str
) -> None:
    (here / "file").write_text("")
    (here / "bad_key.toml").write_text("[axis]\n")
    (here / "bad_table.toml").write_text('tables = ["zo2/tabel1"]\n[[include]]\nmodel = "opt-tiny"\n')
    words = arguments.split()
    wants_device = words[0] in ("run", "sweep") and len(words) > 1 and words[-1] not in ("--model", "--set")
    code, out, err = zobench(*words, *(["--device", "cpu"] if wants_device else []))
    lines = [line for line in err.splitlines() if not line.startswith("device: ")]
    assert (code, out, len(lines)) == (2, "", 1), err
    assert lines[0].startswith(f"zobench: {message}")
    assert cells == []


@pytest.mark.parametrize("arguments", [["run", "--model", "opt-tny"], ["swep"], ["sweep", "nothing_like_it"]])
def test_a_mistake_shows_no_traceback_in_a_process_of_its_own(tmp_path: Path, arguments: list[str]) -> None:
    done = _process(tmp_path, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("zobench: ")
    assert len(done.stderr.splitlines()) == 1


def test_what_the_system_refuses_is_one_line_and_exit_code_1(
    here: Path, zobench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rates, "ask", _refuse)
    monkeypatch.setenv("ZOBENCH_CACHE_DIR", str(here / "cache"))
    code, _, err = zobench("sweep", "smoke", "--device", "cpu", "--results", "elsewhere")
    assert code == 1
    assert err.splitlines()[-1] == "zobench: measuring this machine failed: no"


def _refuse(*_: Any) -> str:
    raise OSError("measuring this machine failed: no")


# ---- what it is made of


def test_no_command_grows_options_unnoticed() -> None:
    commands = typer.main.get_command(cli.app).commands  # type: ignore[attr-defined]
    options = {name: [p for p in command.params if p.param_type_name == "option"] for name, command in commands.items()}
    assert {name: len([p for p in found if p.name != "help"]) for name, found in options.items()} == OPTIONS


def test_without_arguments_the_help_is_shown(zobench: Any) -> None:
    bare, asked = zobench(), zobench("--help")
    assert bare == asked
    assert (bare[0], bare[2]) == (0, "")
    assert "Run a matrix of cells" in bare[1]


def test_looking_around_imports_nothing_heavy(here: Path, machine: str) -> None:
    program = """
import sys
from zobench import cli
heavy = {"torch", "transformers", "pandas", "numpy", "matplotlib"}
for arguments in ([], ["--help"], ["list"], ["list", "models"], ["sweep", "main_table", "--dry-run", "--device", "cpu"],
                  ["table", "zo2/table1"], ["run", "--model", "typo", "--device", "cpu"],
                  ["results"], ["results", ".", "--where", "seed=1"], ["compare", ".", "."], ["trace", "0000"]):
    try:
        cli.main(arguments)
    except SystemExit:
        assert not heavy & set(sys.modules), (arguments, heavy & set(sys.modules))
"""
    environment = {**process.child_environment(), "COLUMNS": "200"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "OPT-175B" in done.stdout


def test_the_package_itself_imports_almost_nothing() -> None:
    program = (
        "import sys, zobench; print(*sorted(m for m in sys.modules if m.startswith('zobench')), 'torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=process.child_environment(), capture_output=True, text=True, check=True
    )
    assert done.stdout == "zobench zobench.version False\n"


def test_lists_name_models_matrices_and_tables_even_beside_a_broken_file(here: Path, zobench: Any) -> None:
    (here / "runners").mkdir()
    (here / "runners" / "broken.toml").write_text("[[")
    (here / "runners" / "mine.toml").write_text('title = "my own"')
    code, out, _ = zobench("list")
    assert code == 0
    for text in ("OPT-175B", "174.6 G", "main_table", "zo2/table1", "my own", "cannot be read"):
        assert text in out


def test_the_fields_are_listed_each_with_type_default_words_and_a_line(
    here: Path, zobench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = zobench("list", "fields")
    lines = [line.rstrip() for line in out.splitlines()]
    assert code == 0
    assert max(map(len, lines)) <= 80
    assert [line.split()[0] for line in lines[2:] if line and line[0] != " "] == list(FIELDS)
    assert lines[1].split("  ")[0] == "field"
    at = lines.index("dtype             word            fp32        the type of the weights on the")
    assert lines[at + 1].strip() == "device [fp32, fp16, bf16]"
    assert "writeback_every   integer or inf  1           steps between two write-backs of a" in lines
    monkeypatch.setenv("COLUMNS", "120")
    assert any(line.rstrip().endswith("the type of the weights on the device [fp32, fp16, bf16]") for line in
               zobench("list", "fields")[1].splitlines())  # fmt: skip
    assert "checkpoint_every" not in zobench("list")[1]


# ---- run


def test_run_tells_on_standard_error_and_leaves_standard_output_alone(
    here: Path, zobench: Any, cells: list[RunSpec]
) -> None:
    code, out, err = zobench("run", "--model", "OPT-TINY", "--device", "cpu", "--json", "out.json")
    assert (code, out) == (0, "")
    assert err.splitlines()[:2] == ["device: cpu, as asked", "seq_len: 64, because opt-tiny has 64 positions"]
    assert err.splitlines()[2].startswith("ok       opt-tiny resident fp32 b1 s64  128 tokens/s, 0.5 s a step")
    assert Result.from_dict(json.loads((here / "out.json").read_text())).spec == cells[0]
    assert cells[0].seq_len == 64


@pytest.mark.parametrize(
    ("arguments", "seq_len"), [("--model OPT-125M", 2048), ("--model opt-tiny --set seq_len=9", 9)]
)
def test_a_seq_len_that_is_usual_or_given_is_not_explained(
    here: Path, zobench: Any, cells: list[RunSpec], arguments: str, seq_len: int
) -> None:
    code, _, err = zobench("run", *arguments.split(), "--device", "cpu")
    assert (code, cells[0].seq_len) == (0, seq_len)
    assert "seq_len:" not in err


def test_a_given_device_memory_is_planned_aloud(here: Path, zobench: Any, cells: list[RunSpec]) -> None:
    command = ("run", "--model", "OPT-125M", "--engine", "offload", "--set", "noise=counter", "--device", "cpu")
    code, _, err = zobench(*command, "--device-memory", "1GB")
    assert (code, [spec.device_memory for spec in cells]) == (0, [GB])
    assert "device_memory=1GB: blocks in 3 slots need " in err
    assert "and 12 of 12 blocks stay" in err
    code, out, err = zobench(*command, "--device-memory", "100MB")
    assert (code, out, len(err.splitlines()), len(cells)) == (2, "", 1, 1)
    assert "must hold for OPT-125M in 2 slots of tiles, but got device_memory=100MB; give it more" in err


def test_run_ends_with_1_where_the_cell_did_not_work(here: Path, zobench: Any, cells: list[RunSpec]) -> None:
    code, out, err = zobench("run", "--model", "opt-tiny", "--set", "seed=1", "--set", "device=cpu", "--json", "-")
    assert (code, json.loads(out)["outcome"]) == (1, "failed")
    assert err == "failed   opt-tiny resident fp32 b1 s64 seed=1  a reason\n"


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_run_starts_no_process_for_what_cannot_fit(
    device: str, here: Path, cells: list[RunSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU, which is not here, as on a CPU; with the numbers and with what helps."""
    room = plan.Limits(device_bytes=None if device == "cpu" else 10**9, host_bytes=2 * 10**9, disk_bytes=10**9)
    monkeypatch.setattr(plan, "limits", lambda *_: room)
    spec = RunSpec(model="OPT-13B", dtype="fp16", device=device).resolve(device)
    result = measure._measured(spec, footprint.memory(spec), None, None, True)
    assert (result.outcome, cells) == (Outcome.SKIPPED, [])
    kind = "host memory, 0.9 GB" if device == "cpu" else "device memory, 1.0 GB"
    remedy = "use engine=offload, or a smaller batch_size or model"
    assert re.fullmatch(rf"needs 2\d\.\d GB of {kind} are free \(need predicted\); {remedy}", result.reason)
    small = RunSpec(model="opt-tiny", seq_len=16, device=device).resolve(device)
    assert measure._measured(small, footprint.memory(small), None, None, True).outcome is Outcome.OK
    assert cells == [small]


def test_an_interrupt_of_a_run_ends_with_130(here: Path, zobench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any, **__: Any) -> Result:
        raise KeyboardInterrupt

    monkeypatch.setattr(process, "run_in_process", interrupt)
    assert zobench("run", "--model", "opt-tiny", "--device", "cpu")[0] == 130


def test_json_on_standard_output_is_exactly_the_result_of_the_real_thing(tmp_path: Path) -> None:
    done = _process(
        tmp_path, "run", "--model", "opt-tiny", "--engine", "offload", "--set", "tier=disk", "--set", "steps=5",
        "--set", "device=cpu", "--json", "-",
    )  # fmt: skip
    answer = json.loads(done.stdout)
    assert done.stdout == json.dumps(answer, indent=1, allow_nan=False) + "\n"
    assert {"schema_version", "spec", "outcome", "reason", "environment", "samples", "memory"} <= answer.keys()
    assert (answer["schema_version"], answer["tokens_per_step"]) == (3, 64)
    if answer["outcome"] == "contaminated":  # a busy machine; the rest is complete all the same
        assert answer["reason"]
    else:
        assert (done.returncode, answer["outcome"], answer["reason"], done.stderr) == (0, "ok", "", "")
    assert answer["spec"]["tier"] == "disk"
    assert {name: len(values) for name, values in answer["samples"].items()} == {
        "step_seconds": 5, "loss": 5, "projected_grad": 5
    }  # fmt: skip
    assert all(type(value) is float for values in answer["samples"].values() for value in values)
    assert answer["memory"]["host_rss_peak_bytes"] > answer["memory"]["device_peak_bytes"] > 0
    assert Result.from_dict(answer).to_dict() == answer


def test_a_real_cell_that_takes_too_long_ends_as_timeout(here: Path, zobench: Any) -> None:
    code, out, _ = zobench(
        "run", "--model", "opt-tiny", "--set", "steps=1000000", "--device", "cpu", "--timeout", "1s", "--json", "-"
    )
    answer = json.loads(out)
    assert (code, answer["outcome"]) == (1, "timeout")
    assert answer["reason"] == "the cell took longer than the 1 s it was given"


# ---- sweep


def test_a_dry_run_prints_the_plan_and_runs_and_stores_nothing(
    here: Path, zobench: Any, cells: list[RunSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "free_disk_bytes", lambda folder: 40 * GB)
    before = sorted(here.rglob("*"))
    code, out, err = zobench("sweep", "main_table", "--dry-run", "--device", "cpu")
    assert (code, cells) == (0, [])
    assert "machine" in err
    assert sorted(here.rglob("*")) == before
    count = len(matrix.load(recipes.find("runners", "main_table"), "cpu").cells)
    assert f" of {count} cells to run: about " in out
    assert "needs 700 GB host memory" in out  # OPT-175B, resident, fp32
    assert "needs 118 GB disk space" in out  # OPT-30B, offload/disk, fp32
    told = "host memory, 22.9 GB are free (need predicted); disk space, 40.0 GB are free (need predicted)"
    assert f"not enough here: {told}" in " ".join(out.split())


MIXED = """
title = "A bit of everything"
[base]
model = "opt-tiny"
steps = 2
[axes]
seed = [0, 1, 2, 3]
[[include]]
model = "OPT-175B"
[[include]]
model = "llama-tiny"
seq_len = 65
"""


def test_a_sweep_goes_on_after_every_bad_cell_and_a_second_one_runs_only_what_is_left(
    here: Path, zobench: Any, cells: list[RunSpec], machine: str
) -> None:
    command = ("sweep", write(here, MIXED), "--device", "cpu")
    code, out, err = zobench(*command)
    assert code == 1  # a cell failed: a script that runs a sweep must notice
    assert [spec.seed for spec in cells] == [0, 1, 2, 3]
    assert "cells: 2 ok, 1 failed, 1 oom, 2 skipped" in err
    assert "to run those again: --retry oom,failed" in err
    assert "6 runs" in out  # the matrix has no tables: its runs are shown
    files = {path: path.read_bytes() for path in (here / "results" / machine).glob("*.json")}
    assert len(files) == 6
    reasons = {json.loads(data)["reason"] for data in files.values()}
    assert any(reason.startswith("needs 700 GB of host memory, 22.9 GB are free") for reason in reasons)
    assert any(reason.startswith("`seq_len <= 64` must hold for llama-tiny") for reason in reasons)

    zobench(*command)
    assert [spec.seed for spec in cells[4:]] == [1]
    zobench(*command, "--retry", "none")
    assert len(cells) == 5
    zobench(*command, "--retry", "oom,failed")
    assert [spec.seed for spec in cells[5:]] == [1, 2]
    assert {path: path.read_bytes() for path in files} == files


BY_MODEL = """
title = "By model"
[rows.product]
model = ["OPT-1.3B", "opt-tiny"]
[[columns]]
header = "MeZO"
where = { engine = "resident", seq_len = [2048, 64] }
[[metrics]]
name = "throughput"
header = "Throughput (tokens/s)"
format = ".0f"
better = "higher"
"""


def test_a_budget_leaves_cells_out_and_says_how_long_they_need(
    here: Path, zobench: Any, cells: list[RunSpec], machine: str
) -> None:
    text = 'tables = ["own"]\n[base]\nsteps = 2\n[axes]\nmodel = ["OPT-1.3B", "opt-tiny"]\n'
    (here / "tables").mkdir()
    (here / "tables" / "own.toml").write_text(BY_MODEL)
    code, out, err = zobench("sweep", write(here, text), "--device", "cpu", "--budget", "30s")
    assert code == 0
    assert [spec.model for spec in cells] == ["opt-tiny"]
    assert "over the budget" in err
    assert "1 ok" in err
    assert "skipped, by prediction: the budget, 30 s are left" in " ".join(out.split())
    assert not list((here / "results" / machine).glob("OPT-1.3B*.json"))  # a budget says nothing about the machine
    zobench("sweep", "mine.toml", "--device", "cpu")
    assert [spec.model for spec in cells] == ["opt-tiny", "OPT-1.3B"]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS])
def test_a_results_folder_that_takes_nothing_is_told_at_the_end_with_the_table_and_exit_code_1(
    here: Path, zobench: Any, cells: list[RunSpec], monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refuse(path: Path, data: bytes) -> None:
        raise OSError(code, os.strerror(code), str(path))

    monkeypatch.setattr(files, "replace", refuse)
    text = 'tables = ["zo2/table1"]\n[base]\nmodel = "OPT-125M"\n[axes]\nseed = [0, 3]\nseq_len = [2048]\n'
    ended, out, err = zobench("sweep", write(here, text), "--device", "cpu")
    assert (ended, len(cells)) == (1, 2)
    assert f"not saved: a result must be writable, but got {os.strerror(code)!r} for results/" in err
    assert "OPT-125M" in out
    assert "4096" in out  # tokens/s of what was measured, though nothing was stored


def test_what_could_not_be_read_is_told(here: Path, zobench: Any, cells: list[RunSpec], machine: str) -> None:
    (here / "results" / machine).mkdir()
    (here / "results" / machine / "torn.json").write_text('{"schema')
    _, _, err = zobench("sweep", write(here, MIXED), "--device", "cpu", "--dry-run")
    assert f"not read: results/{machine}/torn.json: " in err


def test_a_table_is_printed_or_written_from_what_is_stored_and_reads_nothing_but_results(
    here: Path, zobench: Any, cells: list[RunSpec]
) -> None:
    zobench("sweep", write(here, '[axes]\nmodel = ["OPT-125M"]\nengine = ["resident", "offload"]'), "--device", "cpu")
    code, out, err = zobench("table", "zo2/table1", "--format", "markdown")
    assert (code, err) == (0, "")
    assert "OPT-125M" in out
    assert zobench("table", "zo2/table1", "--format", "markdown", "--out", "table.md") == (0, "", "")
    assert (here / "table.md").read_text() == out


def test_a_sweep_stores_the_rates_and_its_table_shows_the_share_of_the_floor(
    here: Path, zobench: Any, cells: list[RunSpec], machine: str
) -> None:
    text = 'tables = ["zo2/table1"]\n[axes]\nmodel = ["OPT-125M"]\n'
    _, out, err = zobench("sweep", write(here, text), "--device", "cpu")
    (path,) = (here / "results" / machine).glob("*.json")
    assert json.loads(path.read_text())["environment"]["calibration"] == CALIBRATION
    floor = 4 * 125_239_296 * 2048 / 1e11 / 0.5  # of products alone, in the half second that the fake cell takes
    assert f"{100 * floor:.0f}" in out.partition("Floor (%)")[2]
    assert f", {floor:.0%} of the floor" in err


def test_a_sweep_gives_a_device_memory_to_the_cells_that_have_something_to_plan(
    here: Path, zobench: Any, cells: list[RunSpec]
) -> None:
    base = '[base]\nmodel = "OPT-125M"\nengine = "offload"\nnoise = "counter"\n'
    text = base + '[axes]\ngranularity = ["linear", "block"]\n'
    _, _, err = zobench("sweep", write(here, text), "--device", "cpu", "--device-memory", "600MB")
    assert [(spec.device_memory, spec.granularity) for spec in cells] == [(600_000_000, "block")]
    assert "device_memory=600MB holds for 1 of 1 cells\n" in err
    cells.clear()
    _, _, err = zobench("sweep", "smoke", "--device", "cpu", "--set", "device_memory=600MB")
    for spec in cells:
        assert spec.device_memory == (600_000_000 if spec.engine == "offload" and spec.noise == "counter" else 0)
    told = f"device_memory=600MB holds for 5 of {len(cells)} cells; the others are resident or have torch noise, which "
    assert err.count(told) == 1


def test_a_device_memory_that_no_cell_can_use_is_refused(here: Path, zobench: Any, cells: list[RunSpec]) -> None:
    code, _, err = zobench("sweep", "qwen3", "--device", "cpu", "--device-memory", "3GB")
    assert (code, cells) == (2, [])
    assert err == (
        "zobench: `device_memory` needs a cell with engine=offload and noise=counter, but qwen3.toml has none; "
        "leave it out, or add --set engine=offload --set noise=counter\n"
    )


def test_a_second_sweep_into_the_same_results_is_refused(here: Path, zobench: Any, cells: list[RunSpec]) -> None:
    with Store(here / "results").lock():
        code, _, err = zobench("sweep", write(here, TWO), "--device", "cpu")
    assert (code, cells) == (1, [])
    assert "results must have one writer, but another sweep uses it; name another --results" in err


def test_a_results_folder_that_cannot_be_written_is_told_before_the_first_cell_and_the_sweep_goes_on(
    here: Path, zobench: Any, cells: list[RunSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Store) -> None:
        raise StoreError(errno.EROFS, "results must be writable, but got 'Read-only file system'; choose another")

    monkeypatch.setattr(Store, "lock", refuse)
    _, _, err = zobench("sweep", write(here, TWO), "--device", "cpu")
    assert len(cells) == 2
    assert "warning: nothing will be kept: results must be writable, but got 'Read-only file system'" in err


def test_a_single_run_that_cannot_fit_is_not_started(here: Path, zobench: Any, cells: list[RunSpec]) -> None:
    code, out, _ = zobench("run", "--model", "OPT-175B", "--device", "cpu", "--json", "-")
    assert (code, cells, json.loads(out)["outcome"]) == (1, [], "skipped")
    assert json.loads(out)["reason"].startswith("needs 700 GB of host memory")


def test_json_names_no_folder_of_this_machine(here: Path, zobench: Any, cells: list[RunSpec]) -> None:
    folder = here / "mine"
    AutoConfig.for_model("opt", hidden_size=32, num_hidden_layers=2, ffn_dim=64, num_attention_heads=2).save_pretrained(
        folder
    )
    code, out, _ = zobench("run", "--model", str(folder), "--device", "cpu", "--set", "seq_len=32", "--json", "-")
    assert (code, cells[0].model_path) == (0, str(folder))
    assert json.loads(out)["spec"]["model"] == "mine"
    assert str(here) not in out


def test_the_version_is_printed(zobench: Any) -> None:
    import zobench as package

    assert zobench("--version") == (0, package.__version__ + "\n", "")


# ---- being stopped


TWO = '[base]\nmodel = "opt-tiny"\nseq_len = 32\n[axes]\nseed = [0, 1]\n'


@pytest.mark.slow
@linux
def test_after_kill_9_the_same_command_goes_on_and_nothing_keeps_running(tmp_path: Path, machine: str) -> None:
    calibrate(tmp_path, machine)
    write(tmp_path, TWO)
    sweep = _start(tmp_path)
    try:
        (first,) = _poll(lambda: list((tmp_path / "results" / machine).glob("*.json")))
        child = _poll(lambda: [pid for pid in _children(sweep.pid) if "zobench.execute.child" in _command(pid)])[0]
    finally:
        sweep.kill()
        sweep.communicate()
    _poll(lambda: "zobench.execute.child" not in _command(child))
    whole, changed = first.read_bytes(), first.stat().st_mtime_ns
    assert json.loads(whole)["outcome"] in ("ok", "contaminated")
    assert list((tmp_path / "results" / machine).iterdir()) == [first]

    again = _process(tmp_path, "sweep", "mine.toml", "--device", "cpu", "--retry", "none")
    assert again.returncode == 0, again.stderr
    assert (first.read_bytes(), first.stat().st_mtime_ns) == (whole, changed)
    files = list((tmp_path / "results" / machine).iterdir())
    assert sorted(json.loads(path.read_text())["spec"]["seed"] for path in files) == [0, 1]


@linux
def test_ctrl_c_stops_with_a_summary_and_leaves_no_process(tmp_path: Path, machine: str) -> None:
    calibrate(tmp_path, machine)
    path = tmp_path / write(tmp_path, TWO + "steps = [1000000]\n")
    kept = matrix.load(path, "cpu").cells[0]
    Store(tmp_path / "results").save(Result(spec=kept, outcome=Outcome.OK, environment={"machine": machine}))
    sweep = _start(tmp_path)
    child = _poll(lambda: [pid for pid in _children(sweep.pid) if "zobench.execute.child" in _command(pid)])[0]
    sweep.send_signal(signal.SIGINT)
    out, err = sweep.communicate(timeout=20)
    assert (sweep.returncode, out.splitlines()[1]) == (130, "1 run")  # the one that was done
    assert err.splitlines()[-2:] == ["cells: 1 ok", "stopped; the same command goes on from here"]
    assert "Traceback" not in err
    assert _command(child) == ""


def _process(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "zobench", *arguments]
    return subprocess.run(
        command, cwd=folder, env=process.child_environment(), capture_output=True, text=True, timeout=60, check=False
    )


def _start(folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-P", "-m", "zobench", "sweep", "mine.toml", "--device", "cpu"]
    return subprocess.Popen(
        command, cwd=folder, env=process.child_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def _poll(look: Callable[[], Any], seconds: float = 40) -> Any:
    """What ``look`` returns as soon as that is true."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := look():
            return found
        time.sleep(0.02)
    raise TimeoutError("it did not happen")


def _children(pid: int) -> list[int]:
    return [int(path.name) for path in Path("/proc").glob("[0-9]*") if _parent(path) == pid]


def _parent(path: Path) -> int | None:
    try:
        return int((path / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


def test_a_run_that_takes_long_says_how_long_before_it_starts_and_one_that_cannot_fit_does_not_start(
    zobench: Any, here: Path, machine: str, cells: list[RunSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZOBENCH_CACHE_DIR", str(here / "cache" / "results"))
    calibrate(here / "cache", machine)
    long = ("run", "--device", "cpu", "--model", "OPT-125M", "--set")
    _, _, err = zobench(*long, "batch_size=100000")
    assert "skipped  OPT-125M resident fp32 b100000 s2048  needs 8809 GB of host memory, 22.9 GB are free" in err
    assert not cells
    _, _, err = zobench(*long, "batch_size=64")
    guess = predict.estimate(cells[0], RATES)
    each = plan.duration(guess.step_seconds)
    assert f"\ntime: about {plan.duration(guess.seconds)} (predicted): 6 steps of {each}\n" in err
    _, _, err = zobench("run", "--device", "cpu", "--model", "opt-tiny")
    assert (len(cells), "time: " in err) == (2, False)


def test_without_a_terminal_a_cell_that_takes_long_is_told_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(console.time, "monotonic", lambda: clock[0])
    spec = RunSpec(model="opt-tiny").resolve("cpu")
    step = plan.Step(spec=spec, action="run", reason="", estimate=predict.estimate(spec, RATES))
    for terminal, lines in ((False, [60, 120, 240, 480, 960, 1560]), (True, [])):
        written = io.StringIO()
        screen = Console(file=written, force_terminal=terminal, width=200, highlight=False)
        bar = console.SweepProgress(screen, [step])
        bar.begin(step)
        start = clock[0]
        for _ in range(1700):
            clock[0] += 1.0
            bar.tick()
        of = plan.duration(step.estimate.seconds) if step.estimate else ""
        told = [f"running  {spec.label}  {plan.duration(at)} of about {of} (predicted)" for at in lines]
        assert written.getvalue().splitlines() == told
        assert clock[0] == start + 1700
