"""``zobench sweep``: plans, budgets, tables, results that cannot be written, and sweeps that survive being killed."""

import errno
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import TWO, start, write
from tests.support.processes import children, command_of, poll
from tests.support.rates import CALIBRATION, calibrate
from zobench import recipes
from zobench.execute import plan
from zobench.recipes import matrix
from zobench.result import Facts, Outcome, Result
from zobench.runspec import RunSpec
from zobench.store import Store, files

GB = 10**9
linux = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and prctl")


def test_a_dry_run_prints_the_plan_and_runs_and_stores_nothing(cwd, zobench, cells, monkeypatch) -> None:
    monkeypatch.setattr(plan, "free_disk_bytes", lambda folder: 40 * GB)
    before = sorted(cwd.rglob("*"))
    code, out, err = zobench("sweep", "main_table", "--dry-run", "--device", "cpu")
    assert (code, cells) == (0, [])
    assert "machine" in err
    assert sorted(cwd.rglob("*")) == before
    count = len(matrix.load(recipes.find("runners", "main_table"), "cpu").cells)
    assert f" of {count} cells to run: about " in out
    assert "needs 700 GB host memory" in out  # OPT-175B, resident, fp32
    assert "needs 118 GB disk space" in out  # OPT-30B, offload/disk, fp32
    message = "host memory, 22.9 GB are free (need predicted); disk space, 40.0 GB are free (need predicted)"
    assert f"not enough here: {message}" in " ".join(out.split())


def test_the_ablation_is_of_one_model_where_that_is_named_and_takes_the_options_of_a_sweep(cwd, zobench) -> None:
    words = ("ablate", "--model", "opt-tiny", "--set", "seq_len=32", "--repeats", "2", "--dry-run")
    code, out, _ = zobench(*words, "--device", "cpu")
    assert code == 0
    assert "all cells: opt-tiny fp32" in out
    assert "5 of 5 cells to run" in out


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
    cwd: Path, zobench: Any, cells: list[RunSpec], machine: str
) -> None:
    command = ("sweep", write(cwd, MIXED), "--device", "cpu")
    code, out, err = zobench(*command)
    assert code == 1  # a cell failed: a script that runs a sweep must notice
    assert [spec.seed for spec in cells] == [0, 1, 2, 3]
    assert "cells: 2 ok, 1 failed, 1 oom, 2 skipped" in err
    assert "to run those again: --retry oom,failed" in err
    assert "6 runs" in out  # the matrix has no tables: its runs are shown
    files = {path: path.read_bytes() for path in (cwd / "results" / machine).glob("*.json")}
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


