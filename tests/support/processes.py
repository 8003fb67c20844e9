"""Waiting for processes to end."""

from __future__ import annotations

import time
from pathlib import Path


def gone(pid: int, seconds: float = 10) -> bool:
    """Whether the process ends (or is only a zombie) within the time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (OSError, IndexError):
            return True
        if state == "Z":
            return True
        time.sleep(0.02)
    return False
