"""Locks: one holder among processes, let go by kill -9, and looked at by many at once."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from zobench.machine.files import is_locked, lock, locked

ROOT = Path(__file__).parents[2]
LOCK_FILE = "with files.locked(pathlib.Path(sys.argv[1])):"
OPEN_FOLDER = "if files.lock(os.open(sys.argv[1], os.O_RDONLY)):"


@contextmanager
def another_process(statement: str, path: Path) -> Iterator[Callable[[], None]]:
    """A process inside ``statement``; what is given ends it by SIGKILL."""
    program = f"""
import os, pathlib, sys, time
from zobench.machine import files
{statement}
    print("held", flush=True)
    time.sleep(60)
"""
    command = [sys.executable, "-c", program, str(path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"

        def kill() -> None:
            process.kill()
            assert process.wait() == -signal.SIGKILL

        try:
            yield kill
        finally:
            process.kill()


def test_a_lock_file_has_one_holder_until_that_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "here.lock"
    assert not is_locked(path)
    assert not path.exists()
    with another_process(LOCK_FILE, path) as kill:
        assert is_locked(path)
        with pytest.raises(BlockingIOError), locked(path, wait=False):
            pytest.fail("two hold it")
        kill()
        assert not is_locked(path)
        with locked(path, wait=False):
            assert is_locked(path)
    assert not is_locked(path)


def test_two_that_look_do_not_take_each_other_for_the_holder(tmp_path: Path) -> None:
    path = tmp_path / "worker.lock"
    path.touch()
    program = """
import pathlib, sys
from zobench.machine.files import is_locked
print(*(is_locked(pathlib.Path(sys.argv[1])) for _ in range(2000)))
"""
    command = [sys.executable, "-c", program, str(path)]
    both = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert {line for process in both for line in process.communicate()[0].split()} == {"False"}


def test_a_folder_is_locked_through_its_handle_also_under_a_new_name(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    with another_process(OPEN_FOLDER, tmp_path / "old") as kill:
        handle = os.open((tmp_path / "old").rename(tmp_path / "new"), os.O_RDONLY)
        assert not lock(handle, wait=False)
        kill()
        assert lock(handle, wait=False)
        os.close(handle)
