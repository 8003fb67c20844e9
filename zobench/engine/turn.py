"""A unit on the device whose tensors differ from point to point by factors of low rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from zobench.engine.base import Point
from zobench.engine.basis import ALL, Basis
from zobench.engine.blocks import Unit
from zobench.engine.deferred import Deferred
from zobench.engine.factors import is_matrix, subspace_of
from zobench.engine.pending import Term
from zobench.engine.perturb import is_decayed
from zobench.engine.thin import joined


@dataclass(eq=False, slots=True)
class Turn:
    """A unit while it is on the device. ``tensors``: W, one for each of its fields; ``pending`` terms and what weight
    decay leaves of W, ``kept``; ``deferred``: where they come from."""

    unit: Unit
    tensors: list[Tensor]
    pending: list[Term]
    kept: float
    deferred: Deferred
    _made: dict[Point, list[Term]] = field(default_factory=dict)

    def terms(self, number: int, point: Point) -> list[Term]:
        """What the tensor of field ``number`` is at a point, beside W."""
        if not self.unit.fields[number].trainable:
            return []
        point = self.unit.own(point)
        if point.seed is None or not point.scale:
            return self.pending
        if point not in self._made:
            self._made[point] = self._at(point)
        return self._made[point]

    def _at(self, point: Point) -> list[Term]:
        """The pending terms and the point's own, as one where they share a subspace."""
        factors, seed, subspace = self.deferred.factors(self.unit), point.seed, subspace_of(point)
        assert seed is not None
        rest, start = self.pending, self.deferred.nothing(self.unit, self.tensors[0].device)
        if rest and rest[-1][0] == subspace:
            rest, start = rest[:-1], rest[-1][1]
        opposite = Point(seed, -point.scale, point.part, point.subspace)
        if opposite in self._made:
            return [*rest, (subspace, factors.flipped(start, self._made[opposite][-1][1]))]
        return [*rest, (subspace, factors.moved(start, seed, point.scale))]

    def is_moved(self, number: int, points: Sequence[Point]) -> bool:
        """Whether a tensor is another than W at one of the points."""
        return any(self.terms(number, point) for point in points)

    def kept_of(self, number: int) -> float:
        """What pending weight decay leaves of a tensor."""
        item = self.unit.fields[number]
        return self.kept if item.trainable and is_decayed(item.name) else 1.0

    def factor(self, number: int, term: Term) -> Tensor:
        """F of a matrix, or what is added to any other tensor."""
        return self.deferred.factor(self.unit, self.unit.fields[number], term)

    def basis(self, number: int, term: Term) -> Basis:
        """A and B of a matrix."""
        return self.deferred.basis(self.unit.fields[number], term[0], self.tensors[number].device)

    def outer(self, number: int, point: Point, rows: Tensor | slice = ALL) -> Tensor:
        """L (rows, k) of the change L R of a matrix at a point, which differs from W there."""
        terms = self.terms(number, point)
        return joined([self.basis(number, term).outer(self.factor(number, term), rows) for term in terms], 1)

    def inner(self, number: int, point: Point) -> Tensor:
        """R (k, columns) of it."""
        terms = self.terms(number, point)
        return joined([self.basis(number, term).inner(self.factor(number, term)) for term in terms], 0)

    def made(self, number: int, point: Point) -> Tensor:
        """A tensor at a point; W itself where that is the same."""
        own = self.tensors[number]
        if not self.is_moved(number, (point,)):
            return own
        if not is_matrix(self.unit.fields[number]):
            return self.vector(number, point).to(own.dtype)
        return self.rows(number, point, own, ALL)

    def vector(self, number: int, point: Point) -> Tensor:
        """A tensor without low rank at a point, float32."""
        own = self.tensors[number].float()
        if terms := self.terms(number, point):
            kept = self.kept_of(number)
            own = own if kept == 1.0 else own * kept
            for term in terms:
                own = own + self.factor(number, term)
        return own

    def rows(self, number: int, point: Point, own: Tensor, rows: Tensor | slice) -> Tensor:
        """A matrix's rows, which are ``own`` in W, at a point; computed in float32."""
        moved = own.float() * self.kept_of(number)
        for term in self.terms(number, point):
            basis, factor = self.basis(number, term), self.factor(number, term)
            moved.addmm_(basis.outer(factor, rows), basis.inner(factor))
        return moved.to(own.dtype)
