"""What is said while something takes long that cannot tell of itself."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

REPORT_EVERY = 4.0
"""Seconds between two lines."""


@contextmanager
def reporting(say: Callable[[str], None], what: str) -> Iterator[None]:
    """Inside, ``say`` is told every :data:`TOLD_EVERY` seconds ``what`` is under way, and for how long."""
    ended, begin = threading.Event(), time.monotonic()

    def report() -> None:
        while not ended.wait(REPORT_EVERY):
            say(f"{what} for {time.monotonic() - begin:.0f} s")

    thread = threading.Thread(target=report, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
