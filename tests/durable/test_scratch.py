"""Folders of a process: gone when it is, however it ends; those of processes that live are left alone."""

import os
import signal
from pathlib import Path

import pytest

from zobench.durable.scratch import clear, scratch

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


def killed_inside(parent: Path) -> None:
    """Has a process make a folder with a file, and end by SIGKILL."""
    pid = os.fork()
    if not pid:
        with scratch(parent, "run") as folder:
            (folder / "file").write_text("x")
            os.kill(os.getpid(), signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL


def fail(parent: Path) -> None:
    with scratch(parent, "run") as folder:
        (folder / "deep").mkdir()
        raise ConnectionError


def test_a_folder_is_there_inside_and_its_owners_alone(tmp_path: Path) -> None:
    with scratch(tmp_path, "run") as folder:
        assert folder.parent == tmp_path
        assert folder.stat().st_mode & 0o777 == 0o700
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ConnectionError):
        fail(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_next_one_removes_what_a_killed_process_left_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "zobench-other").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "zobench-scratch-link").symlink_to(tmp_path / "elsewhere")
    with scratch(tmp_path, "checkpoints") as mine:
        killed_inside(tmp_path)
        (left,) = (path for path in tmp_path.glob("zobench-scratch-run-*"))
        assert (left / "file").exists()
        with scratch(tmp_path, "run") as other:
            assert mine.is_dir()
            assert other.is_dir()
            assert not left.exists()
    assert {path.name for path in tmp_path.iterdir()} == {"zobench-other", "elsewhere", "zobench-scratch-link"}
    killed_inside(tmp_path)
    clear(tmp_path)
    assert not list(tmp_path.glob("zobench-scratch-run-*"))
