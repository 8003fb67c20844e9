"""A step is issued in less than a third of the time that it took before there were budgets; both are timed in turn."""

import statistics
import subprocess

import pytest

from tests.nullcuda import build
from tests.nullcuda.host_time import BEFORE_BUDGETS, compare


def lacks():
    known = subprocess.run(["git", "cat-file", "-e", BEFORE_BUDGETS], cwd=build.ROOT, capture_output=True).returncode
    return build.missing() or (f"needs commit {BEFORE_BUDGETS} in the repository" if known else "")


@pytest.mark.slow
@pytest.mark.skipif(bool(lacks()), reason=lacks())
def test_issuing_a_step_costs_less_than_a_third_of_what_it_did():
    """In CPU time of the thread that issues, by the median of rounds."""
    taken = compare(BEFORE_BUDGETS, "opt-1.3b", tokens=128, rounds=9, steps=3)["cpu"]
    assert statistics.median(now / before for before, now in taken) < 1 / 3
