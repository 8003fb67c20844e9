"""What the methods along directions of low rank have in common: a subspace that stays for some steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from zobench.engine.base import Entry, PassRecord, Point
from zobench.methods.base import Direction, Taken
from zobench.methods.zo_sgd import ZOSGD

if TYPE_CHECKING:
    from zobench.engine.interface import SteppingEngine


class InSubspaces(ZOSGD):
    """ZO-SGD whose directions share a subspace for ``interval`` steps; then it is drawn anew.

    The subspace's seed is that of the first direction in it.
    """

    remembered: ClassVar[Mapping[str, str]] = MappingProxyType({"subspace": "_subspace"})

    def __init__(self, *, interval: int, **constants: Any) -> None:
        super().__init__(**constants)
        self.interval = interval
        self._subspace: int | None = None

    def retrace(self, engine: SteppingEngine, taken: Taken) -> list[PassRecord]:
        """See :class:`zobench.methods.Method`."""
        self._enter(taken.directions)
        return super().retrace(engine, taken)

    def _directions(self, engine: SteppingEngine) -> list[Direction]:
        directions = super()._directions(engine)
        self._enter(directions)
        return directions

    def _enter(self, directions: Sequence[Direction]) -> None:
        """Draws the subspace anew where an interval begins."""
        if self._begins:
            self._subspace = directions[0][0]

    @property
    def _begins(self) -> bool:
        return self._step % self.interval == 0

    def _points(self, directions: Sequence[Direction]) -> tuple[Point, ...]:
        points = super()._points(directions)
        return tuple(point if point.seed is None else replace(point, subspace=self._subspace) for point in points)

    def _entry(self, seed: int, g: float, weight_decay: float, part: int | None = None) -> Entry:
        return replace(super()._entry(seed, g, weight_decay, part), subspace=self._subspace)
