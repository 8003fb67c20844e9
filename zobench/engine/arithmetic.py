"""How units of weights look at points: the seam between a pass over the model and what perturbs its weights.

Two arithmetics are here: :class:`~zobench.engine.in_place.InPlace` moves the weights themselves,
:class:`~zobench.engine.pristine.Pristine` never touches them. A pass asks them everything that differs between them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from torch import Tensor

from zobench.engine.base import Point
from zobench.engine.blocks import Unit
from zobench.engine.head import Head, Judged


class Arithmetic(Protocol):
    """How a unit on the device gets to a point and back. Its turn begins with the first ``at``, ends with ``rest``.

    ``route``: all points of a pass, where this device looks at some of them only.
    """

    route: tuple[Point, ...]

    @property
    def in_place(self) -> bool:
        """Whether weights at rest themselves are moved from point to point, so that they must have every entry applied
        before anybody reads them."""

    def at(self, unit: Unit, point: Point) -> list[Tensor]:
        """The unit's tensors at ``point`` with every committed entry applied, one for each of its fields."""

    def rest(self, unit: Unit) -> None:
        """Ends the unit's turn: where ``unit.dirty`` says so, ``unit.buffer`` is what its tier must get."""

    def retrace(self, unit: Unit, points: Sequence[Point]) -> None:
        """A turn that leaves the weights at rest as a pass through ``points`` does, without being at any of them."""

    def settle(self, unit: Unit) -> None:
        """Applies every committed entry to the weights at rest, in a turn of its own."""

    def whole(self, unit: Unit) -> list[Tensor]:
        """As :meth:`at` W itself, also for a table that is larger than what a turn has room for."""

    def caught_up(self, unit: Unit, weights: Tensor) -> Tensor:
        """``weights`` of the unit at rest, in the model's dtype, with every entry applied: themselves or a copy."""

    def direction(self, seed: int, unit: Unit, out: Sequence[Tensor]) -> None:
        """Writes z(seed) of the unit's trainable tensors, the very numbers that a point and an update use."""

    def embed(
        self, unit: Unit, ids: Tensor, points: Sequence[Point], lookup: Callable[[Tensor], Tensor], tied: bool
    ) -> list[Tensor]:
        """What a word embedding gives for ``ids`` (n,) at each point: ``lookup`` of their rows, (n, width), there.

        ``tied``: the head uses the table after it, in the same pass."""

    def judge(self, head: Head, states: Sequence[Tensor], targets: Tensor, points: Sequence[Point]) -> Sequence[Judged]:
        """What the head makes of ``targets`` (n,) at each point's ``states`` (n, width); the last use of its units."""
