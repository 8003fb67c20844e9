"""The base of savers that work while steps go on: a thread that copies, one that writes, and the waits for them."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torch import Tensor

from zobench.durable.savers.base import PEER_FAILED, Cut, Saved, Saver, Target, block_of, failure
from zobench.engine.weights.blocks import Unit
from zobench.engine.weights.tiers import allocate

if TYPE_CHECKING:
    from zobench.engine.interface import LocalEngine

GLANCE = 0.05
"""Seconds between two looks at the other ranks, when no step comes any more."""
LEAVE = 10.0
"""Seconds that an interrupted run waits for its savers' threads."""


@dataclass(eq=False, slots=True)
class Copy:
    """Bytes of a unit on their way: who ``claimed`` it copies it, then it is ``done``, also where that failed."""

    unit: Unit
    first: int
    data: Tensor
    claimed: bool = False
    done: threading.Event = field(default_factory=threading.Event)


class CopyThread:
    """One thread of low priority that does jobs in order."""

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def put(self, job: Callable[[], None]) -> None:
        """Does ``job`` after all others; it must raise nothing."""
        self._jobs.put(job)

    def end(self, timeout: float | None) -> None:
        """Returns when all jobs are done, or ``timeout`` seconds later."""
        self._jobs.put(None)
        self._thread.join(timeout)

    def _work(self) -> None:
        if hasattr(os, "setpriority"):
            with contextlib.suppress(OSError):  # a hint: only Linux gives threads priorities of their own
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
        while (job := self._jobs.get()) is not None:
            job()


