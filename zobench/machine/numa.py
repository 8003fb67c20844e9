"""NUMA: the CPUs near a GPU, so that the host memory it copies from lies on the node that its bus hangs on."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection
from pathlib import Path

from zobench.machine.files import contents


def cpus_near(device: str, root: str = "") -> frozenset[int] | None:
    """The CPUs of a CUDA device's node that this process may use; None where it makes no difference or is not known.

    That is: another kind of device, a machine of one node, a system that does not say, a node whose CPUs are all
    forbidden here. ``root`` replaces / in tests.
    """
    nodes = list(Path(f"{root}/sys/devices/system/node").glob("node[0-9]*"))
    if not device.startswith("cuda") or len(nodes) < 2 or not hasattr(os, "sched_getaffinity"):
        return None
    from zobench.machine.accelerator import Accelerator

    if (address := Accelerator(device).bus_address()) is None:  # torch does not tell
        return None
    node = contents(f"{root}/sys/bus/pci/devices/{address}/numa_node").decode().strip()
    if not node.isdigit():  # "-1": the firmware does not say
        return None
    cpus = _numbers(contents(f"{root}/sys/devices/system/node/node{node}/cpulist").decode().strip())
    return frozenset(cpus & os.sched_getaffinity(0)) or None


def stay_near(cpus: Collection[int] | None) -> None:
    """Keeps the calling thread on these CPUs from now on; None leaves it alone, and so does a system that refuses.

    Pages belong to the node of the thread that touches them first. Threads that this one starts inherit its CPUs.
    """
    if cpus:
        with contextlib.suppress(OSError):  # only the place of the pages, and so some speed, is lost
            os.sched_setaffinity(0, cpus)


def _numbers(text: str) -> set[int]:
    """The numbers in one of the kernel's lists, such as ``0-3,8,10-11``."""
    numbers: set[int] = set()
    for piece in text.split(","):
        first, _, last = piece.partition("-")
        if first:
            numbers.update(range(int(first), int(last or first) + 1))
    return numbers
