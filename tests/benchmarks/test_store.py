"""How long a store of 5,000 runs takes to read and to show; nothing is asserted about time."""

import os
import subprocess
import sys

import pytest

from tests.support.stores import fill
from zobench.execute.process import child_environment
from zobench.store import Store, frame

RUNS = 5000


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("store")
    fill(folder, RUNS)
    return folder


@pytest.fixture
def seconds(benchmark, capsys, request):
    """Times ``action()`` and prints the median of three rounds."""

    def measure(action):
        benchmark.pedantic(action, rounds=3, warmup_rounds=1)
        with capsys.disabled():
            print(f"\n{request.node.name}: {benchmark.stats.stats.median:.2f} s for {RUNS} runs")

    return measure


def zobench(root, *arguments):
    """The whole process: interpreter, imports, reading, printing."""
    environment = {**child_environment(), "COLUMNS": "140"}
    done = subprocess.run(
        [sys.executable, "-m", "zobench", *arguments], cwd=root.parent, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_load(seconds, root):
    seconds(lambda: Store(root).load())


@pytest.mark.slow
def test_frame(seconds, root):
    results = Store(root).load()
    seconds(lambda: frame(results))


@pytest.mark.slow
def test_results_as_a_process(seconds, root):
    assert len(zobench(root, "results", str(root)).splitlines()) > RUNS
    seconds(lambda: zobench(root, "results", str(root)))


@pytest.mark.slow
def test_table_as_a_process(seconds, root):
    seconds(lambda: zobench(root, "table", "zo2/table1", "--results", os.fspath(root)))
