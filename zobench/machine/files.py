"""Writes that survive a crash: a file is replaced whole or stays as it was; what is said where a disk refuses; and
locks between processes, which the kernel holds, so that they go with a process, however it ends.

filelock is imported where a lock is taken: that takes as long as importing the store does.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import importlib.util
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

REMEDY = {
    errno.ENOSPC: "free some space there",
    errno.EDQUOT: "free some of your quota there",
    errno.EROFS: "choose a folder on a writable disk",
    errno.ENAMETOOLONG: "give it a shorter name",
}
"""The remedy where a disk refuses a write, by its error."""


class NoRoomError(OSError):
    """A disk has too little room. ``strerror``: one line with how much is needed, how much is free, and the remedy."""

    strerror: str


def error_text(error: OSError) -> str:
    """One line of an error: of a disk that takes no more the file, the cause and the remedy."""
    if error.errno not in REMEDY:
        return str(error)
    if isinstance(error, NoRoomError):
        return error.strerror
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
    temporary = path.with_name(f".{path.name}.{os.urandom(4).hex()}.tmp")
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


def ending(path: Path) -> str:
    """The last 64 KiB of a file that a process printed to, as text: one that prints in a loop fills a disk."""
    with path.open("rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - 65536))
        return file.read().decode(errors="replace")


def forget(handle: int) -> None:
    """Lets the pages of an open file go that is not read again soon, where the system can be told."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)


def check_extras(what: str, packages: Sequence[str], extra: str = "report") -> None:
    """Raises ``ImportError`` unless all ``packages`` that ``what`` needs are installed, before the first file is
    written; ``extra``: of zobench's, which brings them."""
    lacking = [name for name in packages if importlib.util.find_spec(name) is None]
    if lacking:
        lack = f"{' and '.join(lacking)}, but {'it is' if len(lacking) == 1 else 'they are'} not installed"
        raise ImportError(f"{what} needs {lack}; pip install 'zobench[{extra}]'")


NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
"""The errors of a file system that has no working locks."""


@contextlib.contextmanager
def locked(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Holds the lock file ``path`` meanwhile; the file stays.

    Raises ``BlockingIOError`` if another process holds it and this one does not ``wait``, and ``OSError`` if it cannot
    be written or its file system has no locks.
    """
    from filelock import FileLock, Timeout

    try:
        # a soft lock would outlive a kill -9
        acquired = FileLock(path, blocking=wait, fallback_to_soft=False).acquire()
    except Timeout:
        raise BlockingIOError(f"{path} is locked by another process") from None
    except NotImplementedError:  # filelock's word for it
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS), str(path)) from None
    with acquired:
        yield


def lock(handle: int, *, wait: bool = True) -> bool:
    """Locks an open file or folder until it is closed; False if another process has it and this one does not ``wait``.

    For what a lock file beside it cannot be: the lock of a folder that is renamed and removed, or of a file that
    another user made and only lets be read. Raises ``OSError`` where the file system has no locks.
    """
    from filelock import lock_descriptor

    return lock_descriptor(handle, blocking=wait)


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock file ``path``; False if there is no such file.

    The lock is tried as a shared one, which filelock does not offer: two processes that look at the same time would
    otherwise take each other for the holder.
    """
    try:
        with path.open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False
