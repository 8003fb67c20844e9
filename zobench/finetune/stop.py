"""Stops a run between two steps, where its weights are consistent, after Ctrl-C or SIGTERM."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(KeyboardInterrupt):
    """A run was stopped after ``step`` steps; the same run in the same ``folder`` goes on from there."""

    def __init__(self, step: int, folder: Path) -> None:
        super().__init__(f"stopped after {step} steps; the same command goes on from there")
        self.step, self.folder = step, folder


class Stop:
    """Inside the block the first signal sets ``wanted``; a second one raises KeyboardInterrupt at once.

    Only the main thread can handle signals; in another thread nothing changes.
    """

    def __init__(self) -> None:
        self.wanted = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Stop:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._ask) for number in SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.wanted:
            raise KeyboardInterrupt
        self.wanted = True
