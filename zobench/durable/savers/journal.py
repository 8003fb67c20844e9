"""Bases for a journal: the model is copied and saved a group of units at a time, each as it is at that moment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zobench.durable.savers.background import BackgroundSaver, Copy
from zobench.durable.savers.base import Target, part, part_size
from zobench.engine.weights.blocks import Unit

if TYPE_CHECKING:
    from zobench.engine.interface import LocalEngine

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
