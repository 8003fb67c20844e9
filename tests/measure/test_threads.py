"""Threads: as many as cores are idle, one line on why, and the user's own choice stays."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from zobench.measure import threads


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """The user has chosen nothing, and this process may use four cores."""
    for name in (threads.COUNT, *threads.WAITING):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(threads, "available_cores", lambda: 4)
    return monkeypatch


@pytest.mark.parametrize(("busy", "count"), [(0.4, 4), (0.6, 3), (9.0, 1)])
def test_as_many_threads_as_cores_are_idle(free: pytest.MonkeyPatch, busy: float, count: int) -> None:
    free.setattr(threads, "other_cores", lambda: busy)
    chosen = threads.chosen()
    assert (chosen.count, chosen.environment) == (count, {"OMP_NUM_THREADS": str(count)})


def test_a_containers_quota_bounds_the_threads_and_may_be_spent_on_any_core(free: pytest.MonkeyPatch) -> None:
    free.undo()
    free.delenv(threads.COUNT, raising=False)
    free.setattr(threads, "bound_cores", lambda: 64)
    free.setattr(threads, "core_quota", lambda: 2.5)
    for busy, count in ((30.0, 3), (62.0, 2)):
        free.setattr(threads, "other_cores", lambda busy=busy: busy)
        assert threads.chosen().count == count


def test_nothing_is_chosen_for_a_user_who_has_or_where_nobody_knows(free: pytest.MonkeyPatch) -> None:
    free.setattr(threads, "other_cores", lambda: None)
    assert threads.chosen() is None
    free.setattr(threads, "other_cores", lambda: 3.0)
    free.setenv("OMP_NUM_THREADS", "7")
    assert (threads.settle(), threads.waiting()) == ("", threads.WAITING)
    free.setenv("OMP_WAIT_POLICY", "active")
    assert threads.waiting() == {}


def test_a_neighbour_is_seen() -> None:
    spin = [sys.executable, "-c", "while True: pass"]
    neighbour = subprocess.Popen(spin)
    try:
        assert (threads.other_cores(0.5) or 0.0) > 0.3  # less where it shares its core with others
    finally:
        neighbour.kill()
        neighbour.wait()


def test_only_the_cores_that_this_process_may_use_count(free: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Slurm and containers bind a process to some cores of a large machine; what the others do is no news."""
    free.setattr(os, "sched_getaffinity", lambda pid: {1, 2})
    rows = [
        "cpu 900 0 900 9 9 0 0 0",
        "cpu0 800 0 800 9 9 0 0 0",
        "cpu1 50 0 50 9 9 0 0 0",
        "cpu2 100 50 0 9 9 25 25 0",
    ]
    (tmp_path / "stat").write_text("\n".join([*rows, "intr 1 2 3", ""]))
    assert threads._busy_seconds(str(tmp_path / "stat")) == 300 / os.sysconf("SC_CLK_TCK")
    assert threads._busy_seconds(str(tmp_path / "nothing")) is None
