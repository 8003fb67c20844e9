"""Savers that hold the run until all is on the disk."""

from __future__ import annotations

import itertools
import time
from abc import abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING

from torch import Tensor

from zobench.durable import tensors
from zobench.durable.savers.base import PEER_FAILED, Cut, Saved, Saver, Target, block_of, failure, part
from zobench.engine.weights.tiers import allocate

if TYPE_CHECKING:
    from zobench.engine.interface import LocalEngine, TunedEngine

PIECE = 64 << 20
"""Bytes that a synchronous checkpoint reads at a time."""


class BlockingSaver(Saver):
    """A saver that holds the run until all is on the disk."""

    def begin(self, step: int) -> None:
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
            self.target.warn(failure(made))
        end = time.perf_counter()
        made.stall = made.seconds = end - start

    @abstractmethod
    def _save(self, made: Saved) -> None:
        """Returns when all is on the disk."""


class TensorSaver(BlockingSaver):
    """Holds the run and writes named tensors: for engines that backpropagate, whose changes are in no journal."""

    def __init__(self, engine: TunedEngine, target: Target) -> None:
        super().__init__(target)
        self.engine = engine

    def _save(self, made: Saved) -> None:
        everything = itertools.chain(self.engine.named_tensors(), self.engine.state_tensors())

        def counted() -> Iterator[tuple[str, Tensor]]:
            for name, tensor in everything:
                made.nbytes += tensor.nbytes
                yield name, tensor

        start = time.perf_counter()
        tensors.write(self.target.folder, made.step, counted(), self.target.state(made.step))
        self.events.append(("save", "save", 0, start, time.perf_counter()))


class SyncSaver(BlockingSaver):
    """Holds the run and writes the weights at rest: what a checkpoint costs without any of the below."""

    def __init__(self, engine: LocalEngine, target: Target) -> None:
        super().__init__(target)
        self.engine = engine
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
