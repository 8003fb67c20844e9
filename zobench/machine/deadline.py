"""When a cell should end with what it has: told by whoever starts its process, looked at between two steps."""

from __future__ import annotations

import os
import time

_NAME = "ZOBENCH_DEADLINE"


def environment(seconds: float | None) -> dict[str, str]:
    """What the process of a cell finds in its environment that should end in ``seconds``; nothing for None."""
    return {} if seconds is None else {_NAME: str(time.monotonic() + seconds)}  # one clock for a machine's processes


def left() -> float | None:
    """Seconds until this process should end; None if nobody has said."""
    told = os.environ.get(_NAME)
    return None if told is None else float(told) - time.monotonic()