class BackgroundSaver(Saver):
    """A saver that works while steps go on: one thread copies, one writes, and a step waits where it must.

    Weights are copied while no step touches them: ``_due`` holds the units whose copy is not done, and the engine calls
    :meth:`_touch` before it changes a unit. A write that fails is a warning; any other error is raised in the next
    call.
    """

    def __init__(self, engine: LocalEngine, target: Target) -> None:
        super().__init__(target)
        self.engine = engine
        self._cut: Cut | None = None
        self._due: dict[int, Copy] = {}
        self._lock = threading.Lock()
        self._under_way = 0
        self._idle = threading.Event()
        self._idle.set()
        self._asked = False
        self._error: BaseException | None = None
        self._copier, self._writer = CopyThread("zobench-copy"), CopyThread("zobench-save")
        engine.before_change = self._touch

    def begin(self, step: int) -> None:
        self._asked = True

    def after_step(self, step: int) -> None:
        start = time.perf_counter()
        cut = self._cut
        if cut is not None or self._asked:
            self._boundary()
            if self._cut is None and self._asked and self._settled():
                self._asked = False
                self.events.clear()
                self.saved.append(Saved(step=step))
                self._cut = cut = Cut(self.saved[-1], self.target)
                self._start()
        if cut is not None:
            cut.made.stall += time.perf_counter() - start

    def close(self, finish: bool = True) -> None:
        try:
            while finish and self._cut is not None:
                while not self._settled(wait=GLANCE):  # as long as all ranks are there
                    pass
                made = self._cut.made
                self._last()
                made.overlapped = made.overlapped and self._cut is None
        finally:
            if self._cut is not None:
                self._cut.failed = True
            for worker in (self._copier, self._writer):
                worker.end(None if self._cut is None else LEAVE)
            self.engine.before_change = lambda unit: None
        if finish:
            self._raise()

    @abstractmethod
    def _start(self) -> None:
        """Begins ``_cut`` at a boundary."""

    @abstractmethod
    def _boundary(self) -> None:
        """Goes on with ``_cut`` at a boundary."""

    @abstractmethod
    def _last(self) -> None:
        """Goes on with ``_cut`` when no step comes any more and the threads have nothing to do."""

    def _touch(self, unit: Unit) -> None:
        """Called before a unit is changed, in the thread that steps."""
        if self._cut is not None:
            start = time.perf_counter()
            self._hold(unit)
            self._cut.made.stall += time.perf_counter() - start

    @abstractmethod
    def _hold(self, unit: Unit) -> None:
        """Returns when a step may change the unit."""

    def _room(self, nbytes: int) -> Tensor:
        """Host memory for copies that is there, so that no copy waits for fresh pages."""
        return allocate(nbytes).fill_(1)

    def _settled(self, wait: float = 0.0) -> bool:
        """Whether the threads of all ranks have nothing to do, ``wait`` seconds from now at the latest.

        Ranks also learn here that another one's part has failed, for which they would wait in vain.
        """
        idle = self._idle.wait(wait)
        self._raise()
        busy, failed = self.target.anywhere(not idle, self._cut is not None and self._cut.failed)
        if failed and self._cut is not None:
            self._cut.failed, self._cut.made.error = True, self._cut.made.error or PEER_FAILED
        return not busy

    def _send(self, copies: Sequence[Copy], ends: bool) -> None:
        """Has the threads copy and write these, which no step may change from now on; ``ends``: then comes the end."""
        cut = self._cut
        assert cut is not None
        with self._lock:
            self._under_way += 1
            self._idle.clear()
        self._due.update((id(copy.unit), copy) for copy in copies)
        self._copier.put(lambda: self._take(cut, copies, ends))

    def _take(self, cut: Cut, copies: Sequence[Copy], ends: bool) -> None:
        """Copies each that nobody has claimed, in the copying thread."""
        for copy in copies:
            if self._claim(copy):
                self._copy(cut, copy)
            copy.done.wait()
            self._writer.put(lambda copy=copy: self._write(cut, copy))  # type: ignore[misc]
        self._writer.put(lambda: self._after(cut, ends))

    def _claim(self, copy: Copy) -> bool:
        with self._lock:
            is_ours, copy.claimed = not copy.claimed, True
        return is_ours

    def _copy(self, cut: Cut, copy: Copy) -> None:
        """Copies a unit, in any thread."""
        start = time.perf_counter()
        try:
            if not cut.failed:
                self.engine.read(copy.unit, copy.data, copy.first)
        except BaseException as error:  # raised again by the thread that steps, which must not wait for ever
            self._error, cut.failed = self._error or error, True
        self.events.append(("copy", "copy", block_of(self.engine, copy.unit), start, time.perf_counter()))
        self._due.pop(id(copy.unit), None)
        copy.done.set()

    def _write(self, cut: Cut, copy: Copy) -> None:
        start = time.perf_counter()
        self._try(cut, lambda: cut.add(copy.unit, copy.first, copy.data))
        self.events.append(("save", "save", block_of(self.engine, copy.unit), start, time.perf_counter()))

    def _after(self, cut: Cut, ends: bool) -> None:
        """Ends a group of copies once it is written, and with the last group the checkpoint."""
        if ends:
            self._try(cut, cut.finish)
            self._try(cut, self.target.kept)
            cut.made.seconds = time.perf_counter() - cut.began
        with self._lock:
            self._under_way -= 1
            if not self._under_way:
                self._idle.set()

    def _try(self, cut: Cut, work: Callable[[], object]) -> None:
        """Does ``work`` unless something has failed; a disk that fails ends this checkpoint only."""
        if cut.failed:
            cut.abandon()
            return
        try:
            work()
        except OSError as error:  # TimeoutError is one: another rank's shards did not come
            cut.made.error = cut.made.error or f"{error}"
            cut.abandon()
        except BaseException as error:
            self._error = self._error or error
            cut.abandon()

    def _end(self) -> None:
        """Ends a checkpoint that is done, with a warning if it failed."""
        assert self._cut is not None
        if self._cut.made.error:
            self.target.warn(failure(self._cut.made))
        self._cut = None

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error


def wait(copies: Sequence[Copy]) -> None:
    for copy in copies:
        copy.done.wait()
