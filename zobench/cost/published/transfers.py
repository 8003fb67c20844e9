"""Transfers between host and several GPUs, as DistZO2's table 2 has them: the GPUs share what the host gives, slices
are exchanged over NVLink (its equation 3), and without slices each GPU brings its whole copy back."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from zobench.cost import links
from zobench.cost.hardware import Gpu
from zobench.cost.published import evidence
from zobench.runspec.kinds import WIDTHS

ANCHOR = "OPT-1.3B"
"""The model whose two rates without slices say what the host gives to all GPUs together, up and down."""
_METRIC = ("link_rate", "1e9 params/s")


def rate(row: Mapping[str, str], gpu: Gpu) -> float:
    """Parameters per second, each counted once, however many GPUs it goes to."""
    ranks, width, (way, _, sliced) = int(row["gpus"]), WIDTHS[row["dtype"]], row["setting"].partition("+")
    host = _whole()[way] * ranks * width
    shared = links.Links(link=gpu.pcie * gpu.link_one, host=host, peers=gpu.nvlink or None)
    if not sliced:
        return 1 / links.whole_seconds(width, ranks, shared)
    move = links.sliced_seconds if way == "upload" else links.offload_seconds
    return 1 / move(width, ranks, shared)


@functools.cache
def _whole() -> Mapping[str, float]:
    """Direction -> what the paper reports of :data:`ANCHOR` without slices, in parameters per second."""
    return {row["setting"]: float(row["value"]) * 1e9 for row in evidence.rows(*_METRIC) if is_anchor(row)}


def is_anchor(row: Mapping[str, str]) -> bool:
    """Whether ``row`` is one of the two that are fitted."""
    return row["metric"] == "link_rate" and row["model"] == ANCHOR and "+" not in row["setting"]


@functools.cache
def share(gpu: Gpu) -> float:
    """The error that nine of ten of the other rates stay within."""
    errors = sorted(abs(rate(row, gpu) / (float(row["value"]) * 1e9) - 1) for row in evidence.rows(*_METRIC)
                    if not is_anchor(row))  # fmt: skip
    return errors[round(0.9 * (len(errors) - 1))]
