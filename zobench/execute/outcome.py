"""Results of cells that were not measured, and how many processes Linux has killed because memory ran out."""

from __future__ import annotations

from pathlib import Path

from zobench.measure.environment import fingerprint_without_torch
from zobench.result import Outcome, Result
from zobench.runspec import RunSpec


def failed(spec: RunSpec, outcome: Outcome, reason: str, traceback: str = "") -> Result:
    """The result of a cell that was not measured: its outcome, the reason, and the machine."""
    return Result(
        spec=spec, outcome=outcome, reason=reason, environment=fingerprint_without_torch(), traceback=traceback
    )


def oom_kills() -> int:
    """How many processes the kernel has killed for memory so far; 0 where it does not count them."""
    try:
        rows = Path("/proc/vmstat").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(row.split()[1]) for row in rows if row.startswith("oom_kill "))
