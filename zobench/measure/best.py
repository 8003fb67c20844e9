"""Seconds of an action on a device: those of the fastest of several runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def best_seconds(device: str, action: Callable[[], Any], budget: float) -> float:
    """Seconds of the fastest of several runs after a first one; at least one run, then as many as the budget holds."""
    from zobench.machine.accelerator import Accelerator

    def wait() -> None:
        if device.startswith("cuda"):
            Accelerator(device).synchronize()

    action()
    wait()
    best, end = float("inf"), time.perf_counter() + budget
    while True:
        began = time.perf_counter()
        action()
        wait()
        now = time.perf_counter()
        best = min(best, now - began)
        if now >= end:
            return best
