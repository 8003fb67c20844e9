"""Processes: what ended one, and how one ends with the process that waits for it (only Linux can tell)."""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Set
from pathlib import Path
from typing import Any

from zobench.machine.files import contents

PR_SET_PDEATHSIG = 1
"""The option of Linux's prctl that sets the signal that a process gets when its parent ends, however that ends."""
LAUNCHER = "ZOBENCH_LAUNCHER"
"""The variable in a rank's environment that names the process of ours that started it."""


def ended_by(code: int) -> str:
    """Returns the name of the signal that ended a process with the negative exit ``code``: ``SIGKILL``, or ``signal
    35`` of one without a name."""
    return signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"


def end_group(process: subprocess.Popen[Any]) -> None:
    """Kills a process that was started with a session of its own, and what it has started, also if it has ended."""
    with contextlib.suppress(ProcessLookupError, PermissionError):  # nothing is left; macOS: nothing but a zombie
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def python_path() -> str:
    """PYTHONPATH for a process that is to import this zobench, installed or not."""
    return os.pathsep.join(filter(None, [str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH")]))


def usable_cores(pid: int = 0) -> Set[bytes]:
    """The rows of /proc/stat of the cores that process ``pid`` may use, 0 for this one; that of all cores together
    where the system does not tell."""
    try:
        return {b"cpu%d" % number for number in os.sched_getaffinity(pid)}
    except (AttributeError, OSError):  # not on macOS; no such process
        return {b"cpu"}


def bound_cores() -> int:
    """How many cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def core_quota(root: str = "") -> float:
    """Cores' worth of time that this process may use, as ``docker run --cpus`` sets it; infinite where nothing limits
    it. ``root`` replaces / in tests."""
    least = math.inf
    for folder, is_first in cgroup_folders(root, "cpu"):
        names = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if is_first else ("cpu.max",)
        words = b" ".join(contents(f"{folder}/{name}") for name in names).split()
        if len(words) == 2 and words[0].isdigit():  # "max", and -1 in the first version: no limit
            least = min(least, int(words[0]) / int(words[1]))
    return least


def cgroup_folders(root: str, controller: str) -> Iterator[tuple[str, bool]]:
    """The folders of the cgroups around this process that limit ``controller``, inmost first, and whether they are of
    the first version: a limit on any level binds; what a container cannot see has no files."""
    for line in contents(f"{root}/proc/self/cgroup").decode().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        base = f"{root}/sys/fs/cgroup" + (f"/{controllers}" if controllers else "")
        names = [name for name in path.split("/") if name and name != ".."]
        for depth in range(len(names), -1, -1):
            yield base + "".join(f"/{name}" for name in names[:depth]), bool(controllers)


def busy_seconds(stat: bytes, rows: Set[bytes]) -> float | None:
    """Seconds that the cores of ``rows`` of /proc/stat, whose content is ``stat``, were busy: user, nice, system, irq,
    softirq; not idle or waiting. None where it does not say."""
    cores = [line.split() for line in stat.splitlines() if line.startswith(b"cpu")]
    ticks = [int(core[column]) for core in cores if core[0] in rows and len(core) > 7 for column in (1, 2, 3, 6, 7)]
    return sum(ticks) / os.sysconf("SC_CLK_TCK") if ticks else None


def torchrun_ranks() -> int:
    """How many ranks torchrun has started, this process among them; 0 if it has not."""
    return int(os.environ.get("WORLD_SIZE", "0")) if "TORCHELASTIC_RUN_ID" in os.environ else 0


def leads() -> bool:
    """Whether this process is the one that prints: rank 0, or no rank at all."""
    return torchrun_ranks() == 0 or os.environ.get("RANK") == "0"


def end_with_launcher() -> None:
    """Makes a rank end when the process does that started it, this program's or the user's torchrun: else its ranks
    would go on, and the same command could not."""
    launcher = os.environ.get(LAUNCHER, os.getppid() if "TORCHELASTIC_RUN_ID" in os.environ else None)
    if launcher is not None:
        end_with(int(launcher))


def end_with(parent: int) -> None:
    """Makes this process end when ``parent`` does; nothing but the kernel can tell after a kill -9. Linux only."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != parent:  # it ended before this process had asked to be told
        sys.exit("the process that waited for this cell is gone")
