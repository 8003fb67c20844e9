"""Directions of low rank: z = U V^T in every matrix, and the small tensors that stand for it and for what is pending.

U of a matrix (rows, columns) is (rows, rank), V^T (rank, columns), both from the counter stream of the matrix: U is the
first rows * rank numbers of the direction's seed, V^T the numbers after these of the *subspace's* seed. So each can be
drawn alone, and directions of one subspace share V. Any other tensor keeps a full direction of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from zobench import kernels
from zobench.engine.base import Entry, Point
from zobench.engine.blocks import Field, Unit
from zobench.kernels import Flat, Segment, Span, Update
from zobench.kernels.base import PADDING

FLOAT = torch.float32.itemsize


@dataclass(frozen=True, slots=True)
class LowRank:
    """Directions whose matrices are U V^T of this ``rank`` (LOZO: Chen et al., 2024).

    An element of z then has the variance ``rank``, not 1. Raises ``ValueError`` if ``rank`` is below 1.
    """

    rank: int

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ValueError(f"`rank >= 1` must hold, but got rank={self.rank}; LOZO uses rank=2")

    def basis(self, item: Field, subspace: int, device: torch.device | str) -> Tensor:
        """V^T of a matrix, float32 (rank, columns): a thin product is faster with V's columns in one piece each."""
        whole = item.shape if item.whole is None else item.whole
        basis = torch.empty(self.rank, whole[1], dtype=torch.float32, device=device)
        kernels.normals(subspace, Span(item.tensor_id, whole[0] * self.rank), basis)
        return basis

    def direction(self, item: Field, seed: int, subspace: int, out: Tensor) -> None:
        """Writes z of the tensor, or of the rows of it that are here, into ``out``, of the tensor's shape."""
        if not is_matrix(item):
            z = torch.empty(item.shape, dtype=torch.float32, device=out.device)
            kernels.normals(seed, Span(item.tensor_id, item.start), z)
            out.copy_(z)
            return
        factor = torch.empty(item.shape[0], self.rank, dtype=torch.float32, device=out.device)
        kernels.normals(seed, Span(item.tensor_id, item.first * self.rank), factor)
        out.copy_(factor @ self.basis(item, subspace, out.device))


def is_matrix(item: Field) -> bool:
    """Whether a tensor's directions have low rank; experts in one tensor of three dimensions keep full ones."""
    return len(item.shape) == 2


def subspace_of(direction: Point | Entry) -> int:
    """The seed of V: the direction's own where it shares none with others."""
    assert direction.seed is not None
    return direction.seed if direction.subspace is None else direction.subspace


