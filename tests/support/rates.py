"""Rates of a machine, as a calibration stores them."""

import json
from pathlib import Path
from typing import Any

from tests.support.files import written
from zobench.cost import Estimate, Rates
from zobench.execute import rates

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
