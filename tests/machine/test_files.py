"""The writer that replaces a file: whole or not at all, on the disk before it has its name, and nothing is left."""

import errno
import os
from functools import partial
from pathlib import Path

import pytest

from tests.support.processes import side_by_side
from tests.support.watched import before
from zobench.machine.files import error_text, replace, writing


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_write_that_fails_leaves_the_old_file_and_no_other(tmp_path, monkeypatch, call) -> None:
    path = tmp_path / "state.json"
    replace(path, b"old")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, call, full)
    with pytest.raises(OSError, match="No space left on device"):
        replace(path, b"new")
    monkeypatch.undo()
    assert {entry.name: entry.read_bytes() for entry in tmp_path.iterdir()} == {"state.json": b"old"}


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_disk_that_takes_no_more_is_told_with_the_file_and_a_remedy(tmp_path: Path, code: int) -> None:
    path = tmp_path / "state.json"
    with pytest.raises(OSError, match=r"state\.json") as error, writing(path):
        raise OSError(code, os.strerror(code), f"{path}.1f2e3d4c.tmp")
    assert error_text(error.value).startswith(f"{path} must be writable, but got '{os.strerror(code)}'; ")
    assert error_text(OSError(code, "in a library's words")).startswith("a file must be writable, but got '")


def test_what_rust_says_of_a_disk_is_an_error_of_the_system(tmp_path: Path) -> None:
    """safetensors and tokenizers raise others, which no command catches."""
    import torch
    from safetensors.torch import save_file
    from tokenizers import Tokenizer, models

    words = Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    path = tmp_path / "missing" / "file"
    for write in (lambda: save_file({"a": torch.zeros(2)}, path), lambda: words.save(str(path))):
        with pytest.raises(FileNotFoundError) as error, writing(path):
            write()
        assert error_text(error.value) == f"[Errno 2] No such file or directory: '{path}'"
    with pytest.raises(KeyError), writing(path):  # no fault of a disk stays what it is
        raise KeyError("a")


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
def test_the_bytes_are_on_the_disk_before_the_name_and_then_the_name(tmp_path, monkeypatch) -> None:
    done: list[str] = []
    name = lambda handle: Path(os.readlink(f"/proc/self/fd/{handle}")).name  # noqa: E731
    before(monkeypatch.setattr, os, "fsync", lambda handle: done.append(name(handle)))
    before(monkeypatch.setattr, os, "replace", lambda old, new: done.append(f"{old.name} is {new.name}"))
    replace(tmp_path / "a", b"bytes")
    temporary = done[0]
    assert done == [temporary, f"{temporary} is a", tmp_path.name]
    assert temporary.startswith(".a.")


def test_many_that_write_one_file_at_once_leave_one_of_theirs_whole(tmp_path: Path) -> None:
    path, texts = tmp_path / "a", [bytes([65 + number]) * 200_000 for number in range(8)]
    side_by_side(partial(replace, path), texts)
    assert path.read_bytes() in texts
    assert list(tmp_path.iterdir()) == [path]
