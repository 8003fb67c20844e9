"""Resuming an engine: the weights that a run came to, computed again from its base or a snapshot and its journal.

Weights are a base plus a journal (docs/design/METHODS.md, "Weights are a base and a journal"). To
equal them bit for bit, all passes are repeated too: in-place noise rounds the weights at every point, and pending
updates are rounded together when they are written. A pass without a forward costs only its noise, and no unit depends
on another, so each is uploaded once for many passes.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from zobench.data.batch import IGNORED, Batch
from zobench.engine.base import Entry, PassRecord
from zobench.engine.directions.arithmetic import Arithmetic
from zobench.engine.directions.noise import Noise
from zobench.engine.interface import Start
from zobench.engine.weights.blocks import Unit

TOGETHER = 256
"""Passes that a unit is taken through while it is on the device: torch's noise keeps a state for each of their seeds
and every unit."""


class Retraced(Protocol):
    """An engine whose units can be taken through a run's passes again. ``blocks`` are streamed, ``residents`` are not.

    ``at_once``: whether updates reach the weights when they are committed, and not at the next pass.
    """

    journal: list[Entry]
    passes: int

    @property
    def units(self) -> Sequence[Unit]: ...
    @property
    def blocks(self) -> Sequence[Unit]: ...
    @property
    def residents(self) -> Sequence[Unit]: ...
    @property
    def arithmetic(self) -> Arithmetic: ...
    @property
    def noise(self) -> Noise: ...
    @property
    def at_once(self) -> bool: ...
    def run(self, unit: Unit, turn: Callable[[], None]) -> None: ...
    def evaluate(self, batch: Batch) -> float: ...
    def drain(self) -> None: ...


def resume(start: Start, unit: Unit, buffer: Tensor) -> None:
    """Puts what ``start`` knows of a unit over its base in ``buffer``."""
    if start.fill(unit.name, buffer):
        unit.changed = True
    set_position(start, unit)


def set_position(start: Start, unit: Unit) -> None:
    """Lets a unit know how far the weights have come that it begins with."""
    position = start.position(unit.name)
    unit.applied, unit.part = position.applied, max(unit.part, position.part)


@torch.inference_mode()
def retrace(engine: Retraced, records: Sequence[PassRecord], start: Start | None = None) -> None:
    """See :meth:`zobench.engine.Engine.retrace`."""
    has_parts = any(point.part is not None for record in records for point in record.points)
    if has_parts and any(unit.part < 0 for unit in engine.units):  # a unit's part is known from the first pass on
        tokens = torch.zeros(1, 2, dtype=torch.long)
        engine.evaluate(Batch(tokens, torch.full_like(tokens, IGNORED)))
    journal = [entry for record in records for entry in record.entries]
    entries_before = list(itertools.accumulate((len(record.entries) for record in records), initial=0))
    for first in range(0, len(records), TOGETHER):
        window = range(first, min(first + TOGETHER, len(records)))
        for unit in _in_order(engine):
            passed = start.position(unit.name).passes if start is not None else 0
            rest = range(max(window.start, passed), window.stop) if unit.trained else range(0)
            engine.run(unit, functools.partial(_turn, engine, unit, records, rest, journal, entries_before))
        engine.noise.keep(())
    engine.drain()
    engine.journal[:], engine.passes = journal, len(records)


def _turn(
    engine: Retraced, unit: Unit, records: Sequence[PassRecord], numbers: range, journal: Sequence[Entry],
    entries_before: Sequence[int],
) -> None:  # fmt: skip
    """Takes a unit that is on the device through these passes; the journal grows as it did."""
    if not numbers:
        return
    engine.journal[:] = journal[: entries_before[numbers.start]]
    for number in numbers:
        engine.arithmetic.retrace(unit, records[number].points)
        engine.journal.extend(records[number].entries)
        if engine.at_once and records[number].entries:
            engine.arithmetic.settle(unit)
    if unit.streamed and not unit.is_tile:
        unit.release()


def _in_order(engine: Retraced) -> list[Unit]:
    """Units in stream order, so that torch's noise is drawn once, but the streamed ones as the pipeline has them."""
    first = min((unit.index for unit in engine.blocks), default=0)
    residents = sorted(engine.residents, key=lambda unit: unit.index)
    before = [unit for unit in residents if unit.index < first]
    return [*before, *engine.blocks, *(unit for unit in residents if unit.index >= first)]