def test_a_results_folder_that_takes_nothing_is_told_at_the_end_with_the_table_and_exit_code_1(
    cwd: Path, zobench: Any, cells: list[RunSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, data: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(files, "replace", refuse)
    text = 'tables = ["zo2/table1"]\n[base]\nmodel = "OPT-125M"\n[axes]\nseed = [0, 3]\nseq_len = [2048]\n'
    ended, out, err = zobench("sweep", write(cwd, text), "--device", "cpu")
    assert (ended, len(cells)) == (1, 2)
    assert "not saved: a result must be writable, but got 'No space left on device' for results/" in err
    assert "OPT-125M" in out
    assert "4096" in out  # tokens/s of what was measured, though nothing was stored


def test_a_sweep_stores_the_rates_and_its_table_shows_the_share_of_the_floor(cwd, zobench, cells, machine) -> None:
    text = 'tables = ["zo2/table1"]\n[axes]\nmodel = ["OPT-125M"]\n'
    _, out, err = zobench("sweep", write(cwd, text), "--device", "cpu")
    (path,) = (cwd / "results" / machine).glob("*.json")
    assert json.loads(path.read_text())["environment"]["calibration"] == CALIBRATION
    matrices, attention = 12 * 12 * 768**2 + 50272 * 768, 12 * 2 * 768 * 2048**2
    floor = 2 * (2 * matrices * 2048 + attention) / 1e11 / 0.5  # in the half second that the fake cell takes
    assert f"{100 * floor:.0f}" in out.partition("Floor (%)")[2]
    assert f", {floor:.0%} of the floor" in err


@pytest.mark.slow
def test_repeats_are_in_rounds_so_that_ratios_have_an_interval_and_too_few_are_warned_of(
    cwd: Path, zobench: Any, cells: list[RunSpec], machine: str
) -> None:
    axes = 'repeats = 6\n[axes]\nmodel = ["OPT-125M"]\nengine = ["resident", "offload"]\n'
    code, out, err = zobench("sweep", write(cwd, 'tables = ["zo2/table1"]\n' + axes), "--device", "cpu")
    engines = [spec.engine for spec in cells]
    assert code == 0
    assert all(set(engines[n : n + 2]) == {"resident", "offload"} for n in range(0, 12, 2))
    assert "each cell runs 6 times, in rounds of all cells; times are of one" in err
    assert "(x1.0000, 1.0000 to 1.0000)" in out
    assert "(x, a to b): from 6 rounds in which both ran" in " ".join(out.split())
    assert len(list((cwd / "results" / machine).glob("*-r5.json"))) == 2
    assert "warning" not in err
    cells.clear()
    words = ("sweep", write(cwd, axes), "--device", "cpu", "--results")  # no table
    _, _, err = zobench(*words, "elsewhere", "--repeats", "2")
    assert "warning: ratios within a round rest on a guess of the spread, and elsewhere 2 against 2 processes" in err
    assert [{spec.engine for spec in cells[n : n + 2]} for n in (0, 2)] == [{"resident", "offload"}] * 2


def test_a_second_sweep_into_the_same_results_is_refused(cwd: Path, zobench: Any, cells: list[RunSpec]) -> None:
    with Store(cwd / "results").lock():
        code, _, err = zobench("sweep", write(cwd, TWO), "--device", "cpu")
    assert (code, cells) == (1, [])
    assert "results must have one writer, but another sweep uses it; wait, or name another --results" in err


@linux
def test_ctrl_c_stops_with_a_summary_and_leaves_no_process(tmp_path: Path, machine: str) -> None:
    calibrate(tmp_path, machine)
    path = tmp_path / write(tmp_path, TWO + "steps = [1000000]\n")
    kept = matrix.load(path, "cpu").cells[0]
    Store(tmp_path / "results").save(Result(spec=kept, outcome=Outcome.OK, environment=Facts(machine=machine)))
    sweep = start(tmp_path)
    child = poll(lambda: [pid for pid in children(sweep.pid) if "zobench.execute.child" in command_of(pid)])[0]
    sweep.send_signal(signal.SIGINT)
    out, err = sweep.communicate(timeout=20)
    assert (sweep.returncode, out.splitlines()[1]) == (130, "1 run")  # the one that was done
    assert err.splitlines()[-2:] == ["cells: 1 ok", "stopped; the same command goes on from here"]
    assert "Traceback" not in err
    assert poll(lambda: not command_of(child))


def test_cells_that_take_turns_run_at_the_same_time_in_rounds_that_are_whole(
    cwd: Path, zobench: Any, cells: list[RunSpec], machine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    games: list[list[RunSpec]] = []

    def together(specs: list[RunSpec], **_: Any) -> list[Result]:
        games.append(specs)
        samples: dict[str, list[float | None]] = {"step_seconds": [0.5, 0.5]}
        facts = Facts(machine=machine, turns=float(len(games)))
        return [Result(spec=spec, outcome=Outcome.OK, samples=samples, environment=facts) for spec in specs]

    monkeypatch.setattr("zobench.execute.sweep.run_together", together)
    path = write(cwd, '[axes]\nmodel = ["opt-tiny"]\nseed = [0, 3]\n')
    zobench("sweep", path, "--device", "cpu")  # what one after the other has measured is in no round with anything
    assert (len(cells), games) == (2, [])
    code, _, err = zobench("sweep", path, "--device", "cpu", "--turns", "--repeats", "3")
    assert (code, len(cells), [len(game) for game in games]) == (0, 2, [2, 2, 2])
    assert "each cell runs 3 times, in rounds of all cells" in err
    stored = Store(cwd / "results").load(machine)
    assert [len(result.runs) for result in stored] == [3, 3]
    assert len({run.environment.turns for result in stored for run in result.runs}) == 3
    zobench("sweep", path, "--device", "cpu", "--turns", "--repeats", "3")
    assert len(games) == 3


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--budget", "5m"], "`turns` runs the cells of a round at the same time, but got a budget; leave it out"),
        (["--executor", "local"], "`--repeats` needs --executor here, whose rounds are of one machine, and so do "),
    ],
)  # fmt: skip
def test_what_cannot_take_turns_is_one_line(cwd: Path, refused: Any, arguments: list[str], text: str) -> None:
    path = write(cwd, '[axes]\nmodel = ["opt-tiny"]\n')
    assert refused("sweep", path, "--device", "cpu", "--turns", *arguments).startswith(f"zobench: {text}")
