"""How many threads compute on a CPU that others use too, and how these threads wait for each other."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

from zobench.machine.files import contents
from zobench.result.record import FEWER

WAITING = {"OMP_WAIT_POLICY": "passive"}
"""OpenMP's threads spin while they wait for the slowest one. Where another process has that one's core, they burn what
it needs: see docs/design/PERFORMANCE.md, "A busy machine"."""
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
        """What a process needs in its environment to compute with them."""
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


def wait_passively() -> None:
    """Sets how the threads of this process wait, unless the user has; it must not have loaded torch yet."""
    for name, value in WAITING.items():
        os.environ.setdefault(name, value)


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
    return Threads(max(1, min(cores, round(cores - busy))), cores, busy)


def other_cores(seconds: float = LOOK_SECONDS) -> float | None:
    """Of the cores that this process may use those that others keep busy, watched for ``seconds``; None where the
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
    """Seconds that the cores which this process may use were busy: user, nice, system, irq, softirq."""
    names = {f"cpu{number}" for number in os.sched_getaffinity(0)} if hasattr(os, "sched_getaffinity") else {"cpu"}
    rows = [line.split() for line in contents(stat).decode().splitlines()]
    ticks = [int(row[column]) for row in rows if row and row[0] in names for column in (1, 2, 3, 6, 7)]
    return sum(ticks) / os.sysconf("SC_CLK_TCK") if ticks else None


def available_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
