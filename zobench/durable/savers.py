"""Checkpoints of a run beside its steps: with the run held, in the paper's two halves, or as bases for a journal.

``sync`` holds the run until all is on the disk. ``async`` is ZO-Offloading's scheme (ICLR'25, section 5.5): the half of
the model that a step is through with is copied, then saved, while the other half is computed. ``journal`` copies a
group of units at a time, those first that the next step needs last, and the journal brings each unit up to date: so the
copy is small, and what waits for it is hardly ever needed meanwhile.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from zobench.durable import snapshot, tensors
from zobench.durable.snapshot import Writer
from zobench.engine import history
from zobench.engine.base import Position
from zobench.engine.blocks import PAGE, Unit
from zobench.engine.lanes import Event
from zobench.engine.tiers import allocate

if TYPE_CHECKING:
    from zobench.engine import Engine
    from zobench.parallel import World

GROUP = 256 << 20
"""Bytes of the units that the journal form copies at a time, unless one unit is larger."""
PIECE = 64 << 20
"""Bytes that a synchronous checkpoint reads at a time."""
LEAVE = 10.0
"""Seconds that an interrupted run waits for its savers' threads."""


@dataclass(kw_only=True, slots=True)
class Saved:
    """One checkpoint: begun after ``step`` steps; for how many seconds the run was held, after how many it was on the
    disk, how many bytes this rank wrote. ``beside``: whether steps went on until all was copied, so that ``stall`` is
    all that they had to wait. ``error``: why there is no checkpoint, after all."""

    step: int
    stall: float = 0.0
    seconds: float = 0.0
    nbytes: int = 0
    beside: bool = True
    error: str = ""


def _nothing() -> None:
    pass


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """Where checkpoints go, ``folder``, and what goes with them.

    ``state(step)``: JSON types beside the weights, ``run`` and ``base`` among them. Called by a thread of the saver's:
    ``seal()`` before a checkpoint gets its name, when the journal must be on the disk as far as that refers to it, and
    ``kept()`` afterwards. ``tell(text)``, by the thread that steps: a checkpoint that failed, which ends no run.
    ``world``: the ranks that save together; those of the first node write, each its part of every unit.
    """

    folder: Path
    state: Callable[[int], Mapping[str, Any]]
    tell: Callable[[str], None]
    seal: Callable[[], None] = _nothing
    kept: Callable[[], None] = _nothing
    world: World | None = None

    @property
    def share(self) -> tuple[int, int]:
        """(This rank, of how many) of those that write."""
        return (self.world.local_rank, self.world.local_ranks) if self.world is not None else (0, 1)

    @property
    def writes(self) -> bool:
        """Whether this rank is one of those."""
        return self.world is None or self.world.rank < self.world.local_ranks

    def agreed(self, ready: bool) -> bool:
        """Whether all ranks are ``ready``."""
        if self.world is None:
            return ready
        return not self.world.sum(torch.tensor([not ready], dtype=torch.float64)).any()

    def token(self) -> str:
        """A new one for all ranks."""
        drawn = int.from_bytes(os.urandom(7), "little")
        return f"{drawn if self.world is None else self.world.from_first([drawn])[0]:014x}"


class Saver(Protocol):
    """Saves a run. ``saved``: its checkpoints so far; ``events``: what its lanes ``copy`` and ``save`` did for the last
    one, in seconds of ``time.perf_counter``; ``held_bytes``: host memory that it keeps for copies."""

    saved: list[Saved]
    events: list[Event]
    held_bytes: int

    def begin(self, step: int) -> None:
        """Asks for a checkpoint at the boundary after ``step`` steps, before its :meth:`after_step`; one that another
        is still under way at begins when that is done."""

    def after_step(self, step: int) -> None:
        """Comes at the boundary after every step, in the thread that steps."""

    def close(self, finish: bool = True) -> None:
        """Returns when all checkpoints are on the disk; without ``finish``, as after an error, leaves the last."""


def make(kind: str, engine: Engine, target: Target) -> Saver:
    """The saver of ``RunSpec.checkpoint`` "sync", "async" or "journal" for ``engine``, one rank's own."""
    if not hasattr(engine, "before_change"):
        return TensorSaver(engine, target)
    kinds: dict[str, type[SyncSaver | HalvesSaver | JournalSaver]] = {
        "sync": SyncSaver,
        "async": HalvesSaver,
        "journal": JournalSaver,
    }
    return kinds[kind](engine, target)


