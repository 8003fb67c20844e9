"""On whose GPUs the papers' values were measured, and how far predictions are from those of memory."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

from zobench.cost import hardware
from zobench.cost.hardware import Gpu
from zobench.cost.published import evidence
from zobench.cost.published.cell import MIB, cell_of
from zobench.cost.published.evidence import Row
from zobench.cost.published.memory import device_bytes


def quantile(ordered: Sequence[float], share: float) -> float:
    """With linear interpolation, as NumPy does it."""
    rank = share * (len(ordered) - 1)
    low = int(rank)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (rank - low) * (ordered[high] - ordered[low])


def papers_gpus(*, anchored: bool) -> Mapping[str, Gpu]:
    """The papers' GPUs by their names, in the papers' hosts: the H20, a card of PCIe 5, was in one of PCIe 4."""
    a100, h20 = hardware.load("a100-80gb-sxm"), hardware.load("h20", anchored=anchored)
    return {"A100-80GB": a100, "H20-96GB": h20.behind(4, 16)}


def memory_share(row: Row) -> float | None:
    """The error that nine of ten values of memory like that of ``row`` stay within, as a share, where they are known to
    be larger than ZO2's: of the first version of ZO2, and of a step on several GPUs."""
    if row["paper"] in evidence.OLD_PAPERS:
        return _memory_share(evidence.OLD_PAPERS[0], alone=True)
    return None if row["gpus"] == "1" else _memory_share(row["paper"], alone=False)


@functools.cache
def _memory_share(paper: str, *, alone: bool) -> float:
    rows = [row for row in evidence.rows("gpu_memory", "MB") if row["paper"] == paper]
    like = [row for row in rows if (row["gpus"] == "1") == alone and not evidence.gave_group(row)]
    return quantile(sorted(abs(device_bytes(cell_of(row)) / MIB / float(row["value"]) - 1) for row in like), 0.9)
