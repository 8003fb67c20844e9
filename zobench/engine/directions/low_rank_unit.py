"""A unit on the device whose tensors differ from point to point by factors of low rank, and what these add to a product
with W."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from zobench.engine.base import Point
from zobench.engine.directions.factor_rules import ALL, Basis, add_narrow, joined, uncast
from zobench.engine.directions.factors import is_matrix, subspace_of
from zobench.engine.directions.perturb import is_decayed
from zobench.engine.updates.pending import PendingUpdates, Term
from zobench.engine.weights.blocks import Unit


@dataclass(eq=False, slots=True)
class LowRankUnit:
    """A unit while it is on the device. ``tensors``: W, one for each of its fields; ``pending`` terms and what weight
    decay leaves of W, ``kept``; ``updates``: where they come from. ``number`` below is that of a field."""

    unit: Unit
    tensors: list[Tensor]
    pending: list[Term]
    kept: float
    updates: PendingUpdates
    _at_points: dict[Point, list[Term]] = field(default_factory=dict)

    def terms(self, number: int, point: Point) -> list[Term]:
        """Returns the terms that are added to W at a point."""
        if not self.unit.fields[number].trainable:
            return []
        point = self.unit.target(point)
        if point.seed is None or not point.scale:
            return self.pending
        if point not in self._at_points:
            self._at_points[point] = self._terms_at(point)
        return self._at_points[point]

    def _terms_at(self, point: Point) -> list[Term]:
        """The pending terms and the point's own, as one where they share a subspace."""
        factors, seed, subspace = self.updates.factors(self.unit), point.seed, subspace_of(point)
        assert seed is not None
        others, start = self.pending, self.updates.zeros(self.unit, self.tensors[0].device)
        if others and others[-1][0] == subspace:
            others, start = others[:-1], others[-1][1]
        opposite = Point(seed, -point.scale, point.part, point.subspace)
        if opposite in self._at_points:
            return [*others, (subspace, factors.flipped(start, self._at_points[opposite][-1][1]))]
        return [*others, (subspace, factors.moved(start, seed, point.scale))]

    def is_moved(self, number: int, points: Sequence[Point]) -> bool:
        """Whether the tensor is another than W at one of the points."""
        return any(self.terms(number, point) for point in points)

    def kept_of(self, number: int) -> float:
        """Returns the share of the tensor that pending weight decay leaves."""
        item = self.unit.fields[number]
        return self.kept if item.trainable and is_decayed(item.name) else 1.0

    def factor(self, number: int, term: Term) -> Tensor:
        """F of a matrix, or what is added to any other tensor."""
        return self.updates.factors(self.unit).of(self.unit.fields[number], term[1])

    def basis(self, number: int, term: Term) -> Basis:
        """A and B of a matrix."""
        return self.updates.basis(self.unit.fields[number], term[0], self.tensors[number].device)

    def outer(self, number: int, point: Point, rows: Tensor | slice = ALL) -> Tensor:
        """L (rows, k) of the change L R of a matrix at a point, which differs from W there."""
        terms = self.terms(number, point)
        return joined([self.basis(number, term).outer(self.factor(number, term), rows) for term in terms], 1)

    def inner(self, number: int, point: Point) -> Tensor:
        """R (k, columns) of the change L R of a matrix."""
        terms = self.terms(number, point)
        return joined([self.basis(number, term).inner(self.factor(number, term)) for term in terms], 0)

    def made(self, number: int, point: Point) -> Tensor:
        """The tensor at a point; W itself where that is the same."""
        weights = self.tensors[number]
        if not self.is_moved(number, (point,)):
            return weights
        if not is_matrix(self.unit.fields[number]):
            return self.vector(number, point).to(weights.dtype)
        return self.rows(number, point, weights, ALL)

    def vector(self, number: int, point: Point) -> Tensor:
        """A tensor without low rank at a point, float32."""
        vector = self.tensors[number].float()
        if terms := self.terms(number, point):
            kept = self.kept_of(number)
            vector = vector if kept == 1.0 else vector * kept
            for term in terms:
                vector = vector + self.factor(number, term)
        return vector

    def rows(self, number: int, point: Point, weights: Tensor, rows: Tensor | slice) -> Tensor:
        """A matrix's ``rows``, which are ``weights`` in W, at a point; computed in float32."""
        moved = weights.float() * self.kept_of(number)
        with uncast(weights.device):
            for term in self.terms(number, point):
                basis, factor = self.basis(number, term), self.factor(number, term)
                moved.addmm_(basis.outer(factor, rows), basis.inner(factor))
        return moved.to(weights.dtype)


Located = tuple[LowRankUnit, int]
"""A tensor on the device: its unit and the number of its field."""


def correct(
    weight: Located, bias: Located | None, x: Tensor, y: Tensor, points: Sequence[Point], transposed: bool, rows: slice
) -> None:
    """Makes ``x W^T`` in ``y`` what it is at points of the same subspaces, where W is W + L R: one narrow product of
    all their rows with R, if that is the same at all of them, then each point's own with its L."""
    (unit, number), x, count = weight, x.to(y.dtype), len(points)
    terms, kept, shared = unit.terms(number, points[0]), unit.kept_of(number), None
    if terms and not transposed and all(unit.basis(number, term).right is not None for term in terms):
        shared = (x @ unit.inner(number, points[0]).to(y.dtype).T).chunk(count)
    for index, (point, inputs, outputs) in enumerate(zip(points, x.chunk(count), y.chunk(count), strict=True)):
        shift = None if bias is None else bias[0].vector(bias[1], point)[rows].to(y.dtype)
        if not terms:
            add_narrow(outputs, None, None, shift)
        elif transposed:
            inner = unit.inner(number, point).to(y.dtype)
            add_narrow(outputs, inputs @ unit.outer(number, point).to(y.dtype), inner.T, shift, kept)
        else:
            narrow = inputs @ unit.inner(number, point).to(y.dtype).T if shared is None else shared[index]
            add_narrow(outputs, narrow, unit.outer(number, point, rows).to(y.dtype), shift, kept)
