"""How fast weights go between host memory and the devices of a node, all of them at once (DistZO2, table 2)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


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
