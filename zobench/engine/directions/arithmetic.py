"""The interface between a pass over the model and what computes the weights W + c z of each unit.

There are three kinds of implementations: :class:`~zobench.engine.directions.in_place.InPlace` changes the weights
themselves, as MeZO does; :class:`~zobench.engine.directions.pristine.Pristine` writes W + c z elsewhere;
:class:`~zobench.engine.directions.factored.Factored` adds c z to the products that W is used in. A pass over the model
asks all that differs between them here, and of the last its products too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from torch import Tensor

from zobench.engine.base import BASE, Point
from zobench.engine.passes.head import Head, Judged
from zobench.engine.weights.blocks import Field, Unit


class Arithmetic(Protocol):
    """Computes the weights of a unit on the device at any point. A unit's turn begins with the first call of ``at`` and
    ends with ``finish``.

    ``points``: those of the pass that is under way, else none. ``route``: all of its points, where this device
    evaluates the loss at some of them only.
    """

    points: tuple[Point, ...] = ()
    route: tuple[Point, ...] = ()

    @property
    def in_place(self) -> bool:
        """Whether the weights at rest are themselves perturbed; then they are read only with every entry applied."""

    def at(self, unit: Unit, point: Point) -> list[Tensor]:
        """The unit's tensors at ``point`` with every committed entry applied, one for each of its fields."""

    def finish(self, unit: Unit) -> None:
        """Ends the unit's turn: where ``unit.dirty`` is true, ``unit.buffer`` must be written back to its tier."""

    def close(self) -> None:
        """Lets go of the units' memory."""

    def retrace(self, unit: Unit, points: Sequence[Point]) -> None:
        """Changes the weights at rest as a pass through ``points`` does, rounding included, without a forward."""

    def settle(self, unit: Unit) -> None:
        """Applies every committed entry to the weights at rest, in a turn of its own."""

    def whole(self, unit: Unit) -> list[Tensor]:
        """The unit's tensors at W itself, as from :meth:`at`, also of a table that is larger than the scratch."""
        return self.at(unit, BASE)

    def caught_up(self, unit: Unit, weights: Tensor) -> Tensor:
        """``weights`` of the unit at rest, in the model's dtype, with every entry applied: that tensor, or a copy."""

    def state(self, unit: Unit) -> tuple[Sequence[Field], Tensor | None]:
        """State of directions that the arithmetic itself keeps, every committed entry applied: fields of a buffer on
        the device; () and None, as here, where there is none, or where it rests beside the weights."""
        return (), None

    def direction(self, seed: int, unit: Unit, out: Sequence[Tensor]) -> None:
        """Writes z(seed) of the unit's trainable tensors into ``out``: the same numbers that points and updates use."""

    def embed(
        self, unit: Unit, ids: Tensor, points: Sequence[Point], lookup: Callable[[Tensor], Tensor], tied: bool
    ) -> list[Tensor]:
        """The word embedding's output for token ``ids`` (n,) at each point: ``lookup`` of their rows (n, width) of the
        table at that point. ``tied``: the head uses the same table later in the pass."""

    def judge(self, head: Head, states: Sequence[Tensor], targets: Tensor, points: Sequence[Point]) -> Sequence[Judged]:
        """The head's log-probabilities of ``targets`` (n,), as the loss needs them, from each point's ``states``
        (n, width). It is the last use of the head's units in a pass."""