class Factors:
    """Where the factors of a unit's trainable tensors lie in a flat float32 buffer: U (rows, rank) of a matrix, z of
    any other tensor. To the kernels they are a small unit, which is moved and updated as weights are."""

    def __init__(self, unit: Unit, directions: LowRank) -> None:
        self._places: dict[int, tuple[int, torch.Size]] = {}
        segments, offset = [], 0
        for item, decayed in zip(unit.trainable, unit.decayed, strict=True):
            matrix = is_matrix(item)
            shape = torch.Size([item.shape[0], directions.rank]) if matrix else item.shape
            start = item.first * directions.rank if matrix else item.start
            segments.append(Segment(item.tensor_id, start, offset, shape.numel(), decayed))
            self._places[item.tensor_id] = offset, shape
            offset += -(-shape.numel() * FLOAT // PADDING) * PADDING // FLOAT
        self.flat, self.nbytes = Flat(torch.float32, segments), offset * FLOAT

    def empty(self, device: torch.device | str) -> Tensor:
        """Factors that are all zero."""
        return torch.zeros(self.nbytes, dtype=torch.uint8, device=device)

    def of(self, item: Field, buffer: Tensor) -> Tensor:
        """The factor of one of the unit's trainable tensors in a buffer."""
        offset, shape = self._places[item.tensor_id]
        return buffer.view(torch.float32)[offset : offset + shape.numel()].view(shape)

    def update(self, buffer: Tensor, entry: Entry) -> None:
        """``F -= lr * (g * z + weight_decay * F)``: what an update does to factors that are pending."""
        update = Update(entry.seed, entry.g, entry.lr, entry.weight_decay, entry.step)
        kernels.advance_flat(buffer, self.flat, (update,))

    def moved(self, buffer: Tensor, seed: int, scale: float) -> Tensor:
        """``F + scale * z``, in a buffer of its own."""
        made = torch.empty_like(buffer)
        kernels.advance_flat(buffer, self.flat, (), scratch=made, seed=seed, scale=scale)
        return made

    def flipped(self, buffer: Tensor, moved: Tensor) -> Tensor:
        """``F - scale * z`` from F and ``F + scale * z``, without another draw."""
        made = moved.clone()
        kernels.flip(self.flat.whole(buffer), self.flat.whole(made))
        return made

    def decay(self, buffer: Tensor, kept: float) -> Tensor:
        """The factors times what later weight decay leaves of them; the buffer itself where that is all."""
        if kept == 1.0:
            return buffer
        made = buffer.clone()
        for own in self.flat.segments:
            if own.decayed:
                made.view(torch.float32)[own.offset : own.offset + own.numel].mul_(kept)
        return made


Term = tuple[int, Tensor]
"""The seed of a subspace and factors in it: together a change of the weights, U V^T."""


@dataclass(eq=False, slots=True)
class Group:
    """Pending entries that become one change of the weights, rounded once: those of one ``subspace``, which share one
    term, or those of one step whose directions have each a subspace of their own (``subspace`` None).

    ``end``: the place in the journal after its last one. The change is ``W = kept * W + sum of U V^T`` over ``terms``,
    where ``kept`` is what weight decay leaves.
    """

    subspace: int | None
    step: int
    end: int
    terms: list[Term] = field(default_factory=list)
    kept: float = 1.0

    def takes(self, entry: Entry) -> bool:
        """Whether an entry that follows belongs to it."""
        return entry.subspace == self.subspace and (self.subspace is not None or entry.step == self.step)

    def add(self, factors: Factors, entry: Entry, end: int, device: torch.device | str) -> None:
        """Takes an entry, which ends at the place ``end`` of the journal."""
        shared = self.subspace is not None and bool(self.terms)
        if entry.weight_decay and not shared:
            kept = 1.0 - entry.lr * entry.weight_decay
            self.terms = [(seed, factors.decay(own, kept)) for seed, own in self.terms]
        if not shared:
            self.terms.append((subspace_of(entry), factors.empty(device)))
        factors.update(self.terms[-1][1], entry)
        self.kept *= 1.0 - entry.lr * entry.weight_decay
        self.step, self.end = entry.step, end


class Pending:
    """The entries of a journal that a unit's weights at rest lack, in groups; brought up to date as it grows."""

    def __init__(self, unit: Unit, factors: Factors) -> None:
        self._unit, self.factors = unit, factors
        self._seen, self._applied = 0, -1
        self.groups: list[Group] = []

    def follow(self, journal: Sequence[Entry], device: torch.device | str) -> list[Group]:
        """All groups after the unit's own place in the journal."""
        applied = self._unit.applied
        if self._applied != applied or self._seen > len(journal):
            self.groups, self._seen, self._applied = [], applied, applied
        for place in range(self._seen, len(journal)):
            entry = journal[place]
            if self._unit.moves(entry):
                if not self.groups or not self.groups[-1].takes(entry):
                    self.groups.append(Group(entry.subspace, entry.step, place))
                self.groups[-1].add(self.factors, entry, place + 1, device)
        self._seen = len(journal)
        return self.groups

    def drop(self, count: int) -> None:
        """The first groups are in the weights at rest now, and the unit knows."""
        del self.groups[:count]
        self._applied = self._unit.applied

    def terms(self) -> tuple[list[Term], float]:
        """All groups as terms of one change of the weights, and what all weight decay leaves of these."""
        kept, terms = 1.0, list[Term]()
        for group in reversed(self.groups):
            terms = [(seed, self.factors.decay(own, kept)) for seed, own in group.terms] + terms
            kept *= group.kept
        return terms, kept


def closed(groups: Sequence[Group], points: Sequence[Point]) -> int:
    """How many of the groups no later entry can join: all, unless the last has a subspace that several steps share and
    no point has left it."""
    if not groups or groups[-1].subspace is None:
        return len(groups)
    left = any(point.seed is not None and point.subspace != groups[-1].subspace for point in points)
    return len(groups) - (not left)


def runs(keys: Sequence[object]) -> Iterator[tuple[int, int]]:
    """The ranges [first, last) of equal neighbours."""
    first = 0
    for place in range(1, len(keys) + 1):
        if place == len(keys) or keys[place] != keys[first]:
            yield first, place
            first = place
