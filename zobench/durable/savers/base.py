"""The parts of every saver: the target of checkpoints, the record of one, and its bytes on their way to the disk; and
the savers that hold the run until all is there."""

from __future__ import annotations

import itertools
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from zobench.durable import snapshot
from zobench.durable.snapshot import Writer
from zobench.engine.base import Position
from zobench.engine.transfers.schedule import Event
from zobench.engine.weights.blocks import PAGE, Unit
from zobench.engine.weights.tiers import allocate

if TYPE_CHECKING:
    from zobench.engine.interface import LocalEngine, TunedEngine
    from zobench.parallel.world import World


@dataclass(kw_only=True, slots=True)
class Saved:
    """One checkpoint: begun after ``step`` steps; for how many seconds the run was held, after how many it was on the
    disk, how many bytes this rank wrote. ``overlapped``: whether steps went on until all was copied, so that ``stall``
    is all that they had to wait. ``error``: why there is no checkpoint, after all."""

    step: int
    stall: float = 0.0
    seconds: float = 0.0
    nbytes: int = 0
    overlapped: bool = True
    error: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """The ``folder`` of checkpoints, and what goes with them.

    ``state(step)``: JSON types beside the weights, ``run`` and ``base`` among them. Called by a thread of the saver's:
    ``seal()`` before a checkpoint gets its name, when the journal must be on the disk as far as that refers to it, and
    ``kept()`` afterwards. ``warn(text)``, called by the thread that steps: a checkpoint failed, which ends no run.
    ``world``: the ranks that save together; those of the first node write, each its part of every unit.
    """

    folder: Path
    state: Callable[[int], Mapping[str, Any]]
    warn: Callable[[str], None]
    seal: Callable[[], None] = lambda: None
    kept: Callable[[], None] = lambda: None
    world: World | None = None

    @property
    def share(self) -> tuple[int, int]:
        """(this rank's number, the number of ranks) among the ranks that write."""
        return (self.world.local_rank, self.world.local_ranks) if self.world is not None else (0, 1)

    @property
    def writes(self) -> bool:
        """Whether this rank writes."""
        return self.world is None or self.world.rank < self.world.local_ranks

    def anywhere(self, *facts: bool) -> list[bool]:
        """Whether each of the facts holds on any rank. Raises ``PeerGoneError`` where one is gone."""
        if self.world is None:
            return list(facts)
        return [count > 0 for count in self.world.sum(torch.tensor(facts, dtype=torch.float64)).tolist()]

    def token(self) -> str:
        """A new token, the same on all ranks."""
        drawn = int.from_bytes(os.urandom(7), "little")
        return f"{drawn if self.world is None else self.world.from_first([drawn])[0]:014x}"


class Saver(ABC):
    """Saves a run. ``saved``: its checkpoints so far; ``events``: what its lanes ``copy`` and ``save`` did for the last
    one, in seconds of ``time.perf_counter``; ``held_bytes``: host memory that it keeps for copies."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.saved: list[Saved] = []
        self.events: list[Event] = []
        self.held_bytes = 0

    @abstractmethod
    def begin(self, step: int) -> None:
        """Asks for a checkpoint at the boundary after ``step`` steps, before its :meth:`after_step`; one that another
        is still under way at begins when that is done."""

    def after_step(self, step: int) -> None:  # noqa: B027  who holds the run has nothing to do there
        """Comes at the boundary after every step, in the thread that steps."""

    def close(self, finish: bool = True) -> None:  # noqa: B027
        """Returns when all checkpoints are on the disk; without ``finish``, as after an error, leaves the last."""


PEER_FAILED = "another rank could not write its part"


class Cut:
    """A checkpoint under way: what belongs to it, and its writer, from its first bytes on. Once it has ``failed``, also
    where another rank's part did, no thread does or awaits anything more for it."""

    def __init__(self, saved: Saved, target: Target) -> None:
        self.made, self._target = saved, target
        self.state = dict(target.state(saved.step))
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
        """Removes what was written of it."""
        self.failed = True
        if self._writer is not None:
            self._writer.abandon()
            self._writer = None

    def _open(self) -> Writer:
        if self._writer is None:
            rank, ranks = self._target.share
            self._writer = Writer(
                self._target.folder, self.made.step, rank=rank, ranks=ranks, token=self._token,
                given_up=lambda: self.failed,
            )  # fmt: skip
        return self._writer


