"""How fast the ranks of one machine give each other their slices of a block, with nothing beside it."""

from __future__ import annotations

import os
import time
import timeit
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from zobench.machine import accelerator

MIB = 2**20
LOOPBACK = "127.0.0.1"
PATIENCE = timedelta(seconds=60)
REPEATS = 6
"""The same on all ranks: one that stopped earlier would leave the others waiting."""


def between_rate(device: str, notes: list[str]) -> float | None:
    """Bytes per second that a rank receives from the others while all receive (B_NVLink of DistZO2's equation 3).

    On CUDA NCCL's all-gather among all visible GPUs; on the CPU two ranks that broadcast a half each over Gloo on
    loopback, which is how :mod:`zobench.parallel.hosts` makes a block whole there. None where there are no peers, or
    they cannot talk; then ``notes`` say why.
    """
    try:
        return _among_gpus(notes) if device.startswith("cuda") else _among_processes()
    except (RuntimeError, AttributeError) as error:  # of Gloo and NCCL, or a torch that was built without them
        notes.append(f"between ranks: not measured ({' '.join(str(error).split())})")
        return None


def _among_gpus(notes: list[str], nbytes: int = 256 * MIB) -> float | None:
    devices = accelerator.devices()
    count = len(devices)
    if count < 2:
        notes.append("between ranks: none, because one GPU is visible")
        return None
    os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")  # all GPUs are this process's: nobody else need reach it
    slice_bytes = nbytes // count
    slices = [torch.ones(slice_bytes, dtype=torch.uint8, device=each.device) for each in devices]
    slots = [torch.empty(slice_bytes * count, dtype=torch.uint8, device=each.device) for each in devices]

    def gather() -> None:
        accelerator.gather(slices, slots)
        for each in devices:
            each.synchronize()

    return slice_bytes * (count - 1) / _best_seconds(gather)


def _among_processes(nbytes: int = 64 * MIB) -> float:
    """Two ranks as threads of this process: the bytes go through the same sockets, and no process need start."""
    store = dist.HashStore()  # type: ignore[attr-defined]

    def rate(rank: int) -> float:
        group, slot = _gloo(store, rank), torch.ones(nbytes, dtype=torch.uint8)
        return nbytes / 2 / _best_seconds(lambda: _exchange_halves(group, slot))

    with ThreadPoolExecutor(2) as pool:
        return min(done.result() for done in as_completed([pool.submit(rate, rank) for rank in range(2)]))


def _gloo(store: Any, rank: int) -> Any:
    """A group of two that listens on loopback alone. Torch has no public way to make two in one process."""
    gloo: Any = dist.ProcessGroupGloo
    options = gloo._Options()
    options._devices, options._timeout = [gloo.create_device(hostname=LOOPBACK)], PATIENCE
    return gloo(store, rank, 2, options)


def _exchange_halves(group: Any, slot: Tensor) -> None:
    sent = []
    for number, half in enumerate(slot.chunk(2)):
        how = dist.BroadcastOptions()
        how.rootRank = number
        sent.append(group.broadcast([half], how))
    for work in sent:
        work.wait()


def _best_seconds(action: Callable[[], None]) -> float:
    """Seconds of the fastest of ``REPEATS`` runs after a first one."""
    action()
    return min(timeit.repeat(action, timer=time.perf_counter, number=1, repeat=REPEATS))
