"""A program from a package outside the repository runs a cell, and its result says so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.plugin import install, last_line, results, zobench
from zobench.runspec import RunSpec

SOURCE = """
from zobench.programs import Program

MINE = Program(name="sleeper", run="sleeping:measured", about="sleeps instead of stepping")
"""
MEASURED = """
from zobench.result import Outcome, Result

def measured(spec, world=None):
    if spec.seed == 7:
        raise RuntimeError("it could not\\nsleep")
    if spec.seed == 8:
        return 3
    return Result(spec=spec, outcome=Outcome.OK, samples={"step_seconds": [0.5] * spec.steps},
                  memory={"device_peak_bytes": 1000})
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    install(tmp_path, "sleeper_package", "zobench.programs", {"sleeper": "MINE"}, SOURCE)
    (tmp_path / "sleeping.py").write_text(MEASURED)
    return tmp_path


TABLE = """
title = "Guest"
[where]
seq_len = 16
program = "sleeper"
[rows.product]
model = ["opt-tiny"]
[[columns]]
header = "MeZO"
where = { engine = "resident" }
[[metrics]]
name = "step_time"
header = "Step (s)"
format = ".2f"
better = "lower"
"""

RUN = ("run", "--model", "opt-tiny", "--device", "cpu", "--set", "seq_len=16", "--set", "steps=2")


def test_a_program_of_a_package_runs_a_cell_and_the_result_names_it(folder: Path) -> None:
    result = json.loads(zobench(folder, *RUN, "--set", "program=sleeper", "--json", "-").stdout)
    assert (result["spec"]["program"], result["samples"]) == ("sleeper", {"step_seconds": [0.5, 0.5]})
    assert result["environment"]["program"] == "sleeper of sleeper_package 1.0"
    assert result["environment"]["machine"]
    assert result["spec_hash"] != RunSpec.from_dict({**result["spec"], "program": "zobench"}).hash
    assert RunSpec(model="opt-tiny", program="zobench").hash == RunSpec(model="opt-tiny").hash


@pytest.mark.slow
def test_a_sweep_of_two_programs_keeps_both_apart_and_only_a_plug_ins_is_named(folder: Path) -> None:
    (folder / "two.toml").write_text(
        'title = "Two programs"\n[base]\nmodel = "opt-tiny"\nseq_len = 16\nsteps = 2\n[axes]\n'
        'program = ["zobench", "sleeper"]\n'
    )
    zobench(folder, "sweep", "two.toml", "--device", "cpu")
    found = {result["spec"]["program"]: result for result in results(folder)}
    assert set(found) == {"zobench", "sleeper"}
    assert found["sleeper"]["samples"]["step_seconds"] == [0.5, 0.5]
    assert "program" not in found["zobench"]["environment"]
    listed = zobench(folder, "results", "--where", "program=sleeper").stdout
    assert listed.startswith("1 run\n")
    assert "program=sleeper" in listed


def test_a_program_is_listed_with_its_package_without_being_imported(folder: Path) -> None:
    (folder / "sleeper_package.py").write_text("raise RuntimeError('imported')\n")
    rows = [line.split() for line in zobench(folder, "list", "programs").stdout.splitlines()]
    assert ["sleeper", "from", "sleeper_package", "1.0"] in rows


def test_what_a_program_raises_is_the_cells_outcome(folder: Path) -> None:
    done = zobench(folder, *RUN, "--set", "program=sleeper", "--set", "seed=7", code=1)
    assert last_line(done).endswith("RuntimeError: it could not sleep")
    done = zobench(folder, *RUN, "--set", "program=sleeper", "--set", "seed=8", code=1)
    assert last_line(done).endswith(
        "the program 'sleeper' of sleeper_package 1.0 must return the Result of its spec, but did not"
    )


def test_a_program_that_cannot_be_imported_or_is_unknown_is_one_line(folder: Path) -> None:
    (folder / "sleeper_package.py").write_text("import nowhere_at_all\n")
    done = zobench(folder, *RUN, "--set", "program=sleeper", code=2)
    assert (
        "the program 'sleeper' of the package sleeper_package must be importable, but ModuleNotFoundError"
        in last_line(done)
    )
    done = zobench(folder, *RUN, "--set", "program=sleper", code=2)
    assert (
        "`program` must be one of zobench, mezo, zo-llm, zo2, sleeper, but got 'sleper'; did you mean sleeper?"
        in last_line(done)
    )


def test_fine_tuning_is_zobenchs_own(folder: Path) -> None:
    done = zobench(folder, "finetune", "--model", "opt-tiny", "--task", "sst2", "--set", "program=sleeper", code=2)
    assert "fine-tuning is zobench's own, but got program=sleeper of sleeper_package 1.0" in last_line(done)


@pytest.mark.slow
def test_a_result_of_a_plug_in_that_was_edited_since_is_measured_again(folder: Path) -> None:
    (folder / "one.toml").write_text('title = "One"\n[base]\nmodel = "opt-tiny"\nseq_len = 16\nprogram = "sleeper"\n')
    sweep = ("sweep", "one.toml", "--device", "cpu")
    zobench(folder, *sweep)
    (first,) = results(folder)
    assert first["environment"]["plug_ins"]["program"].startswith("sleeper_package 1.0 ")
    assert "0 of 1 cells to run" in zobench(folder, *sweep, "--dry-run").stdout
    with (folder / "sleeper_package.py").open("a") as module:
        module.write("# edited\n")
    plan = zobench(folder, *sweep, "--dry-run").stdout
    assert "1 of 1 cells to run" in plan
    assert "(predicted)" in plan
    zobench(folder, *sweep)
    (folder / "table.toml").write_text(TABLE)
    assert "0.50" in zobench(folder, "table", "table.toml", "--format", "markdown").stdout
    (again,) = results(folder)
    assert again["environment"]["plug_ins"] != first["environment"]["plug_ins"]
