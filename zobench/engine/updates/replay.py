"""Going over a run again, without its forwards: all its passes are repeated, because in-place noise rounds the weights
at every point, and pending updates are rounded together when they are written.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from zobench.data.batch import IGNORED, Batch
from zobench.engine.base import Entry, PassRecord
from zobench.engine.directions.arithmetic import Arithmetic
from zobench.engine.directions.noise import Noise
from zobench.engine.interface import Start
from zobench.engine.weights.blocks import Unit

RETRACED = 256
"""Recorded passes that are repeated each time a unit is on the device: torch's noise keeps a state for each of their
seeds and every unit."""


class RetracedEngine(Protocol):
    """An engine whose passes can be repeated (:class:`zobench.engine.Engine`)."""

    journal: list[Entry]
    passes: int
    units: list[Unit]
    blocks: Sequence[Unit]
    residents: Sequence[Unit]
    arithmetic: Arithmetic
    noise: Noise

    @property
    def at_once(self) -> bool: ...
    def run(self, unit: Unit, turn: Callable[[], None]) -> None: ...
    def evaluate(self, batch: Batch) -> float: ...
    def drain(self) -> None: ...


def retrace(engine: RetracedEngine, records: Sequence[PassRecord], start: Start | None) -> None:
    """Each unit of the engine goes on from its own position. Afterwards journal and weights are, bit for bit, those of
    the run. A pass without a forward costs only its noise, and no unit depends on another, so each is uploaded once for
    many passes."""
    has_parts = any(point.part is not None for record in records for point in record.points)
    if has_parts and any(unit.part < 0 for unit in engine.units):  # a unit's part is known from the first pass on
        tokens = torch.zeros(1, 2, dtype=torch.long)
        engine.evaluate(Batch(tokens, torch.full_like(tokens, IGNORED)))
    journal = [entry for record in records for entry in record.entries]
    entries_before = list(itertools.accumulate((len(record.entries) for record in records), initial=0))
    first_streamed = min((unit.index for unit in engine.blocks), default=0)
    residents = sorted(engine.residents, key=lambda unit: unit.index)
    before = [unit for unit in residents if unit.index < first_streamed]  # in stream order, for noise drawn once
    for first in range(0, len(records), RETRACED):
        last = min(first + RETRACED, len(records))
        for unit in [*before, *engine.blocks, *residents[len(before) :]]:
            passed = start.position(unit.name).passes if start is not None else 0
            begin = max(first, passed) if unit.trained else last
            engine.journal[:] = journal[: entries_before[begin]]
            engine.run(unit, functools.partial(_turn, engine, unit, records[begin:last]))
        engine.noise.keep(())
    engine.drain()
    engine.journal[:], engine.passes = journal, len(records)


def _turn(engine: RetracedEngine, unit: Unit, records: Sequence[PassRecord]) -> None:
    """Takes a unit that is on the device through these passes; the journal grows as it did. A unit that was read before
    a step's updates were committed gets them first, as the run gave them to it when they were."""
    if engine.at_once and unit.trained and unit.applied < len(engine.journal):
        engine.arithmetic.settle(unit)
    for record in records:
        engine.arithmetic.retrace(unit, record.points)
        engine.journal.extend(record.entries)
        if engine.at_once and record.entries:
            engine.arithmetic.settle(unit)
    if records and unit.streamed and not unit.is_tile:
        unit.release()