@contextlib.contextmanager
def saving(kind: str, engine: Engine, target: Target) -> Iterator[Saver]:
    """A saver that is closed at the end; after an error without finishing what is under way."""
    saver = make(kind, engine, target)
    try:
        yield saver
    except BaseException:
        saver.close(finish=False)
        raise
    saver.close()


# --- with the run held ------------------------------------------------------------------------------------------------


class TensorSaver:
    """Holds the run and writes named tensors: for engines that backpropagate, whose weights no journal tells."""

    def __init__(self, engine: Engine, target: Target) -> None:
        self.engine, self.target = engine, target
        self.saved: list[Saved] = []
        self.events: list[Event] = []
        self.held_bytes = 0

    def begin(self, step: int) -> None:
        """See :class:`Saver`."""
        start, made = time.perf_counter(), Saved(step=step)
        self.events.clear()
        self.saved.append(made)
        try:
            self._save(made)
            self.target.kept()
        except ConnectionError:  # another rank is gone
            raise
        except OSError as error:
            made.error = f"{error}"
            self.target.tell(_failure(made))
        end = time.perf_counter()
        made.stall = made.seconds = end - start

    def after_step(self, step: int) -> None:
        """See :class:`Saver`."""

    def close(self, finish: bool = True) -> None:
        """See :class:`Saver`."""

    def _save(self, made: Saved) -> None:
        everything = itertools.chain(self.engine.named_tensors(), self.engine.state_tensors())

        def counted() -> Iterator[tuple[str, Tensor]]:
            for name, tensor in everything:
                made.nbytes += tensor.nbytes
                yield name, tensor

        start = time.perf_counter()
        tensors.write(self.target.folder, made.step, counted(), self.target.state(made.step))
        self.events.append(("save", "save", 0, start, time.perf_counter()))


class SyncSaver(TensorSaver):
    """Holds the run and writes the weights at rest: what a checkpoint costs without any of the below."""

    def __init__(self, engine: Engine, target: Target) -> None:
        super().__init__(engine, target)
        self._buffer = allocate(PIECE)
        self.held_bytes = PIECE

    def _save(self, made: Saved) -> None:
        """The first rank finishes when it knows that the others are done, so it never waits for one that is gone."""
        cut = Cut(made, self.target)
        cut.positions = {unit.name: self.engine.position(unit) for unit in self.engine.units}
        leads, failure = self.target.share[0] == 0, None
        try:
            try:
                self._add_all(cut)
                if not leads:
                    cut.finish()
            except OSError as error:
                failure = error
            if not self.target.agreed(failure is None):
                raise failure or OSError("another rank could not write its part")
            if leads:
                cut.finish()
        except BaseException:
            cut.abandon()
            raise

    def _add_all(self, cut: Cut) -> None:
        for unit in self.engine.units:
            start = time.perf_counter()
            first, last = part(self.engine, unit, self.target) if unit.changed else (0, 0)
            for place in range(first, last, PIECE):
                out = self._buffer[: min(PIECE, last - place)]
                history.read(self.engine, unit, out, place)
                cut.add(unit, place, out)
            if last > first:
                self.events.append(("save", "save", block_of(self.engine, unit), start, time.perf_counter()))


def part(engine: Engine, unit: Unit, target: Target) -> tuple[int, int]:
    """The bytes of ``unit``, from page to page, that this rank saves once a step has changed them.

    Where ranks share the unit's memory (:class:`zobench.parallel.hosts.SharedHosts`) they are those that no other rank
    writes back.
    """
    (rank, ranks), kept = target.share, engine.kept_bytes(unit)
    if not (unit.trained and target.writes):
        return 0, 0
    size = part_size(engine, unit, ranks)
    return min(kept, size * rank), min(kept, size * (rank + 1))


