"""How long a store of 5,000 runs takes to read and to show; nothing is asserted about time."""

import functools
import os
import subprocess
import sys

import pytest

from tests.support.stores import fill
from zobench.execute.process import child_environment
from zobench.store import Store, frame


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    """A folder with so many runs."""

    @functools.cache
    def filled(runs):
        folder = tmp_path_factory.mktemp("store")
        fill(folder, runs)
        return folder

    return filled


@pytest.fixture
def runs(small):
    return 20 if small else 5000


@pytest.fixture
def root(stores, runs):
    return stores(runs)


@pytest.fixture
def seconds(timed, runs):
    """Times a call that reads all runs."""
    return lambda action: timed(action, runs, "runs", rounds=3)


def zobench(root, *arguments):
    """The whole process: interpreter, imports, reading, printing."""
    environment = {**child_environment(), "COLUMNS": "140"}
    done = subprocess.run(
        [sys.executable, "-m", "zobench", *arguments], cwd=root.parent, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_load(seconds, root):
    seconds(lambda: Store(root).load())


def test_frame(seconds, root):
    results = Store(root).load()
    seconds(lambda: frame(results))


def test_results_as_a_process(seconds, root, runs):
    assert len(zobench(root, "results", str(root)).splitlines()) > runs
    seconds(lambda: zobench(root, "results", str(root)))


def test_table_as_a_process(seconds, root):
    seconds(lambda: zobench(root, "table", "zo2/table1", "--results", os.fspath(root)))
