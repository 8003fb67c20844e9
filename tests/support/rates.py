"""Rates of a machine, as a calibration stores them, and cells of OPT-1.3B to predict with them."""

import json
import os
from pathlib import Path
from typing import Any

from tests.support.files import written
from zobench import models
from zobench.cost import Estimate, Rates
from zobench.execute import rates
from zobench.result import Outcome, Result
from zobench.runspec import RunSpec

CALIBRATION: dict[str, Any] = {
    "matmul_flops_per_second": {"fp32": 1e11, "fp16": 1e10, "bf16": 2e11},
    "copy_bytes_per_second": 16e9,
    "noise_elements_per_second": {"torch": 3e8, "counter": 9e8, "fused": 6e8},
    **dict.fromkeys([f"link_{way}_bytes_per_second" for way in ("up", "down", "both")]),
    **dict.fromkeys([f"disk_{way}_bytes_per_second" for way in ("write", "read", "both")]),
    "disk_direct": None,
    "operators_per_second": {
        kind: {"attention": rate, "passes": 1e18, "losses": 1e18, "normals": 3e8, "fused": 6e8}
        for kind, rate in (("fp32", 1e11), ("fp16", 1e10), ("bf16", 2e11))
    },
    "notes": [],
}
RATES = Rates.of(CALIBRATION)


def estimate(seconds: float, **changes: Any) -> Estimate:
    """A prediction of a cell that takes so long."""
    times = {"step_seconds": seconds / 5, "seconds": seconds, "least_seconds": seconds, "source": "calibration"}
    return Estimate(**{"device_bytes": 1, "host_bytes": 0, "disk_bytes": 0, **times, **changes})


def calibrate(folder: Path, machine: str) -> None:
    """Stores these rates as those of the machine's CPU in the results of the folder."""
    written(rates.kept_in(folder / "results", machine, "cpu"), json.dumps(CALIBRATION))


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