def part_size(engine: Engine, unit: Unit, ranks: int) -> int:
    """Bytes of each rank's part of ``unit``, but for those that end before."""
    pages = -(-engine.rest_bytes(unit) // PAGE)
    return -(-pages // ranks) * PAGE


def block_of(engine: Engine, unit: Unit) -> int:
    """The number that a timeline has for a unit: of a streamed one its own, of another its part of the model."""
    return engine.number(unit) if unit.streamed else max(0, unit.part)


def _failure(made: Saved) -> str:
    return f"the checkpoint after {made.step} steps could not be written, and the run goes on without it: {made.error}"


class Cut:
    """A checkpoint under way: what belongs to it, and its writer, from its first bytes on."""

    def __init__(self, made: Saved, target: Target) -> None:
        self.made, self._target = made, target
        self.state = dict(target.state(made.step))
        self.positions: dict[str, Position] = {}
        self.began = time.perf_counter()
        self.rest: list[list[Unit]] = []
        self.failed = False
        self._token = target.token()
        self._writer: Writer | None = None

    def add(self, unit: Unit, first: int, data: Tensor) -> None:
        """Writes bytes of a unit."""
        self._open().add(unit.name, first, data)
        self.made.nbytes += data.numel()

    def finish(self) -> None:
        """Returns when all is on the disk under its name."""
        self._target.seal()
        if self._target.writes:
            self._open().finish({**self.state, "positions": snapshot.to_json(self.positions)})
        self._writer = None

    def abandon(self) -> None:
        """Leaves nothing behind."""
        self.failed = True
        if self._writer is not None:
            self._writer.abandon()
            self._writer = None

    def _open(self) -> Writer:
        if self._writer is None:
            rank, ranks = self._target.share
            self._writer = Writer(self._target.folder, self.made.step, rank=rank, ranks=ranks, token=self._token)
        return self._writer


# --- beside the steps -------------------------------------------------------------------------------------------------


@dataclass(eq=False, slots=True)
class Copy:
    """Bytes of a unit on their way: who ``claimed`` it copies it, then it is ``done``, also where that failed."""

    unit: Unit
    first: int
    data: Tensor
    claimed: bool = False
    done: threading.Event = field(default_factory=threading.Event)


class Worker:
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


class Beside:
    """What the two forms that save beside the steps share: a thread that copies, one that writes, and who waits.

    Weights are copied while no step touches them: ``_due`` holds the units whose copy is not done, and the engine calls
    :meth:`_touch` before it changes a unit. A write that fails is told; any other error is raised in the next call.
    """

    def __init__(self, engine: Engine, target: Target) -> None:
        self.engine, self.target = engine, target
        self.saved: list[Saved] = []
        self.events: list[Event] = []
        self.held_bytes = 0
        self._cut: Cut | None = None
        self._due: dict[int, Copy] = {}
        self._lock = threading.Lock()
        self._under_way = 0
        self._idle = threading.Event()
        self._idle.set()
        self._asked = self._leaving = False
        self._error: BaseException | None = None
        self._copier, self._writer = Worker("zobench-copy"), Worker("zobench-save")
        engine.before_change = self._touch

    def begin(self, step: int) -> None:
        """See :class:`Saver`."""
        self._asked = True

    def after_step(self, step: int) -> None:
        """See :class:`Saver`."""
        start = time.perf_counter()
        held = self._cut
        if held is not None or self._asked:
            self._boundary()
            if self._cut is None and self._asked and self._settled():
                self._asked = False
                self.events.clear()
                self.saved.append(Saved(step=step))
                self._cut = held = Cut(self.saved[-1], self.target)
                self._start()
        if held is not None:
            held.made.stall += time.perf_counter() - start

    def close(self, finish: bool = True) -> None:
        """See :class:`Saver`."""
        try:
            while finish and self._cut is not None:
                self._idle.wait()
                made = self._cut.made
                self._last()
                made.beside = made.beside and self._cut is None
        finally:
            self._leaving = True
            for worker in (self._copier, self._writer):
                worker.end(None if finish else LEAVE)
            self.engine.before_change = lambda unit: None
        if finish:
            self._raise()

    def _start(self) -> None:
        """Begins ``_cut`` at a boundary."""
        raise NotImplementedError

    def _boundary(self) -> None:
        """Goes on with ``_cut`` at a boundary."""
        raise NotImplementedError

    def _last(self) -> None:
        """Goes on with ``_cut`` when no step comes any more and the threads have nothing to do."""
        raise NotImplementedError

    def _touch(self, unit: Unit) -> None:
        """Comes before a unit is changed, in the thread that steps."""
        if self._cut is not None:
            start = time.perf_counter()
            self._hold(unit)
            self._cut.made.stall += time.perf_counter() - start

    def _hold(self, unit: Unit) -> None:
        """Returns when a step may change the unit."""
        raise NotImplementedError

    def _settled(self) -> bool:
        """Whether the threads of all ranks have nothing to do."""
        self._raise()
        return self.target.agreed(self._idle.is_set())

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
            mine, copy.claimed = not copy.claimed, True
        return mine

    def _copy(self, cut: Cut, copy: Copy) -> None:
        """Copies a unit, in any thread."""
        start = time.perf_counter()
        try:
            if not (cut.failed or self._leaving):
                history.read(self.engine, copy.unit, copy.data, copy.first)
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
        """When a group is written."""
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
        if cut.failed or self._leaving:
            cut.abandon()
            return
        try:
            work()
        except OSError as error:  # TimeoutError is one: another rank's shards did not come
            cut.made.error = f"{error}"
            cut.abandon()
        except BaseException as error:
            self._error = self._error or error
            cut.abandon()

    def _end(self) -> None:
        """Lets go of a checkpoint that is done."""
        assert self._cut is not None
        if self._cut.made.error:
            self.target.tell(_failure(self._cut.made))
        self._cut = None

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error


class HalvesSaver(Beside):
    """ZO-Offloading's asynchronous checkpoint (ICLR'25, section 5.5), with a second copy of the weights in host memory.

    Stage 1: in the first pass after the boundary, when p1 (what comes before the blocks, and their first half) is
    through and p2 (all others) begins, p1 is copied, and saved from its copy. Stage 2: before p1 is touched again its
    copy is awaited; then p2 is copied and saved. Stage 3: before p2 is touched again its copy is awaited. All units
    stand at the end of that pass. What the head uses is p2's; tied to the word embedding, it is touched first of all,
    so for it only its own copy is awaited.
    """

    def __init__(self, engine: Engine, target: Target) -> None:
        super().__init__(engine, target)
        shares = {unit.name: part(engine, unit, target) for unit in engine.units}
        self._copies = {name: touched(last - first) for name, (first, last) in shares.items() if last > first}
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
        copy = self._due.get(id(unit))
        if copy is not None:
            _wait([copy] if self._is_end(unit) else self._sent)

    def _first(self, passes: int) -> None:
        """Stage 1, in the last of so many passes."""
        self._stage, self._passes = 2, passes
        self._half_of(True)

    def _second(self) -> None:
        """Stages 2 and 3."""
        _wait(self._sent)
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
        return unit in self.engine.forwards.head_units


class JournalSaver(Beside):
    """Copies the units group by group, each group as it is at a step's boundary, while the steps go on.

    The groups that a step touches last come first: by then they are copied. A unit that is touched before waits for its
    copy, or is copied then and there. Groups are saved at different steps: the journal tells what each one lacks, so a
    checkpoint needs no second copy of the weights, only that of a group.
    """

    def __init__(self, engine: Engine, target: Target) -> None:
        super().__init__(engine, target)
        ranks = target.share[1]
        self._nbytes = {  # of the first rank, so that all have the same groups
            id(unit): min(engine.kept_bytes(unit), part_size(engine, unit, ranks)) if unit.trained else 0
            for unit in engine.units
        }
        self._room = min(sum(self._nbytes.values()), max(GROUP, *self._nbytes.values()))
        self._memory = touched(self._room if target.writes else 0)
        self.held_bytes = self._memory.numel()
        self._order: dict[int, Unit] = {}

    def after_step(self, step: int) -> None:
        """See :class:`Saver`."""
        super().after_step(step)
        self._order.clear()

    def _start(self) -> None:
        cut = self._cut
        assert cut is not None
        cut.rest = self._groups()
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
        copy = self._due.get(id(unit))
        if copy is not None:
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
                room = self._room
            groups[-1].insert(0, unit)
            room -= self._nbytes[key]
        return groups

    def _next(self) -> None:
        """Cuts the next group off, here and now."""
        cut = self._cut
        assert cut is not None
        copies, place = [], 0
        for unit in cut.rest.pop(0):
            cut.positions[unit.name] = self.engine.position(unit)
            first, last = part(self.engine, unit, self.target)
            if unit.changed and last > first:
                copies.append(Copy(unit, first, self._memory[place : place + last - first]))
                place += last - first
        self._send(copies, ends=not cut.rest)


def _wait(copies: Sequence[Copy]) -> None:
    for copy in copies:
        copy.done.wait()


def touched(nbytes: int) -> Tensor:
    """Host memory that is there, so that no copy waits for fresh pages."""
    return allocate(nbytes).fill_(1)
