"""Lanes execute a schedule's operations: CUDA streams with events, or one thread per lane.

The compute lane is the caller's: an operation on it runs inside ``submit``. The other lanes run beside the
caller. A ticket stands for an operation's end; waiting for it orders the lanes.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from typing import Any, Protocol

import torch

from zobench.engine.transfers.schedule import Event, Key, Op
from zobench.machine.accelerator import Accelerator

Action = Callable[[], None]


class Lanes(Protocol):
    """The lanes as the pipeline sees them."""

    def submit(self, op: Op, action: Action, after: Sequence[Any]) -> Any:
        """Runs ``action`` on ``op.lane`` once all tickets ``after`` are done; returns the ticket of its end."""

    def wait(self, ticket: Any) -> None:
        """Returns when the operation of ``ticket`` is done; from any thread."""

    def drain(self) -> None:
        """Returns when everything submitted is done; raises the first error of any lane."""

    def close(self) -> None:
        """Ends the lanes; they cannot be used again."""

    def record(self) -> None:
        """Starts an empty timeline."""

    def timeline(self) -> list[Event]:
        """Ends the recording once everything submitted is done; returns what it saw, in order of the starts."""


Ticket = Future[None]
"""The end of one operation on a thread lane, and the error that it ended with."""


class ThreadLanes:
    """One worker thread per transfer lane; with a CUDA device each worker has a stream of its own and syncs it.

    Right for a CPU device, and for tiers whose copies block the thread that issues them: disks and pageable memory.
    """

    def __init__(self, device: str = "cpu") -> None:
        self._cuda = Accelerator(device) if device.startswith("cuda") else None
        self._queues: dict[str, queue.SimpleQueue[Any]] = {}
        self._threads: list[threading.Thread] = []
        self._last: dict[str, Ticket] = {}
        self._error: BaseException | None = None
        self._events: list[Event] | None = None
        self._origin = 0.0

    def submit(self, op: Op, action: Action, after: Sequence[Ticket]) -> Ticket:
        ticket: Ticket = Future()
        if op.lane == "compute":
            self._run(op, action, after, ticket)
            ticket.result()
        else:
            if op.lane not in self._queues:
                self._start(op.lane)
            self._last[op.lane] = ticket
            self._queues[op.lane].put((op, action, tuple(after), ticket))
        return ticket

    def wait(self, ticket: Ticket) -> None:
        ticket.result()

    def drain(self) -> None:
        for ticket in self._last.values():
            ticket.exception()  # whatever its end is
        if self._error is not None:  # of any operation: a write-back that failed has nobody else waiting for it
            raise self._error
        if self._cuda is not None:
            self._cuda.synchronize()

    def close(self) -> None:
        for lane in self._queues.values():
            lane.put(None)
        for thread in self._threads:
            thread.join()
        self._queues.clear()
        self._threads.clear()
        self._last.clear()

    def record(self) -> None:
        self._origin, self._events = time.perf_counter(), []

    def timeline(self) -> list[Event]:
        self.drain()
        events, self._events = self._events or [], None
        return sorted(events, key=lambda event: event[3])

    def _start(self, name: str) -> None:
        self._queues[name] = queue.SimpleQueue()
        thread = threading.Thread(target=self._work, args=(self._queues[name],), name=f"zobench-{name}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _work(self, jobs: queue.SimpleQueue[Any]) -> None:
        stream = self._cuda.stream() if self._cuda is not None else nullcontext()
        with torch.inference_mode(), stream:
            while (job := jobs.get()) is not None:
                self._run(*job)

    def _run(self, op: Op, action: Action, after: Sequence[Ticket], ticket: Ticket) -> None:
        try:
            for earlier in after:
                earlier.result()
            start = time.perf_counter()
            action()
            if self._cuda is not None:
                self._cuda.current_stream().synchronize()
            if (events := self._events) is not None and start >= self._origin:
                events.append((op.lane, op.kind, op.block, start - self._origin, time.perf_counter() - self._origin))
            ticket.set_result(None)
        except BaseException as error:  # whatever ends an operation must reach the thread that waits for it
            if op.lane != "compute":  # the caller has seen those
                self._error = self._error or error
            ticket.set_exception(error)


class CudaLanes:
    """Three CUDA streams ordered by events; the host never waits inside a step (ZO2 section 5.2).

    An operation of the schedule has one event for all its runs: who waits for it has waited before it runs again, and
    a wait is for the run that was last when it was issued.
    """

    def __init__(self, device: str) -> None:
        self._device = Accelerator(device)
        self._streams: dict[str, torch.Stream] = {}
        self._ends: dict[Key, torch.Event] = {}
        self._recorded: list[tuple[Op, torch.Event, torch.Event]] = []
        self._origin: torch.Event | None = None

    def submit(self, op: Op, action: Action, after: Sequence[torch.Event]) -> torch.Event:
        stream = self._stream(op.lane)
        with nullcontext() if op.lane == "compute" else stream:
            for event in after:
                stream.wait_event(event)
            if self._origin is None:
                action()
                return self._end(op, stream)
            start = self._device.mark(stream)
            action()
            end = self._device.mark(stream)
        self._recorded.append((op, start, end))
        return end

    def wait(self, ticket: torch.Event) -> None:
        ticket.synchronize()

    def drain(self) -> None:
        self._device.synchronize()

    def close(self) -> None:
        self.drain()
        self._streams.clear()
        self._ends.clear()

    def record(self) -> None:
        self._recorded = []
        self._origin = self._device.mark(self._device.current_stream())

    def timeline(self) -> list[Event]:
        self.drain()
        origin, self._origin = self._origin, None
        if origin is None:
            return []
        seconds = [(op, origin.elapsed_time(a) / 1e3, origin.elapsed_time(b) / 1e3) for op, a, b in self._recorded]
        return sorted(((op.lane, op.kind, op.block, a, b) for op, a, b in seconds), key=lambda event: event[3])

    def _stream(self, lane: str) -> torch.Stream:
        if lane == "compute":
            return self._device.current_stream()
        if lane not in self._streams:
            self._streams[lane] = self._device.stream()
        return self._streams[lane]

    def _end(self, op: Op, stream: torch.Stream) -> torch.Event:
        event = self._ends.get(op.key)
        if event is None:
            self._ends[op.key] = event = self._device.mark(stream, timed=False)
        else:
            event.record(stream)
        return event
