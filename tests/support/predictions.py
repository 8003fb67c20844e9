"""Cells of OPT-1.3B to predict, the sizes of what they hold, and results as if they had been measured."""

import os
from typing import Any

from tests.support.rates import CALIBRATION
from zobench import models
from zobench.result import Outcome, Result
from zobench.runspec import RunSpec

PARAMETERS = models.parameter_count("OPT-1.3B")
BLOCK = models.get("OPT-1.3B").block
STREAMED = 24 * BLOCK
LINEAR = 2048 * 8192
MATRICES = 24 * 12 * 2048**2 + 50272 * 2048
"""Weights of OPT-1.3B that multiply a token: four of its width squared and two four times as large in each block, and
the head's table."""
FORWARD = 2 * MATRICES * 2048 + 24 * 2 * 2048 * 2048**2
"""Operations of its forward of 2048 tokens, with half of the pairs of an attention of 2048 numbers."""
FILLERS = min(3, os.cpu_count() or 1)
SLOW_DISK = CALIBRATION | {
    "disk_read_bytes_per_second": 2e6, "disk_write_bytes_per_second": 1e6, "disk_both_bytes_per_second": 1.5e6
}  # fmt: skip


def offload(model: str = "OPT-1.3B", **changes: Any) -> RunSpec:
    return RunSpec(**{"model": model, "engine": "offload", "tier": "disk", **changes}).resolve("cpu")


def counter(model: str = "OPT-1.3B", **changes: Any) -> RunSpec:
    return offload(model, noise="counter", **changes)


def cell(model: str = "OPT-1.3B", device: str = "cuda:0", **changes: Any) -> RunSpec:
    return RunSpec(**{"model": model, "engine": "offload", "noise": "counter", "dtype": "fp16", **changes}).resolve(
        device
    )


def measured(spec: RunSpec, *seconds: float | None, outcome: Outcome = Outcome.OK) -> Result:
    return Result(spec=spec, outcome=outcome, samples={"step_seconds": list(seconds)})
