"""Processes that are forked, and a disk in their way that fails, or kills them, at an operation on files."""

import builtins
import io
import mmap
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np

KINDS = ("write", "open", "fsync", "name", "folder")
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


@dataclass(frozen=True, kw_only=True, slots=True)
class End:
    """How a process ended: its exit code, negative for a signal, or None where it ran for too long; what it said."""

    code: int | None
    said: str

    @property
    def killed(self) -> bool:
        """Whether it was ended by SIGKILL, and not because it took too long."""
        return self.code == -signal.SIGKILL


def forked(act: Callable[[], Any], log: Path, limit: float = 120.0, kill_after: float | None = None) -> End:
    """Does ``act`` in a process in a session of its own, which is killed after ``kill_after`` seconds."""
    log.unlink(missing_ok=True)
    pid, begin, code = os.fork(), time.monotonic(), 70
    if not pid:
        try:
            os.setsid()
            file = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)
            os.dup2(file, 1)
            os.dup2(file, 2)
            code = act() or 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    end, too_long = begin + (limit if kill_after is None else kill_after), False
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            break
        if time.monotonic() > end:
            too_long = kill_after is None
            os.kill(pid, signal.SIGKILL)
            end = float("inf")
        time.sleep(0.002)
    said = log.read_text(errors="replace") if log.exists() else ""  # a kill may come before it
    return End(code=None if too_long else os.waitstatus_to_exitcode(status), said=said)


@dataclass(kw_only=True, slots=True)
class Disk:
    """Counts a process's operations on files below a folder. From the ``at``-th on those of ``kinds`` fail with
    ``code``, or it alone where ``once``; without a code the process is killed there. A write first takes a half."""

    at: int = 0
    code: int = 0
    once: bool = False
    kinds: tuple[str, ...] = KINDS
    _memory: mmap.mmap = field(default_factory=lambda: mmap.mmap(-1, 16))

    @property
    def counts(self) -> Any:
        """Operations so far, and steps or files that the process has said to be done; its parent sees them too."""
        return np.frombuffer(self._memory, dtype=np.int64)

    def install(self, folder: Path) -> None:
        """Puts it in the way of this process's files below ``folder``."""
        root, opened = str(folder.absolute()), io.open

        def below(path: Any) -> bool:
            return isinstance(path, (str, os.PathLike)) and os.path.abspath(path).startswith(root)

        def handle(file: Any, *_: Any) -> bool:
            return os.readlink(f"/proc/self/fd/{file if isinstance(file, int) else file.fileno()}").startswith(root)

        def half(write: Any, file: int, data: Any, place: int) -> None:
            write(file, bytes(data)[: len(data) // 2], place)

        def nothing(*_: Any) -> None:
            pass

        def wrap(name: str, kind: str, concerned: Callable[..., bool], first: Callable[..., None] = nothing) -> None:
            plain = getattr(os, name)

            def changed(*arguments: Any, **more: Any) -> Any:
                if concerned(*arguments) and self.is_due(kind):
                    first(plain, *arguments)
                    self.end()
                return plain(*arguments, **more)

            setattr(os, name, changed)

        def open_(file: Any, mode: str = "r", *arguments: Any, **more: Any) -> Any:
            if not below(file) or not set(mode) & set("wax+"):
                return opened(file, mode, *arguments, **more)
            if self.is_due("open"):
                self.end()
            return _File(opened(file, mode, *arguments, **more), self)

        wrap("pwrite", "write", handle, half)
        wrap("pwritev", "write", handle)
        wrap("posix_fallocate", "write", handle)
        wrap("fsync", "fsync", handle)
        wrap("open", "open", lambda path, flags, *_: below(path) and bool(flags & WRITING))
        wrap("mkdir", "folder", lambda path, *_: below(path))
        for name in ("replace", "rename"):
            wrap(name, "name", lambda _, target: below(target))
        io.open = builtins.open = open_  # type: ignore[assignment]

    def is_due(self, kind: str) -> bool:
        """Counts an operation; whether it is not to be done."""
        if kind not in self.kinds:
            return False
        counts = self.counts
        counts[0] += 1
        return bool(self.at and (counts[0] == self.at if self.once else counts[0] >= self.at))

    def end(self) -> None:
        """Ends the process, or the operation."""
        if not self.code:
            os.kill(os.getpid(), signal.SIGKILL)
            signal.pause()
        raise OSError(self.code, os.strerror(self.code))


class _File:
    """An open file whose writes can fail."""

    def __init__(self, file: Any, disk: Disk) -> None:
        self._file, self._disk = file, disk

    def write(self, data: Any) -> int:
        if self._disk.is_due("write"):
            self._file.write(data[: len(data) // 2])
            self._file.flush()
            self._disk.end()
        return int(self._file.write(data))

    def __enter__(self) -> Self:
        self._file.__enter__()
        return self

    def __exit__(self, *error: Any) -> Any:
        return self._file.__exit__(*error)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._file)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)
