"""A board that a process and its parent share: where the process was when it was killed, and what it had finished.

Functions of the code under test are watched by name: while one runs, its phase is on the board. The board lies in
memory that both processes map, so that a SIGKILL, which no handler sees, leaves it as it was at that moment.
"""

import ctypes
import functools
import mmap
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

_PLACES = 64
"""Phases that a board has room for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Moment:
    """When a process is to die: ``delay`` seconds after its start, or after the ``entry``-th time that it enters
    ``phase``, counted from 1."""

    delay: float
    phase: str = ""
    entry: int = 0


class Board:
    """``phases``: names, the more telling ones first; ``usual``: where a process is that is in none of them."""

    def __init__(self, phases: Sequence[str]) -> None:
        self.phases = tuple(phases)
        self._memory = mmap.mmap(-1, 4 * _PLACES * 8)
        rows = np.frombuffer(self._memory, dtype=np.int64).reshape(4, _PLACES)
        self._active, self._entries, self._nanoseconds, self._facts = rows
        self._moment: Moment | None = None

    @property
    def done(self) -> int:
        """Steps, cells or files that the process has said to be finished; -1 before it has come to say it."""
        return int(self._facts[0]) - 1

    @done.setter
    def done(self, count: int) -> None:
        self._facts[0] = count + 1

    def note(self, pid: int) -> None:
        """Writes down a process that the watched one has started."""
        self._facts[2 + int(self._facts[1]) % (_PLACES - 2)] = pid
        self._facts[1] += 1

    def noted(self) -> list[int]:
        """The processes that the watched one has started, the last ones of them."""
        return [int(pid) for pid in self._facts[2:] if pid]

    def active(self) -> list[str]:
        """The phases that the process is in, or was in when it died."""
        return [name for name, count in zip(self.phases, self._active, strict=False) if count > 0]

    def entries(self, phase: str) -> int:
        """How often the process has entered a phase."""
        return int(self._entries[self.phases.index(phase)])

    def seconds(self, phase: str) -> float:
        """Of one time in a phase, in the mean."""
        place = self.phases.index(phase)
        return float(self._nanoseconds[place]) / 1e9 / max(1, self.entries(phase))

    def watch(self, owner: Any, name: str, phase: str) -> None:
        """Puts ``phase`` on the board whenever the function ``owner.name`` runs."""
        own, place = getattr(owner, name), self.phases.index(phase)

        @functools.wraps(own)
        def watched(*arguments: Any, **more: Any) -> Any:
            began = time.perf_counter_ns()
            self._enter(place)
            try:
                return own(*arguments, **more)
            finally:
                self._active[place] -= 1
                self._nanoseconds[place] += time.perf_counter_ns() - began

        setattr(owner, name, watched)

    def die_at(self, moment: Moment) -> None:
        """Makes this process end by SIGKILL at the moment."""
        if moment.phase:
            self._moment = moment
        else:
            kill_in(moment.delay)

    def _enter(self, place: int) -> None:
        self._active[place] += 1
        self._entries[place] += 1
        wanted = self._moment
        if wanted and self.phases[place] == wanted.phase and self._entries[place] == wanted.entry:
            kill_in(wanted.delay)


class _Event(ctypes.Structure):
    """Linux's sigevent, as long as the kernel's."""

    _fields_ = (
        ("value", ctypes.c_void_p),
        ("number", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("rest", ctypes.c_byte * 48),
    )


class _Times(ctypes.Structure):
    """Linux's itimerspec: of the interval, which is none, and of the first time."""

    _fields_ = (("interval", ctypes.c_long * 2), ("first", ctypes.c_long * 2))


def kill_in(seconds: float) -> None:
    """Has the kernel send SIGKILL to this process so many seconds from now, whatever it does then: it cannot be caught,
    and no other process, which would want the core too, needs to wait for the moment."""
    library, timer = ctypes.CDLL(None, use_errno=True), ctypes.c_void_p()
    event = _Event(number=int(signal.SIGKILL))
    if library.timer_create(time.CLOCK_MONOTONIC, ctypes.byref(event), ctypes.byref(timer)):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    nanoseconds = max(1, int(seconds * 1e9))
    times = _Times(first=(ctypes.c_long * 2)(nanoseconds // 10**9, nanoseconds % 10**9))
    if library.timer_settime(timer, 0, ctypes.byref(times), None):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


@dataclass(frozen=True, kw_only=True, slots=True)
class End:
    """How a process ended: its exit code, negative for a signal, or None of one that had to be ended because it had
    run for too long; the seconds of processor that it took."""

    code: int | None
    cpu: float

    @property
    def killed(self) -> bool:
        """Whether it was ended by SIGKILL, and not because it took too long."""
        return self.code == -signal.SIGKILL


def start(act: Callable[[], Any], log: os.PathLike[str] | str) -> int:
    """Forks a process that does ``act``, in a group of its own, and writes what it says to ``log``; its id."""
    pid = os.fork()
    if pid:
        return pid
    code = 70
    try:
        os.setsid()
        told = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)
        os.dup2(told, 1)
        os.dup2(told, 2)
        code = act() or 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        import sys
        import traceback

        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


def wait(pid: int, limit: float = 120.0) -> End:
    """Waits for a process that :func:`start` began, ``limit`` seconds at most."""
    end = time.monotonic() + limit
    while True:
        found, status, usage = os.wait4(pid, os.WNOHANG)
        if found:
            return End(code=os.waitstatus_to_exitcode(status), cpu=usage.ru_utime + usage.ru_stime)
        if time.monotonic() > end:
            os.kill(pid, signal.SIGKILL)
            _, _, usage = os.wait4(pid, 0)
            return End(code=None, cpu=usage.ru_utime + usage.ru_stime)
        time.sleep(0.002)
