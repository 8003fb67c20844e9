"""StepTimer: the time of each step, by device events on CUDA and by the host's clock on the CPU."""

from __future__ import annotations

import time
from typing import Any

from zobench.machine.accelerator import Accelerator
from zobench.runspec.order import current


def planted_slowdown() -> float:
    """The share by which each step of this process is to be lengthened, on purpose; 0 of any real measurement."""
    running = current()
    return 0.0 if running is None else running.slowdown


class StepTimer:
    """``with timer: step()`` for each step, then :meth:`seconds`. Entering and leaving never wait for the device.

    ``slowdown``: a share of its own time by which each step is lengthened, as if it had more to do: a comparison is
    tested with it (:mod:`zobench.execute.selfcompare`). Leaving then waits for the device.

    On CUDA the events are recorded on the device's current stream, so a step that uses other streams must let the
    current one wait for them before it returns.
    """

    def __init__(self, device: str, slowdown: float = 0.0) -> None:
        self.device, self._slowdown = device, slowdown
        self._began = 0.0
        self._marks: list[tuple[Any, Any]] = []
        self._start: Any = None

    def __enter__(self) -> StepTimer:
        self._start, self._began = self._now(), time.perf_counter()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:  # a step that raised has no time
            if self._slowdown:
                self._lengthen()
            self._marks.append((self._start, self._now()))

    def seconds(self) -> list[float]:
        """Seconds of each step so far; on CUDA waits for the last one."""
        if not self.device.startswith("cuda"):
            return [end - start for start, end in self._marks]
        if self._marks:
            self._marks[-1][1].synchronize()
        return [start.elapsed_time(end) / 1e3 for start, end in self._marks]  # elapsed_time is in milliseconds

    def _lengthen(self) -> None:
        """Keeps this core busy, as a slower step would, for a share of the time that the step has taken."""
        if self.device.startswith("cuda"):
            self._now().synchronize()
        end = time.perf_counter() + self._slowdown * (time.perf_counter() - self._began)
        while time.perf_counter() < end:
            pass

    def _now(self) -> Any:
        if not self.device.startswith("cuda"):
            return time.perf_counter()
        device = Accelerator(self.device)
        return device.mark(device.current_stream())
