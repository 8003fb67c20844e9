"""What a cell loads before it measures: a process that was forked from one with this module begins at once."""

import ctypes
from typing import Any

from zobench import models
from zobench.programs.cell import run
from zobench.runspec import RunSpec

M_MMAP_THRESHOLD = -3
ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 4 << 20)  # as GLIBC_TUNABLES has it in a cell's process: it does not rise
models.build("opt-tiny", "fp32")  # transformers loads a model's module at first use


def peak(spec: dict[str, Any]) -> int:
    """Bytes of device memory at the peak of a cell that runs here."""
    result = run(RunSpec.from_dict(spec))
    nbytes = result.memory["device_peak_bytes"]
    assert nbytes is not None, result.reason
    return nbytes
