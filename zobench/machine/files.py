"""Writes that survive a crash: a file is replaced whole or stays as it was; and what is said where a disk refuses."""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import os
import re
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path

REMEDY = {
    errno.ENOSPC: "free some space there",
    errno.EDQUOT: "free some of your quota there",
    errno.EROFS: "choose a folder on a writable disk",
}
"""What helps where a disk takes no more, by its error."""


def error_text(error: OSError) -> str:
    """One line of an error: of a disk that takes no more the file, the cause and the remedy."""
    if error.errno not in REMEDY:
        return str(error)
    return f"{error.filename or 'a file'} must be writable, but got {os.strerror(error.errno)!r}; {REMEDY[error.errno]}"


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Inside, where a disk refuses what is written to ``path``, the ``OSError`` names it: that of an open file names
    none, that of a temporary one its own, and safetensors and tokenizers, written in Rust, raise others."""
    try:
        yield
    except OSError as error:
        if error.errno is not None:
            error.filename = str(path)
        raise
    except Exception as error:
        code = re.search(r"\(os error (\d+)\)", str(error))
        if code is None:
            raise
        raise OSError(int(code[1]), os.strerror(int(code[1])), str(path)) from error


def replace(path: Path, data: bytes) -> None:
    """Puts ``data`` at ``path`` in one step that survives power loss: after a crash the old file is there or the new.

    Written beside it under a name of its own, which is gone again if that fails, with the ``OSError`` that stopped it.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with writing(path), temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):  # what stopped the write is the error worth reporting
            temporary.unlink(missing_ok=True)
        raise
    sync(path.parent)


def sync(path: Path) -> None:
    """Returns when a file, or the names in a folder, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        with writing(path):
            os.fsync(handle)
    finally:
        os.close(handle)


def contents(path: str) -> bytes:
    """A small file of the kernel; empty if it is not there, which is for every caller to report."""
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""


def forget(handle: int) -> None:
    """Lets the pages of an open file go that is not read again soon, where the system can be told."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)


def check_extras(what: str, packages: Sequence[str]) -> None:
    """Raises ``ImportError`` unless all ``packages`` that ``what`` needs are installed, before the first file is
    written."""
    lacking = [name for name in packages if importlib.util.find_spec(name) is None]
    if lacking:
        lack = f"{' and '.join(lacking)}, but {'it is' if len(lacking) == 1 else 'they are'} not installed"
        raise ImportError(f"{what} needs {lack}; pip install 'zobench[report]'")