def part(engine: LocalEngine, unit: Unit, target: Target) -> tuple[int, int]:
    """The bytes of ``unit``, from page to page, that this rank saves once a step has changed them.

    Where ranks share the unit's memory (:class:`zobench.parallel.hosts.SharedHosts`) they are those that no other rank
    writes back.
    """
    (rank, ranks), kept = target.share, engine.kept_bytes(unit)
    if not (unit.trained and target.writes):
        return 0, 0
    size = part_size(engine, unit, ranks)
    return min(kept, size * rank), min(kept, size * (rank + 1))


def part_size(engine: LocalEngine, unit: Unit, ranks: int) -> int:
    """Bytes of each rank's part of ``unit``, but for those that end before."""
    pages = -(-engine.rest_bytes(unit) // PAGE)
    return -(-pages // ranks) * PAGE


def block_of(engine: LocalEngine, unit: Unit) -> int:
    """The number that a timeline has for a unit: of a streamed one its own, of another its part of the model."""
    return engine.number(unit) if unit.streamed else max(0, unit.part)


def failure(saved: Saved) -> str:
    return (
        f"the checkpoint after {saved.step} steps could not be written, and the run goes on without it: {saved.error}"
    )


PIECE = 64 << 20
"""Bytes that a synchronous checkpoint reads at a time."""


class BlockingSaver(Saver):
    """A saver that holds the run until all is on the disk."""

    def begin(self, step: int) -> None:
        start, saved = time.perf_counter(), Saved(step=step)
        self.events.clear()
        self.saved.append(saved)
        try:
            self._save(saved)
            self.target.kept()
        except ConnectionError:  # another rank is gone
            raise
        except OSError as error:
            saved.error = f"{error}"
            self.target.warn(failure(saved))
        end = time.perf_counter()
        saved.stall = saved.seconds = end - start

    @abstractmethod
    def _save(self, saved: Saved) -> None:
        """Returns when all is on the disk."""


class TensorSaver(BlockingSaver):
    """Holds the run and writes named tensors: for engines that backpropagate, whose changes are in no journal."""

    def __init__(self, engine: TunedEngine, target: Target) -> None:
        super().__init__(target)
        self.engine = engine

    def _save(self, saved: Saved) -> None:
        everything = itertools.chain(self.engine.named_tensors(), self.engine.state_tensors())

        def counted() -> Iterator[tuple[str, Tensor]]:
            for name, tensor in everything:
                saved.nbytes += tensor.nbytes
                yield name, tensor

        start = time.perf_counter()
        snapshot.write_tensors(self.target.folder, saved.step, counted(), self.target.state(saved.step))
        self.events.append(("save", "save", 0, start, time.perf_counter()))


class SyncSaver(BlockingSaver):
    """Holds the run and writes the weights at rest: what a checkpoint costs without any of the below."""

    def __init__(self, engine: LocalEngine, target: Target) -> None:
        super().__init__(target)
        self.engine = engine
        self._buffer = allocate(PIECE)
        self.held_bytes = PIECE

    def _save(self, saved: Saved) -> None:
        """The first rank finishes when it knows that the others are done, so it never waits for one that is gone."""
        cut = Cut(saved, self.target)
        cut.positions = {unit.name: self.engine.position(unit) for unit in self.engine.units}
        leads, failure = self.target.share[0] == 0, None
        try:
            try:
                self._add_all(cut)
                if not leads:
                    cut.finish()
            except OSError as error:
                failure = error
            if any(self.target.anywhere(failure is not None)):
                raise failure or OSError(PEER_FAILED)
            if leads:
                cut.finish()
        except BaseException:
            cut.abandon()
            raise

    def _add_all(self, cut: Cut) -> None:
        for unit in self.engine.units:
            start = time.perf_counter()
            first, last = part(self.engine, unit, self.target) if unit.changed else (0, 0)
            for offset in range(first, last, PIECE):
                out = self._buffer[: min(PIECE, last - offset)]
                self.engine.read(unit, out, offset)
                cut.add(unit, offset, out)
            if last > first:
                self.events.append(("save", "save", block_of(self.engine, unit), start, time.perf_counter()))
