"""Locks between processes, through filelock: the kernel holds them, so they go with a process, however it ends.

filelock is imported where a lock is taken: that takes as long as importing the store does, which most commands only
read.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
"""What a file system answers that has no working locks."""


@contextlib.contextmanager
def locked(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Holds the lock file ``path`` meanwhile; the file stays.

    Raises ``BlockingIOError`` if another process holds it and this one does not ``wait``, and ``OSError`` if it cannot
    be written or its file system has no locks.
    """
    from filelock import FileLock, Timeout

    try:
        acquired = FileLock(
            path, blocking=wait, fallback_to_soft=False
        ).acquire()  # a soft lock would outlive a kill -9
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
