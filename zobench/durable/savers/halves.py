"""The paper's scheme: a half of the model is copied and saved while the other half is computed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zobench.durable.savers.background import BackgroundSaver, Copy, wait
from zobench.durable.savers.base import Target, part
from zobench.engine.base import Position
from zobench.engine.weights.blocks import Unit

if TYPE_CHECKING:
    from zobench.engine.interface import LocalEngine


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
        copy = self._due.get(id(unit))
        if copy is not None:
            wait([copy] if self._is_end(unit) else self._sent)

    def _first(self, passes: int) -> None:
        """Stage 1, in the last of so many passes."""
        self._stage, self._passes = 2, passes
        self._half_of(True)

    def _second(self) -> None:
        """Stages 2 and 3."""
        wait(self._sent)
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
