"""Temporary folders that are removed when their process ends, or, after a kill -9, when the next process begins."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from zobench.machine.files import lock

if TYPE_CHECKING:
    from zobench.parallel.world import World

PREFIX = "zobench-scratch-"
_NEW = ".zobench-new-"


@contextlib.contextmanager
def scratch(parent: Path | None, purpose: str, world: World | None = None) -> Iterator[Path]:
    """A new folder in ``parent``, or where temporary files go, which is removed at the end; with ``world`` one for all
    ranks of rank 0's machine, which rank 0 removes. Folders whose processes were killed are removed now."""
    folder, drawn = parent or Path(tempfile.gettempdir()), secrets.randbits(48)
    leads = world is None or world.leads
    with _made(folder, f"{purpose}-{drawn:012x}") if leads else contextlib.nullcontext():
        token = drawn if world is None else world.from_first([drawn])[0]
        yield folder / f"{PREFIX}{purpose}-{token:012x}"


def clear(parent: Path | None) -> None:
    """Removes the folders in ``parent``, or where temporary files go, whose processes are gone."""
    for path in (parent or Path(tempfile.gettempdir())).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):  # another user's, in use, or just removed by another process
            handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                if lock(handle, wait=False):
                    shutil.rmtree(path)
            finally:
                os.close(handle)


@contextlib.contextmanager
def _made(folder: Path, name: str) -> Iterator[None]:
    """A lock on the folder says that its process lives, on whichever machine: a number of a process may be another's.
    Nobody looks at a folder before it has its name, and then it is locked."""
    clear(folder)
    new, path = folder / f"{_NEW}{name}", folder / f"{PREFIX}{name}"
    new.mkdir(mode=0o700)
    handle = os.open(new, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):  # a file system without locks: there nobody can clear it either
            lock(handle)
        new.rename(path)
        yield
    finally:
        shutil.rmtree(path, ignore_errors=True)  # what ended its process is the error worth reporting
        os.close(handle)
