"""Whether a machine is idle enough to be measured: what others do with its cores and with a GPU."""

from __future__ import annotations

import os
import time

from zobench.execute.plan import gpu_uuids
from zobench.measure.observe import DISTURBING_CORES
from zobench.measure.readers import DeviceReader
from zobench.measure.threads import Neighbours

SECONDS = 3.0
"""How long others are watched, or waited for."""
TRIES = 5
"""Watches of a machine that is busy, before it counts as such: what lasts a moment is over by then."""


def disturbance(device: str, seconds: float) -> str:
    """What would disturb a measurement on ``device`` now, by as much as its result would say so, or ""."""
    if device.startswith("cuda"):
        uuids, index = gpu_uuids(), int(device.partition(":")[2] or 0)
        others = DeviceReader(uuids[index], os.getpid()).processes() if index < len(uuids) else {}
        return f"another process uses the GPU (pid {', '.join(map(str, others))})" if others else ""
    neighbours = Neighbours()
    time.sleep(seconds)
    cores = neighbours.cores()
    return "" if cores is None or cores <= DISTURBING_CORES else f"other processes keep {cores:.1f} cores busy"


def lasting_disturbance(device: str, seconds: float = SECONDS, tries: int = TRIES) -> str:
    """The same, if it is still there after ``tries`` watches."""
    why = ""
    for number in range(tries):
        if number and device.startswith("cuda"):
            time.sleep(seconds)
        if not (why := disturbance(device, seconds)):
            break
    return why
