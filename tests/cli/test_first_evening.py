"""What a new user stumbles over: empty folders, places that cannot be written, mistyped names, narrow terminals."""

import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.support.commands import write
from tests.support.tables import result
from zobench import cli
from zobench.cli import console
from zobench.execute import rates
from zobench.measure import doctor
from zobench.runspec import RunSpec
from zobench.store import Store

TWO = '[base]\nmodel = "opt-tiny"\nseq_len = 32\n[axes]\nseed = [0, 3]\n'
linux = pytest.mark.skipif(sys.platform != "linux", reason="/proc is a folder in which nobody can make a file")


@pytest.mark.parametrize("arguments", ["table zo2/table1 --results empty", "trace 0000 --results empty"])
def test_an_empty_results_folder_gets_one_answer(cwd: Path, zobench: Any, arguments: str) -> None:
    (cwd / "empty").mkdir()
    _, _, err = zobench(*arguments.split())
    assert "`zobench sweep smoke --results empty` makes some" in err


@pytest.mark.parametrize("command", ["table zo2/table1", "compare a b", "report --out x"])
def test_a_results_folder_that_was_named_and_is_not_there_is_a_mistake(cwd: Path, zobench: Any, command: str) -> None:
    code, out, err = zobench(*command.split(), "--results", "resluts")
    message = "zobench: `--results` must be a folder with results, but there is no resluts; check the name\n"
    assert (code, out, err) == (2, "", message)


@linux
@pytest.mark.parametrize(
    "arguments",
    ["run --model opt-tiny --device cpu --json /proc/x", "table zo2/table1 --out /proc/x",
     "results . --out /proc/x.csv",
     "results . --pack /proc/x.tar.gz",
     "trace 0000 --out /proc/x", "report --out /proc/x/y", "plan --json /proc/x",
     "figure zo2/figure3 --out /proc/x", "reproduce zo2/figure3 --out /proc/x", "calibrate --out /proc/x.toml",
     "selftest --device cpu --json /proc/x", "predict smoke --gpu h100-sxm --json /proc/x",
     "run --model opt-tiny --device cpu --results /proc/x"],
)  # fmt: skip
def test_a_place_that_cannot_be_written_is_refused_by_its_option_before_anything_runs(
    cwd: Path, zobench: Any, cells: list[RunSpec], arguments: str
) -> None:
    code, out, err = zobench(*arguments.split())
    option = next(word for word in ("--out", "--json", "--pack", "--results") if word in arguments)
    must = "(file that can be written|folder that you may write to)"
    message = rf"zobench: `{option}` must be a {must}, but got '/proc/x\S*' \(.+\); \w+ another\n"
    assert re.fullmatch(message, err), err
    assert (code, out, cells) == (2, "", [])


def test_trying_a_file_leaves_none_and_changes_none(cwd: Path, zobench: Any) -> None:
    (cwd / "kept.csv").write_text("mine")
    for name in ("kept.csv", "new.csv"):
        assert zobench("results", ".", "--where", "seed=x", "--out", name)[0] == 2
        assert zobench("trace", "0000", "--out", name)[0] == 2
    assert (cwd / "kept.csv").read_text() == "mine"
    assert not (cwd / "new.csv").exists()


