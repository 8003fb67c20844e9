"""Results of cells that were not measured."""

from __future__ import annotations

from zobench.measure.environment import fingerprint_without_torch
from zobench.result import Outcome, Result
from zobench.runspec import RunSpec


def failed(spec: RunSpec, outcome: Outcome, reason: str, traceback: str = "") -> Result:
    """The result of a cell that was not measured: its outcome, the reason, and the machine."""
    return Result(
        spec=spec, outcome=outcome, reason=reason, environment=fingerprint_without_torch(), traceback=traceback
    )
