"""How fast weights go between host memory and the devices of a node, all of them at once (DistZO2, table 2), and how
fast its ranks give each other their slices of a block, with nothing beside it."""

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


def alone(
    pipeline: Any, blocks: int, meet: Callable[[], None] = lambda: None, repeats: int = 2
) -> dict[str, list[float]]:
    """Seconds that it takes to upload all ``blocks`` of a ``pipeline`` to every rank, and to offload them, with nothing
    beside it (:class:`zobench.engine.transfers.pipeline.Pipeline`).

    ``upload_seconds``, ``offload_seconds``: one number for each of ``repeats``. ``meet`` returns when all ranks have
    come to it; a transfer is over when the last rank's is, and their meeting (some 0.1 ms) counts. Weights stay. Every
    rank does this at once.

    The rate of table 2 is the parameters of the streamed blocks, each counted once, over these seconds, and not times
    the ranks. Table 1 decides that: with 4 GPUs a step of OPT-175B takes 16 s (2D, 508 tokens/s, 4 x 2048 tokens), in
    which every parameter is uploaded. At table 2's 17.66e9 parameters/s with slices that is 10 s; were the rate a sum
    over 4 GPUs, it would be 40 s. So 4.73 means 9.5 GB/s to each GPU in fp16 (all of the model), and 19.24 with slices
    9.6 GB/s on each GPU's link (a quarter of it): the links do the same, and the ratio is the 4 GPUs.
    """
    pipeline.alone("upload", range(blocks))  # what only the first transfers take is no part of their rate
    uploads, offloads = [], []
    for _ in range(repeats):
        meet()
        start = time.perf_counter()
        pipeline.alone("upload", range(blocks))
        meet()
        uploads.append(time.perf_counter() - start)
        offloads.append(_offload(pipeline, blocks, meet))
    return {"upload_seconds": uploads, "offload_seconds": offloads}


def _offload(pipeline: Any, blocks: int, meet: Callable[[], None]) -> float:
    """A block is written back from the slot that it was just uploaded to, or the weights would change."""
    seconds = 0.0
    for first in range(0, blocks, pipeline.depth):
        together = range(first, min(first + pipeline.depth, blocks))
        pipeline.alone("upload", together)
        meet()
        start = time.perf_counter()
        pipeline.alone("offload", together)
        meet()
        seconds += time.perf_counter() - start
    return seconds


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