@pytest.fixture
def unmeasured(cwd: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on a machine whose rates nobody knows, and nobody may measure."""

    def refuse(*_: Any) -> str:
        raise AssertionError("the machine was measured")

    monkeypatch.setattr(rates, "ask", refuse)
    monkeypatch.setenv("ZOBENCH_CACHE_DIR", str(cwd / "cache"))
    return cwd


def test_a_command_that_runs_nothing_measures_no_rates(unmeasured, zobench, cells, machine) -> None:
    path = write(unmeasured, TWO)
    code, out, _ = zobench("sweep", path, "--device", "cpu", "--dry-run", "--results", "new")
    assert (code, cells) == (0, [])
    assert "2 of 2 cells to run: how long is predicted from this machine's rates, which the first run measures" in out
    assert zobench("sweep", path, "--device", "cpu")[0] == 0  # here they are known
    (unmeasured / "results" / ".calibration").rename(unmeasured / "gone")
    code, out, err = zobench("sweep", path, "--device", "cpu")
    assert (code, len(cells)) == (0, 2)
    assert "cells: 2 ok" in err


def test_quiet_leaves_the_answer_and_what_went_wrong(cwd: Path, zobench: Any, cells: list[RunSpec]) -> None:
    path = write(cwd, '[base]\nmodel = "opt-tiny"\n[axes]\nseed = [0, 1]\n')
    code, out, err = zobench("sweep", path, "--device", "cpu", "--quiet")
    assert (code, len(cells)) == (1, 2)
    assert [line.split()[0] for line in err.splitlines()] == ["failed"]
    assert "2 runs" in out
    assert zobench("run", "--model", "opt-tiny", "--device", "cpu", "-q") == (0, "", "")
    assert zobench("run", "--model", "opt-tiny", "--device", "cpu")[2].startswith("device: cpu")  # not quiet for good


@pytest.mark.parametrize(
    ("words", "first"),
    [("zobench swe", "sweep"), ("zobench sweep main_t", "main_table"), ("zobench run --model OPT-13", "OPT-13B"),
     ("zobench run --set seq", "seq_len="), ("zobench run --set dtype=b", "dtype=bf16")],
)  # fmt: skip
def test_a_shell_completes_commands_and_names(cwd, zobench, monkeypatch, words, first) -> None:
    monkeypatch.setenv("_ZOBENCH_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
    code, out, _ = zobench()
    assert (code, out.splitlines()[0][: len(first)]) == (0, first)


@pytest.mark.parametrize(
    ("arguments", "width"),
    [("table zo2/table1", 200), ("plan --model OPT-175B --gpu all --host 512GB", 60),
     *((words, 60) for words in ("list", "results", "table zo2/table5", "list gpus", "compare results results",
                                 "sweep --help"))],
)  # fmt: skip
def test_no_line_is_wider_than_the_terminal(cwd, zobench, monkeypatch, arguments, width) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    for fields in ({"engine": "resident"}, {"engine": "offload", "noise": "counter"}, {"batch_size": 4}):
        Store(cwd / "results").save(result("OPT-125M", machine="box", seq_len=2048, **fields))  # type: ignore[arg-type]
    code, out, _ = zobench(*arguments.split())
    assert code == 0
    assert [line for line in out.splitlines() if len(line.rstrip()) > width] == []


def test_no_color_is_honoured_wherever_there_is_colour(cwd, zobench, monkeypatch) -> None:
    Store(cwd / "results").save(result("OPT-125M", seq_len=2048, machine="box"))
    commands = ("results", "table zo2/table1", "list models")
    monkeypatch.setenv("FORCE_COLOR", "1")
    colour, seen = re.compile(r"\x1b\[[0-9;]*(?:3|4|9|10)[0-7](?:;|m)"), 0
    for command in commands:
        monkeypatch.delenv("NO_COLOR", raising=False)
        seen += bool(colour.search(zobench(*command.split())[1]))
        monkeypatch.setenv("NO_COLOR", "1")
        assert not colour.search(zobench(*command.split())[1]), command
    assert seen
    assert not console.is_colored(Console(force_terminal=True))


def test_a_report_asks_for_its_packages_before_it_writes(cwd, zobench, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    assert zobench("report", "--out", "all") == (
        1, "", "zobench: a report needs jinja2, but it is not installed; pip install 'zobench[report]'\n"
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert "a report needs jinja2 and matplotlib, but they are not" in zobench("report", "--out", "all")[2]
    assert "a figure needs matplotlib, but it is not" in zobench("reproduce", "zo2/figure3", "--out", "all")[2]
    assert not (cwd / "all").exists()


def test_the_doctor_knows_every_package_of_every_extra() -> None:
    project = tomllib.loads((Path(cli.__file__).parents[2] / "pyproject.toml").read_text())["project"]
    required = {re.split("[>=<; ]", text)[0] for text in project["dependencies"]}
    wanted = {
        (re.split("[>=<; ]", text)[0], f"zobench[{extra}]")
        for extra, packages in project["optional-dependencies"].items() if extra not in ("test", "dev", "docs")
        for text in packages
    }  # fmt: skip
    known = {(name, remedy) for name, (_, remedy) in doctor.OPTIONAL.items()}
    assert known == {(name, extra) for name, extra in wanted if name not in required}
