"""The arithmetic of low-rank directions: W + c A F B is never made, but added to the products that W is used in.

Where ``x W^T`` is needed at several points, W is multiplied once by all of them. To each one's part is added what
``A (P + c F) B`` adds, as two thin products: P holds the updates that are pending in the subspace of A and B. So W at
rest changes only when its subspace does, and then once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from zobench.engine import shared_products
from zobench.engine.base import BASE, Entry, Point
from zobench.engine.basis import ALL
from zobench.engine.blocks import Field, Unit
from zobench.engine.deferred import Deferred
from zobench.engine.factors import LowRank
from zobench.engine.head import Head
from zobench.engine.logits import finished
from zobench.engine.loss import RunningLoss, Targets
from zobench.engine.shared_products import Held
from zobench.engine.turn import Turn
from zobench.engine.wire import Wire
from zobench.models.weights import Weights

CACHED = 2 << 20
"""Bytes of float32 logits that stay in a processor's cache while their maximum and sum are taken."""
Place = tuple[Unit, int]
"""A tensor: the number of a field of its unit."""


class Factored:
    """Directions of low rank, added to products. Pending entries stay beside the weights as :class:`Deferred` has them.

    ``points``: all of a pass: once one of them leaves a subspace, what is pending in it is written into W.
    """

    route: tuple[Point, ...] = ()
    points: tuple[Point, ...] = ()
    in_place = False

    def __init__(
        self, directions: LowRank, journal: Sequence[Entry], writeback_every: float, device: str,
        wire: Wire | None = None, master: Tensor | None = None, state: Weights | None = None,
    ) -> None:  # fmt: skip
        self._directions = directions
        self._deferred = Deferred(directions, journal, writeback_every, device, wire, master, state)
        self._turns: dict[int, Turn] = {}

    # --- turns --------------------------------------------------------------------------------------------------------

    def begin(self, unit: Unit) -> list[Tensor]:
        """Begins the unit's turn, if it has not begun: what is due is written into W. Returns W, one tensor for each of
        its fields, for :meth:`product` alone."""
        turn = self._turns.get(id(unit))
        if turn is None:
            turn = self._turns[id(unit)] = self._begun(unit, self.points)
        return turn.tensors

    def _begun(self, unit: Unit, points: Sequence[Point]) -> Turn:
        weights = self._deferred.decoded(unit)
        if due := self._deferred.due(unit, points):
            self._deferred.keep(unit, weights, due)
        return Turn(unit, unit.views(weights), *self._deferred.terms(unit), self._deferred)

    def at(self, unit: Unit, point: Point) -> list[Tensor]:
        """See :class:`Arithmetic`: what the point changes is made anew, W itself as it will be written."""
        self.begin(unit)
        turn = self._turns[id(unit)]
        if point == BASE and turn.pending:
            return unit.views(self._deferred.caught_up(unit, self._deferred.weights(unit)))
        return [turn.made(number, point) for number in range(len(unit.fields))]

    def rest(self, unit: Unit) -> None:
        """See :class:`Arithmetic`."""
        self._turns.pop(id(unit), None)
        self._deferred.forget(unit, self.points)
        if not unit.streamed and not unit.is_tile and unit.buffer is not None:
            unit.bind(unit.views(unit.buffer))

    def close(self) -> None:
        """See :class:`Arithmetic`."""
        self._turns.clear()
        self._deferred.close()

    def retrace(self, unit: Unit, points: Sequence[Point]) -> None:
        """See :class:`Arithmetic`: no point touches the weights, but leaving a subspace does."""
        if self._deferred.due(unit, points):
            self._begun(unit, points)

    def settle(self, unit: Unit) -> None:
        """See :class:`Arithmetic`."""
        self._deferred.settle(unit)

    def whole(self, unit: Unit) -> list[Tensor]:
        """See :class:`Arithmetic`."""
        return self.at(unit, BASE)

    def caught_up(self, unit: Unit, weights: Tensor) -> Tensor:
        """See :class:`Arithmetic`."""
        own = self._deferred.caught_up(unit, weights)
        assert isinstance(own, Tensor)
        return own

    def state(self, unit: Unit) -> tuple[Sequence[Field], Tensor | None]:
        """See :class:`Arithmetic`."""
        return self._deferred.state(unit)

    def direction(self, seed: int, unit: Unit, out: Sequence[Tensor]) -> None:
        """See :class:`Arithmetic`: of a direction that shares its subspace with no other."""
        for item, own in zip(unit.trainable, out, strict=True):
            self._directions.direction(item, seed, seed, own)

    # --- what W is used in --------------------------------------------------------------------------------------------

    def product(
        self, weight: Place, bias: Place | None, x: Tensor, points: Sequence[Point], *, transposed: bool = False,
        rows: slice = ALL,
    ) -> Tensor:  # fmt: skip
        """See :func:`zobench.engine.shared_products.product`."""
        shift = None if bias is None else self._held(bias)
        return shared_products.product(self._held(weight), shift, x, points, transposed=transposed, rows=rows)

    def made(self, place: Place, point: Point) -> Tensor:
        """A tensor at a point; W itself where that is the same."""
        turn, number = self._held(place)
        return turn.made(number, point)

    def embed(
        self, unit: Unit, ids: Tensor, points: Sequence[Point], lookup: Callable[[Tensor], Tensor], tied: bool
    ) -> list[Tensor]:
        """See :class:`Arithmetic`: the rows of W are gathered once."""
        (table,) = self.begin(unit)
        turn, own = self._turns[id(unit)], table[ids]
        moved = (turn.rows(0, point, own, ids) if turn.is_moved(0, (point,)) else own for point in points)
        outputs = [lookup(rows) for rows in moved]
        self.rest(unit)
        return outputs

    def judge(
        self, head: Head, states: Sequence[Tensor], targets: Tensor, points: Sequence[Point]
    ) -> list[RunningLoss]:
        """See :class:`Arithmetic`: a few vocabulary rows at a time, all points at once."""
        for unit in head.units:
            self.begin(unit)
        places = {key: (unit, unit.fields.index(item)) for key, (unit, item) in head.tensors().items()}
        shared = Targets(targets)
        together, losses = torch.cat(list(states)), [RunningLoss(shared) for _ in states]
        turn, number = self._held(places["weight"])
        room = min(head.logits_bytes, CACHED) if together.is_cpu else head.logits_bytes
        vocabulary, step = len(turn.tensors[number]), max(1, room // (4 * len(together)))
        for first in range(0, vocabulary, step):
            rows = slice(first, min(first + step, vocabulary))
            product = self.product(places["weight"], places.get("bias"), together, points, rows=rows)
            logits = finished(product, head.notes)
            for running, own in zip(losses, logits.float().chunk(len(states)), strict=True):
                running.add(own, first)
        for unit in head.units:
            self.rest(unit)
        return losses

    def _held(self, place: Place) -> Held:
        return self._turns[id(place[0])], place[1]
