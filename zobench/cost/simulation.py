"""A device on which nothing runs: a clock that executes the engine's schedule on lanes that only count seconds, and
PyTorch's caching allocator, which says what a trace of allocations reserves on a CUDA device. No torch.

The allocator's source: c10/cuda/CUDACachingAllocator.cpp. Sizes are rounded to 512 bytes; small and large requests have
pools of their own on each stream; a pool gives its smallest free piece that is large enough, split where enough is
left over, and freed neighbours are joined. Segments are never given back. Not modelled: what is freed when memory runs
out.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from zobench.engine.transfers import schedule
from zobench.engine.transfers.schedule import Event, Key, Op
from zobench.runspec import RunSpec

STEPS = 4
"""Steps until each takes as long as the one before."""
ROUNDS = (4, 8)
"""Rounds of the slots that are simulated; longer models go on as between these two."""
ROUND, SMALL, SMALL_SEGMENT = 512, 1 << 20, 2 << 20
MIDDLE, MIDDLE_SEGMENT, LARGE_ROUND = 10 << 20, 20 << 20, 2 << 20
Pool = tuple[int, bool]
"""(stream, whether small)."""


@dataclass(eq=False, slots=True)
class Piece:
    """``size`` bytes of a segment, free or not, between its neighbours there."""

    size: int
    pool: Pool
    number: int
    free: bool = False
    before: Piece | None = None
    after: Piece | None = None


class Allocator:
    """``reserved``: bytes of all segments that it took from the device."""

    def __init__(self) -> None:
        self.reserved = 0
        self._free: dict[Pool, list[tuple[int, int, Piece]]] = {}
        self._numbers = itertools.count(1)

    def allocate(self, nbytes: float, stream: int = 0) -> Piece:
        """A piece of at least ``nbytes`` for ``stream``."""
        size = max(ROUND, -(-int(nbytes) // ROUND) * ROUND)
        small = size <= SMALL
        free = self._free.setdefault((stream, small), [])
        first = bisect.bisect_left(free, (size, -1))
        piece = free.pop(first)[2] if first < len(free) else self._segment(size, (stream, small))
        piece.free = False
        rest = piece.size - size
        if rest >= ROUND if small else rest > SMALL:
            self._split(piece, rest)
        return piece

    def release(self, *pieces: Piece) -> None:
        """Gives ``pieces`` back, in this order, each joined with its free neighbours."""
        for piece in pieces:
            if piece.after is not None and piece.after.free:
                self._take(piece.after)
                _join(piece, piece.after)
            if piece.before is not None and piece.before.free:
                self._take(piece.before)
                piece = _join(piece.before, piece)
            self._put(piece)

    def _segment(self, size: int, pool: Pool) -> Piece:
        if size <= SMALL:
            taken = SMALL_SEGMENT
        else:
            taken = MIDDLE_SEGMENT if size < MIDDLE else -(-size // LARGE_ROUND) * LARGE_ROUND
        self.reserved += taken
        return Piece(taken, pool, next(self._numbers))

    def _split(self, piece: Piece, rest: int) -> None:
        piece.size -= rest
        other = Piece(rest, piece.pool, next(self._numbers), before=piece, after=piece.after)
        if piece.after is not None:
            piece.after.before = other
        piece.after = other
        self._put(other)

    def _put(self, piece: Piece) -> None:
        piece.free = True
        bisect.insort(self._free[piece.pool], (piece.size, piece.number, piece))

    def _take(self, piece: Piece) -> None:
        free = self._free[piece.pool]
        free.pop(bisect.bisect_left(free, (piece.size, piece.number)))


def _join(piece: Piece, after: Piece) -> Piece:
    """``piece``, with ``after`` as a part of it."""
    piece.size += after.size
    piece.after = after.after
    if after.after is not None:
        after.after.before = piece
    return piece


@dataclass(slots=True)
class Clock:
    """When each lane is free, when the latest run of each operation ended, and all runs, in seconds from 0."""

    lanes: dict[str, float] = field(default_factory=dict)
    ends: dict[Key, float] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    issued: float = 0.0

    def run(
        self, operations: Iterable[Op], seconds: Callable[[Op], float], halts: Callable[[Op], float] = lambda _: 0.0
    ) -> float:
        """Runs ``operations`` in the order of issue, each after its lane's last and after all that it waits for, and
        returns when the last of all ended. ``halts(op)``: seconds that the host takes before it issues an operation,
        with all lanes idle; what comes later begins after them."""
        for op in operations:
            if halt := halts(op):
                self.issued = max(self.lanes.values(), default=self.issued) + halt
            waits = [self.ends[key] for key in op.after if key in self.ends]
            start = max([self.issued, self.lanes.get(op.lane, 0.0), *waits])
            self.lanes[op.lane] = self.ends[op.key] = end = start + seconds(op)
            self.events.append((op.lane, op.kind, op.block, start, end))
        return max(self.lanes.values(), default=0.0)


def simulate(spec: RunSpec, units: int, lanes: Mapping[str, float], *, halt: float = 0.0) -> float:
    """Seconds of a settled step of ``units`` streamed units, whose operations take the seconds in ``lanes``.

    Units count as equally large. Of many only some rounds of the slots are run, and the rest goes on like the last of
    them. ``halt``: seconds that the host takes before each upload, with all lanes idle.
    """
    slots = min(spec.slots, units)
    few, more = (units % slots + slots * rounds for rounds in ROUNDS)
    if units <= more:
        return _settled(spec, units, lanes, halt)[0]
    first, second = (_settled(spec, count, lanes, halt)[0] for count in (few, more))
    return second + (units - more) * (second - first) / (more - few)


def timeline(spec: RunSpec, units: int, lanes: Mapping[str, float], *, halt: float = 0.0) -> tuple[float, list[Event]]:
    """The seconds of :func:`simulate`, of all units, and that step's operations as lanes record them: those that are
    issued in it and take time, in order of their starts. The head is none of the schedule's, and is left out."""
    step, begin, events = _settled(spec, units, lanes, halt)
    seen = [
        (lane, kind, block, start - begin, end - begin)
        for lane, kind, block, start, end in events
        if end > start and kind != "head"
    ]
    return step, sorted(seen, key=lambda event: event[3])


def _settled(
    spec: RunSpec, units: int, lanes: Mapping[str, float], halt: float
) -> tuple[float, float, Sequence[Event]]:
    """(seconds of the last of some steps, its beginning, what was issued in it), as :func:`simulate`."""
    slots = min(spec.slots, units)
    head = (Op("head", 0, 0, "compute", (("compute", units - 1),)),)
    step = schedule.step(units, slots, spec.overlap, spec.fused_update)
    probe = len(schedule.traversal(units, slots, spec.overlap))
    clock, ends = Clock(), []

    def run(ops: Sequence[Op]) -> None:
        clock.run(ops, lambda op: lanes[op.kind], lambda op: halt if op.kind == "upload" else 0.0)

    run(schedule.prologue(units, slots, spec.overlap))
    for _ in range(STEPS):
        clock.events.clear()
        run((*step[:probe], *head, *step[probe:]))
        ends.append(clock.lanes["compute"])
    return ends[-1] - ends[-2], ends[-2], clock.events
