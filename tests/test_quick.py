"""make quick: which tests a change reaches, in which order, and that it ends in time and says what it left out."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tools import quick

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def graph():
    return quick.importers()


def reached_by(graph, *paths):
    start, untraced = quick.starts(paths, graph.keys() | {name for names in graph.values() for name in names})
    return quick.selected(quick.reached(start, graph)), untraced


def test_every_test_module_is_in_the_graph(graph):
    known = {name for names in graph.values() for name in names}
    files = (ROOT / "tests").rglob("test_*.py")
    assert {".".join(file.relative_to(ROOT).with_suffix("").parts) for file in files} <= known


@pytest.mark.parametrize(
    ("path", "reaches", "not_"),
    [
        ("zobench/engine/transfers/lanes.py", ["tests.nullcuda.test_engine"], "tests.machine.test_memory"),
        ("zobench/programs/cell.py", ["tests.engine.test_memory"], "tests.machine.test_memory"),  # by what is started
        ("zobench/report/html/style.css", ["tests.report.test_html"], "tests.engine.test_parity"),
        ("tables/zo2/table1.toml", ["tests.report.test_recipes_of_papers"], "tests.engine.test_parity"),
        ("tests/support/rank.py", ["tests.parallel.test_parity"], "tests.engine.test_parity"),  # started by name
        ("tests/slurm/conftest.py", ["tests.slurm.test_slurm"], "tests.engine.test_parity"),
    ],
)  # fmt: skip
def test_a_change_reaches_the_tests_that_import_it_and_no_others(graph, path, reaches, not_):
    assert (ROOT / path).exists()
    tests, _ = reached_by(graph, path)
    assert {*reaches, *quick.CORE} <= set(tests)
    assert not_ not in tests


def test_the_nearest_come_first(graph):
    tests, _ = reached_by(graph, "zobench/store/query.py")
    assert tests.index("tests.store.test_query") < tests.index("tests.cli.test_cli")
    assert reached_by(graph, "tests/store/test_query.py")[0][0] == "tests.store.test_query"


def test_a_file_that_no_module_is_known_to_read_is_told(graph):
    assert reached_by(graph, "Makefile", "zobench/gone.py") == (sorted(quick.CORE), {"Makefile"})


def test_a_change_is_what_differs_from_main_or_on_main_from_the_last_commit(tmp_path):
    def git(*arguments):
        who = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main")
        subprocess.run(["git", *who, *arguments], cwd=tmp_path, check=True, capture_output=True)

    git("init")
    for name in ("one", "two", "three"):
        (tmp_path / name).write_text(name)
        git("add", "-A")
        git("commit", "-m", name)
    assert quick.changed(None, tmp_path) == {"three"}
    (tmp_path / "one").write_text("else")
    (tmp_path / "new").write_text("new")
    assert quick.changed(None, tmp_path) == {"one", "three", "new"}
    git("checkout", "-b", "branch")
    git("commit", "-am", "one")
    assert quick.changed(None, tmp_path) == {"one", "new"}
    assert quick.changed("HEAD~2", tmp_path) == {"one", "three", "new"}
    git("branch", "-D", "main")
    with pytest.raises(SystemExit, match=r"a branch main must exist .*; give another by --base"):
        quick.changed(None, tmp_path)


PROGRAM = """
import pytest

@pytest.mark.parametrize("case", range(4))
def test_it(case):
    assert case != 3

@pytest.mark.slow
def test_slow():
    assert False
"""


@pytest.mark.parametrize(
    ("left", "outcome", "said", "workers"),
    [(60, 1, "1 failed, 3 passed", ["-n", "2", "--dist", "load"]), (0, 0, "quick: 4 tests did not run, for time", [])],
)
def test_when_the_time_is_up_the_rest_waits_and_is_told(left, outcome, said, workers, tmp_path):
    (tmp_path / "test_it.py").write_text(PROGRAM)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    slow\n    gpu\n")
    command = [sys.executable, "-m", "pytest", "-p", "tools.quick", "-m", "not slow and not gpu", *workers, "."]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), quick.END: str(time.time() + left)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, said in done.stdout) == (outcome, True), done.stdout + done.stderr
