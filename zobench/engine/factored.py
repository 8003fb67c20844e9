"""The arithmetic of low-rank directions: W + c U V^T is never made, but added to the products that W is used in.

Where ``x W^T`` is needed at several points, W is multiplied once by all of them, and ``(x V) (F + c U)^T`` is added to
each one's part: F holds the updates that are pending in the subspace of V. So W at rest changes only when its subspace
does, and then once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional

from zobench.engine.base import BASE, Entry, Point
from zobench.engine.blocks import Field, Unit
from zobench.engine.factors import Factors, Group, LowRank, Pending, Term, closed, is_matrix, runs, subspace_of
from zobench.engine.head import Head
from zobench.engine.logits import finished
from zobench.engine.loss import RunningLoss, Targets
from zobench.engine.perturb import is_decayed
from zobench.engine.thin import add_product, add_thin
from zobench.engine.wire import Wire

Place = tuple[Unit, int]
"""A tensor: the number of a field of its unit."""
ALL = slice(None)


@dataclass(eq=False, slots=True)
class Turn:
    """A unit on the device. ``tensors``: W, one for each of its fields; ``pending`` terms and what weight decay leaves
    of W, ``kept``; ``made``: the terms of each point that was asked for."""

    unit: Unit
    tensors: list[Tensor]
    pending: list[Term]
    kept: float
    made: dict[Point, list[Term]] = field(default_factory=dict)


class Factored:
    """Directions of low rank, added to products. Pending entries stay beside the weights as long as their subspace
    lasts, whatever ``writeback_every``, and after that until they span so many steps.

    ``points``: all of a pass: once one of them leaves a subspace, what is pending in it is written into W.
    """

    route: tuple[Point, ...] = ()
    points: tuple[Point, ...] = ()
    in_place = False

    def __init__(
        self, directions: LowRank, journal: Sequence[Entry], writeback_every: float, device: str,
        wire: Wire | None = None, master: Tensor | None = None,
    ) -> None:  # fmt: skip
        self._directions, self._journal, self._every = directions, journal, writeback_every
        self._device, self._wire, self._master = device, wire, master
        self._turns: dict[int, Turn] = {}
        self._known: dict[int, Pending] = {}
        self._bases: dict[int, dict[int, Tensor]] = {}
        self._zeros = torch.empty(0, dtype=torch.uint8)

    # --- turns --------------------------------------------------------------------------------------------------------

    def begin(self, unit: Unit) -> list[Tensor]:
        """Begins the unit's turn, if it has not begun: what is due is written into W. Returns W, one tensor for each of
        its fields, for :meth:`product` alone."""
        turn = self._turns.get(id(unit))
        if turn is None:
            turn = self._turns[id(unit)] = self._begun(unit, self.points)
        return turn.tensors

    def at(self, unit: Unit, point: Point) -> list[Tensor]:
        """See :class:`Arithmetic`: what the point changes is made anew, W itself as it will be written."""
        self.begin(unit)
        if point == BASE and self._turns[id(unit)].pending:
            return unit.views(self.caught_up(unit, self._weights(unit)))
        return [self.made((unit, number), point) for number in range(len(unit.fields))]

    def rest(self, unit: Unit) -> None:
        """See :class:`Arithmetic`."""
        self._turns.pop(id(unit), None)
        lasting = {point.subspace for point in self.points} | {group.subspace for group in self._groups(unit)}
        for item in unit.trainable:
            self._forget(unit, self._bases.get(item.tensor_id, {}).keys() - lasting)
        if not unit.streamed and not unit.is_tile and unit.buffer is not None:
            unit.bind(unit.views(unit.buffer))

    def close(self) -> None:
        """See :class:`Arithmetic`."""
        for known in (self._turns, self._known, self._bases):
            known.clear()

    def retrace(self, unit: Unit, points: Sequence[Point]) -> None:
        """See :class:`Arithmetic`: no point touches the weights, but leaving a subspace does."""
        if self._due(unit, points):
            self._begun(unit, points)

    def settle(self, unit: Unit) -> None:
        """See :class:`Arithmetic`."""
        if unit.trained and unit.applied < len(self._journal) and not self._is_read_only(unit):
            weights, groups = self._decoded(unit), self._groups(unit)
            self._keep(unit, weights, len(groups))
            unit.applied = len(self._journal)

    def whole(self, unit: Unit) -> list[Tensor]:
        """See :class:`Arithmetic`."""
        return self.at(unit, BASE)

    def caught_up(self, unit: Unit, weights: Tensor) -> Tensor:
        """See :class:`Arithmetic`: in a copy they stay pending for the unit itself."""
        groups = self._groups(unit)
        if not groups:
            return weights
        own = weights.clone() if weights is unit.buffer or weights is self._master else weights
        for group in groups:
            self._fold(unit, own, group)
        return own

    def direction(self, seed: int, unit: Unit, out: Sequence[Tensor]) -> None:
        """See :class:`Arithmetic`: of a direction that shares its subspace with no other."""
        for item, own in zip(unit.trainable, out, strict=True):
            self._directions.direction(item, seed, seed, own)

    # --- products -----------------------------------------------------------------------------------------------------

    def product(
        self, weight: Place, bias: Place | None, x: Tensor, points: Sequence[Point], *, transposed: bool = False,
        rows: slice = ALL,
    ) -> Tensor:  # fmt: skip
        """``x W^T + b`` of a linear layer, each of ``points`` on its part of ``x`` (points * n, ..., inputs).

        ``transposed``: W is (inputs, outputs), as GPT-2 has it. ``rows``: only these outputs.
        """
        own = self._tensor(weight) if transposed else self._tensor(weight)[rows]
        if not any(self._is_moved(place, point) for place in (weight, bias) if place for point in points):
            return functional.linear(
                x, own.T if transposed else own, None if bias is None else self._tensor(bias)[rows]
            )
        flat = x.reshape(-1, x.shape[-1])
        y = flat @ own if transposed else functional.linear(flat, own)
        size = len(flat) // len(points)
        for first, last in runs([tuple(seed for seed, _ in self._terms(weight, point)) for point in points]):
            inside = slice(first * size, last * size)
            self._correct(weight, bias, flat[inside], y[inside], points[first:last], transposed, rows)
        return y.view(*x.shape[:-1], y.shape[-1])

    def _correct(
        self, weight: Place, bias: Place | None, x: Tensor, y: Tensor, points: Sequence[Point], transposed: bool,
        rows: slice,
    ) -> None:  # fmt: skip
        """Makes ``x W^T`` in ``y`` what it is at points of the same subspaces: one thin product of all their rows with
        V, then each point's own with its U."""
        item, x, count = weight[0].fields[weight[1]], x.to(y.dtype), len(points)
        bases = [self._basis(item, seed, x.device) for seed, _ in self._terms(weight, points[0])]
        basis = torch.cat(bases).to(y.dtype) if bases else None
        shared = None if basis is None or transposed else (x @ basis.T).chunk(count)
        for number, (point, own, part) in enumerate(zip(points, x.chunk(count), y.chunk(count), strict=True)):
            left = None
            if basis is not None:
                factors = [self._factor(weight[0], item, term) for term in self._terms(weight, point)]
                left = torch.cat([one if transposed else one[rows] for one in factors], 1).to(y.dtype)
            shift = None if bias is None else self._vector(bias, point)[rows].to(y.dtype)
            if left is None or basis is None:
                add_thin(part, None, None, shift)
            elif shared is None:
                add_thin(part, own @ left, basis.T, shift, self._kept(weight))
            else:
                add_thin(part, shared[number], left, shift, self._kept(weight))

    def made(self, place: Place, point: Point) -> Tensor:
        """A tensor at a point; W itself where that is the same."""
        own = self._tensor(place)
        if not self._is_moved(place, point):
            return own
        if not is_matrix(place[0].fields[place[1]]):
            return self._vector(place, point).to(own.dtype)
        return self._moved(place, point, own, ALL)

    def _vector(self, place: Place, point: Point) -> Tensor:
        """A tensor without low rank at a point, float32."""
        item, own = place[0].fields[place[1]], self._tensor(place).float()
        if self._is_moved(place, point):
            own = own * self._kept(place)
            for term in self._terms(place, point):
                own = own + self._factor(place[0], item, term)
        return own

    def _moved(self, place: Place, point: Point, own: Tensor, rows: Tensor | slice) -> Tensor:
        """The rows ``own`` of a matrix at a point, computed in float32."""
        item, moved = place[0].fields[place[1]], own.float() * self._kept(place)
        for term in self._terms(place, point):
            basis = self._basis(item, term[0], own.device)
            moved.addmm_(self._factor(place[0], item, term)[rows], basis)
        return moved.to(own.dtype)

    # --- embedding and head -------------------------------------------------------------------------------------------

    def embed(
        self, unit: Unit, ids: Tensor, points: Sequence[Point], lookup: Callable[[Tensor], Tensor], tied: bool
    ) -> list[Tensor]:
        """See :class:`Arithmetic`: the rows of W are gathered once."""
        (table,) = self.begin(unit)
        place, own = (unit, 0), table[ids]
        moved = (
            self._moved(place, point, own, ids) if self._is_moved(place, point) else own for point in points
        )  # fmt: skip
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
        vocabulary, step = len(self._tensor(places["weight"])), max(1, head.logits_bytes // (4 * len(together)))
        for first in range(0, vocabulary, step):
            rows = slice(first, min(first + step, vocabulary))
            product = self.product(places["weight"], places.get("bias"), together, points, rows=rows)
            logits = finished(product, head.notes)
            for running, own in zip(losses, logits.float().chunk(len(states)), strict=True):
                running.add(own, first)
        for unit in head.units:
            self.rest(unit)
        return losses

    # --- what is pending ----------------------------------------------------------------------------------------------

    def _begun(self, unit: Unit, points: Sequence[Point]) -> Turn:
        weights = self._decoded(unit)
        if due := self._due(unit, points):
            self._keep(unit, weights, due)
        pending, kept = self._pending(unit).terms() if self._groups(unit) else ([], 1.0)
        return Turn(unit, unit.views(weights), pending, kept)

    def _decoded(self, unit: Unit) -> Tensor:
        """The unit's weights on the device, in the model's dtype."""
        weights = self._weights(unit)
        if weights is self._master:
            assert self._wire is not None
            assert unit.buffer is not None
            self._wire.decode(unit, unit.buffer, weights)
        return weights

    def _weights(self, unit: Unit) -> Tensor:
        """Where they are: in the unit's buffer, or unpacked."""
        assert unit.buffer is not None, f"{unit.name} is not on the device"
        if not unit.streamed or self._wire is None:
            return unit.buffer
        assert self._master is not None
        return self._master

    def _due(self, unit: Unit, points: Sequence[Point]) -> int:
        """How many groups are to be written into W now."""
        groups = self._groups(unit)
        count = 0 if self._is_read_only(unit) else closed(groups, points)
        if not count or groups[count - 1].step - self._journal[unit.applied].step + 1 < self._every:
            return 0
        return count

    def _is_read_only(self, unit: Unit) -> bool:
        """Whether its weights at rest are never written, so that every subspace stays beside them."""
        return unit.streamed and self._wire is not None and self._wire.read_only

    def _keep(self, unit: Unit, weights: Tensor, count: int) -> None:
        """Writes the first groups into ``weights``, each rounded by itself, and these into ``unit.buffer``."""
        pending = self._pending(unit)
        for group in pending.groups[:count]:
            self._fold(unit, weights, group)
            unit.applied = group.end
            unit.dirty = unit.changed = True
        for group in pending.groups[:count]:
            self._forget(unit, {seed for seed, _ in group.terms})
        pending.drop(count)
        if count and unit.streamed and self._wire is not None:
            assert unit.buffer is not None
            self._wire.encode(unit, weights, unit.buffer)

    def _forget(self, unit: Unit, seeds: Collection[int]) -> None:
        """Lets go of V in these subspaces."""
        for item in unit.trainable:
            for seed in seeds:
                self._bases.get(item.tensor_id, {}).pop(seed, None)

    def _fold(self, unit: Unit, weights: Tensor, group: Group) -> None:
        """``W = kept * W + U V^T`` in place, over all of the group's terms at once."""
        for item in unit.trainable:
            own, parts = item.view(weights), [self._factor(unit, item, term) for term in group.terms]
            kept = group.kept if is_decayed(item.name) else 1.0
            if is_matrix(item):
                bases = [self._basis(item, seed, own.device) for seed, _ in group.terms]
                add_product(own, torch.cat(parts, 1), torch.cat(bases), kept)
            else:
                total = own.float() * kept
                for part in parts:
                    total.add_(part)
                own.copy_(total)

    def _groups(self, unit: Unit) -> list[Group]:
        if not unit.trained:
            return []
        return self._pending(unit).follow(self._journal, self._device)

    def _pending(self, unit: Unit) -> Pending:
        if id(unit) not in self._known:
            self._known[id(unit)] = Pending(unit, Factors(unit, self._directions))
        return self._known[id(unit)]

    def _tensor(self, place: Place) -> Tensor:
        """W of a tensor whose unit is on the device."""
        return self._turns[id(place[0])].tensors[place[1]]

    def _kept(self, place: Place) -> float:
        """What pending weight decay leaves of a tensor."""
        item = place[0].fields[place[1]]
        return self._turns[id(place[0])].kept if item.trainable and is_decayed(item.name) else 1.0

    def _is_moved(self, place: Place, point: Point) -> bool:
        """Whether a tensor is another than W at a point."""
        return bool(self._terms(place, point))

    def _terms(self, place: Place, point: Point) -> list[Term]:
        """What a tensor at a point is beside W, in the factors of its unit."""
        unit, turn = place[0], self._turns[id(place[0])]
        if not unit.fields[place[1]].trainable:
            return []
        point = unit.own(point)
        if point.seed is None or not point.scale:
            return turn.pending
        if point not in turn.made:
            turn.made[point] = self._at(turn, point)
        return turn.made[point]

    def _at(self, turn: Turn, point: Point) -> list[Term]:
        """The pending terms and the point's own, as one where they share a subspace."""
        factors, seed, subspace = self._pending(turn.unit).factors, point.seed, subspace_of(point)
        assert seed is not None
        rest, start = turn.pending, self._nothing(factors, turn.tensors[0].device)
        if rest and rest[-1][0] == subspace:
            rest, start = rest[:-1], rest[-1][1]
        opposite = Point(seed, -point.scale, point.part, point.subspace)
        if opposite in turn.made:
            return [*rest, (subspace, factors.flipped(start, turn.made[opposite][-1][1]))]
        return [*rest, (subspace, factors.moved(start, seed, point.scale))]

    def _nothing(self, factors: Factors, device: torch.device) -> Tensor:
        """Factors that are all zero, which nobody writes."""
        if self._zeros.numel() < factors.nbytes or self._zeros.device != device:
            self._zeros = torch.zeros(factors.nbytes, dtype=torch.uint8, device=device)
        return self._zeros[: factors.nbytes]

    def _factor(self, unit: Unit, item: Field, term: Term) -> Tensor:
        """The factor of one of the unit's tensors."""
        return self._pending(unit).factors.of(item, term[1])

    def _basis(self, item: Field, seed: int, device: torch.device) -> Tensor:
        """V^T of a matrix, drawn once for as long as its subspace lasts."""
        bases = self._bases.setdefault(item.tensor_id, {})
        if seed not in bases:
            bases[seed] = self._directions.basis(item, seed, device)
        return bases[seed]
