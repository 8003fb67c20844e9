"""Savers that work while steps go on: a thread that copies, one that writes, and the waits for them. The paper's scheme
of two halves, and bases for a journal."""

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

from zobench.durable.savers.base import PEER_FAILED, Cut, Saved, Saver, Target, block_of, failure, part, part_size
from zobench.engine.base import Position
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
                saved = self._cut.made
                self._last()
                saved.overlapped = saved.overlapped and self._cut is None
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


class HalvesSaver(BackgroundSaver):
    """ZO-Offloading's asynchronous checkpoint (ICLR'25, section 5.5), with a second copy of the weights in host memory.

    Stage 1: in the first pass after the boundary, when p1 (what comes before the blocks, and their first half) is
    through and p2 (all others) begins, p1 is copied, and saved from its copy. Stage 2: before p1 is touched again its
    copy is awaited; then p2 is copied and saved. Stage 3: before p2 is touched again its copy is awaited. All units
    stand at the end of that pass. What the head uses is p2's; tied to the word embedding, it is touched first of all,
    so for it only its own copy is awaited.
    """

    def __init__(self, engine: LocalEngine, target: Target) -> None:
        super().__init__(engine, target)
        shares = {unit.name: part(engine, unit, target) for unit in engine.units}
        self._copies = {name: self._room(last - first) for name, (first, last) in shares.items() if last > first}
        self.held_bytes = sum(memory.numel() for memory in self._copies.values())
        self._half = (engine.parts - 2) / 2
        self._stage = self._passes = 0
        self._sent: list[Copy] = []

    def _start(self) -> None:
        self._stage, self._sent = 1, []

    def _boundary(self) -> None:
        if self._stage == 2:  # the pass is over
            self._second()
        elif self._stage == 0 and self._cut is not None and self._settled():
            self._end()

    def _last(self) -> None:
        if self._stage == 1:
            self._first(self.engine.passes)
        elif self._stage == 2:
            self._second()
        else:
            self._end()

    def _hold(self, unit: Unit) -> None:
        if self._stage == 1 and unit.part > self._half and self.engine.failed:  # within a pass
            self._first(self.engine.passes + 1)
        elif self._stage == 2 and self.engine.passes >= self._passes:
            self._second()
        if (due := self._due.get(id(unit))) is not None:
            for copy in [due] if self._is_end(unit) else self._sent:
                copy.done.wait()

    def _first(self, passes: int) -> None:
        """Stage 1, in the last of so many passes."""
        self._stage, self._passes = 2, passes
        self._half_of(True)

    def _second(self) -> None:
        """Stages 2 and 3."""
        for copy in self._sent:
            copy.done.wait()
        self._stage = 0
        self._half_of(False)

    def _half_of(self, first: bool) -> None:
        cut, engine = self._cut, self.engine
        assert cut is not None
        units = [unit for unit in engine.units if self._is_first(unit) == first]
        units.sort(key=lambda unit: (not self._is_end(unit), unit.index))
        for unit in units:
            cut.positions[unit.name] = Position(passes=self._passes, applied=unit.applied, part=unit.part)
        self._sent = [
            Copy(unit, begin, self._copies[unit.name][: end - begin])
            for unit in units
            for begin, end in [part(engine, unit, self.target)]
            if unit.changed and end > begin
        ]
        self._send(self._sent, ends=not first)

    def _is_first(self, unit: Unit) -> bool:
        return 0 <= unit.part <= self._half and not self._is_end(unit)

    def _is_end(self, unit: Unit) -> bool:
        return unit in self.engine.head_units


GROUP = 256 << 20
"""Bytes of the units that the journal form copies at a time, unless one unit is larger."""


class JournalSaver(BackgroundSaver):
    """Copies the units group by group, each group as it is at a step's boundary, while the steps go on.

    The groups that a step touches last come first: by then they are copied. A unit that is touched before waits for its
    copy, or is copied then and there. Groups are saved at different steps: the journal has what each one lacks, so a
    checkpoint needs no second copy of the weights, only that of a group.
    """

    def __init__(self, engine: LocalEngine, target: Target) -> None:
        super().__init__(engine, target)
        ranks = target.share[1]
        self._nbytes = {  # of the first rank, so that all have the same groups
            id(unit): min(engine.kept_bytes(unit), part_size(engine, unit, ranks)) if unit.trained else 0
            for unit in engine.units
        }
        self._group = min(sum(self._nbytes.values()), max(GROUP, *self._nbytes.values()))
        self._memory = self._room(self._group if target.writes else 0)
        self.held_bytes = self._memory.numel()
        self._order: dict[int, Unit] = {}

    def after_step(self, step: int) -> None:
        super().after_step(step)
        self._order.clear()

    def _start(self) -> None:
        assert self._cut is not None
        self._cut.rest = self._groups()
        self._next()

    def _boundary(self) -> None:
        if self._cut is not None and self._settled():
            self._last()

    def _last(self) -> None:
        assert self._cut is not None
        if self._cut.rest:
            self._next()
        else:
            self._end()

    def _touch(self, unit: Unit) -> None:
        self._order.setdefault(id(unit), unit)
        super()._touch(unit)

    def _hold(self, unit: Unit) -> None:
        if (copy := self._due.get(id(unit))) is not None:
            assert self._cut is not None
            if self._claim(copy):
                self._copy(self._cut, copy)
            copy.done.wait()

    def _groups(self) -> list[list[Unit]]:
        """All units in groups of at most the staging memory, in the reverse of the order in which a step touches them,
        which is that of the last step."""
        order = self._order | {id(unit): unit for unit in self.engine.units if id(unit) not in self._order}
        groups: list[list[Unit]] = []
        room = 0
        for key, unit in reversed(order.items()):
            if not groups or self._nbytes[key] > room:
                groups.append([])
                room = self._group
            groups[-1].insert(0, unit)
            room -= self._nbytes[key]
        return groups

    def _next(self) -> None:
        """Cuts the next group off, as its units are at this moment."""
        cut = self._cut
        assert cut is not None
        copies, offset = [], 0
        for unit in cut.rest.pop(0):
            cut.positions[unit.name] = self.engine.position(unit)
            first, last = part(self.engine, unit, self.target)
            if unit.changed and last > first:
                copies.append(Copy(unit, first, self._memory[offset : offset + last - first]))
                offset += last - first
        self._send(copies, ends=not cut.rest)
