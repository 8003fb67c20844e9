"""How a process shares its machine: how many threads compute on a CPU that others use too and how these wait for each
other, and the turns of processes that measure side by side.

In turns they take their steps one after the other, each while all others wait: what slows a machine down for longer
than a step slows all of them alike. :mod:`zobench.execute.together` starts them and gives the turns.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from zobench.machine.files import contents
from zobench.machine.processes import bound_cores, busy_seconds, core_quota, usable_cores
from zobench.result.record import FEWER
from zobench.runspec.order import current

WAITING = {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "5000"}
"""OpenMP's threads spin while they wait for the slowest one, GNU's for milliseconds. Where another process has that
one's core, they burn what it needs; where none has it and they sleep at once, each of a step's thousands of small
operators wakes them again. So they spin for a moment: see docs/design/PERFORMANCE.md, "A busy machine"."""
COUNT = "OMP_NUM_THREADS"
LOOK_SECONDS = 0.3


@dataclass(frozen=True, slots=True)
class Threads:
    """``count`` threads on the ``cores`` that this process may use, of which others keep ``busy`` busy."""

    count: int
    cores: int
    busy: float

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables of a process that is to compute with them."""
        return {COUNT: str(self.count)}

    @property
    def are_fewer(self) -> bool:
        return self.count < self.cores

    @property
    def reason(self) -> str:
        if not self.are_fewer:
            return f"{FEWER}{self.count}, because the cores are idle"
        return (
            f"{FEWER}{self.count} of {self.cores}, because other processes keep {self.busy:.1f} cores busy; "
            f"{COUNT} sets another number"
        )


def waiting() -> dict[str, str]:
    """The environment of a process whose threads wait like that; empty where the user has said how they wait."""
    return {} if WAITING.keys() & os.environ.keys() else dict(WAITING)


def settle() -> str:
    """Makes this process compute with the threads that :func:`chosen` says; returns the reason, or "" without one."""
    import torch

    threads = chosen()
    if threads is None:
        return ""
    torch.set_num_threads(threads.count)
    return threads.reason


def chosen() -> Threads | None:
    """As many threads as cores are idle now, at least one; None where the user has set OMP_NUM_THREADS, and where the
    system does not tell how busy it is."""
    if COUNT in os.environ or (busy := other_cores()) is None:
        return None
    cores = available_cores()
    busy = max(0.0, busy - max(0, bound_cores() - cores))  # a quota of a few cores may be spent on any of all
    return Threads(max(1, min(cores, round(cores - busy))), cores, busy)


def other_cores(seconds: float = LOOK_SECONDS) -> float | None:
    """Returns how many of the cores that this process may use others keep busy, watched for ``seconds``; None where the
    system does not tell."""
    watch = Neighbours()
    time.sleep(seconds)
    return watch.cores()


class Neighbours:
    """How many of the cores that this process may use others keep busy, from its making on. ``children``: those that
    this process has started and that have ended by then, with all of theirs, are none of the others."""

    def __init__(self, children: bool = False) -> None:
        self._children = children
        self._begin, self._busy, self._used = time.monotonic(), _busy_seconds(), _process_seconds(children)

    def cores(self) -> float | None:
        """Cores, on average since then; None where the system does not tell."""
        busy = _busy_seconds()
        if busy is None or self._busy is None:
            return None
        others = busy - self._busy - (_process_seconds(self._children) - self._used)
        return max(0.0, others) / (time.monotonic() - self._begin)


def _process_seconds(children: bool) -> float:
    times = os.times()
    return times.user + times.system + (times.children_user + times.children_system) * children


def _busy_seconds(stat: str = "/proc/stat") -> float | None:
    """Seconds that the cores which this process may use were busy."""
    return busy_seconds(contents(stat), usable_cores())


def available_cores() -> int:
    """How many cores this process can keep busy: those it may run on, or what a container's quota allows if less."""
    return max(1, math.ceil(min(bound_cores(), core_quota())))


ASKS, IS_DONE = b"?", b"."
"""The words of a process: it would take its next step; it has taken them all."""
Item = TypeVar("Item")


@dataclass(frozen=True, kw_only=True, slots=True)
class ChildPipes:
    """The means of a process to take turns: the file descriptors at which it is ``given`` one and ``says`` what it
    wants. ``threads``: those that it computes with, chosen once for all, because each is busy beside the others as they
    start."""

    given: int
    says: int
    threads: Threads | None

    @property
    def descriptors(self) -> tuple[int, int]:
        """The file descriptors that it must inherit."""
        return self.given, self.says


class Turns:
    """This process's side of the two pipes. Where the one that gives turns is gone, none is waited for."""

    def __init__(self, given: int, says: int) -> None:
        self._given, self._says = given, says

    def each(self, work: Iterable[Item]) -> Iterator[Item]:
        """``work``, each item once this process has the turn; it keeps the turn until it asks for the next item."""
        for item in work:
            self._wait(ASKS)
            yield item

    def end(self) -> None:
        """Gives the turns up, and returns once nobody else has steps left that this process could disturb."""
        self._wait(IS_DONE)

    def _wait(self, word: bytes) -> None:
        with contextlib.suppress(BrokenPipeError):
            os.write(self._says, word)
            os.read(self._given, 1)


def given() -> Turns | None:
    """The turns that this process was started with, or None: then it has the machine to itself."""
    running = current()
    return None if running is None or running.turn is None else Turns(*running.turn)
