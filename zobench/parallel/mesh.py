"""The mesh: which shard of the data and which sign of the perturbation a rank works on (DistZO2, section 6.2)."""

from __future__ import annotations

from dataclasses import dataclass

from zobench.runspec import RunSpec
from zobench.runspec.words import SIGNED

DATA, PERTURBATION = "data", "perturbation"
"""Names of the mesh's dimensions."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Mesh:
    """A rank's place among ``shards`` x ``signs`` ranks. ``order``: the dimensions, the outer one first.

    Ranks that differ in the inner dimension follow each other, so with PertP inside DDP ("2d") the two of a pair are
    neighbours on one machine; "2d-outer" is the other order.
    """

    rank: int
    shards: int
    signs: int
    order: tuple[str, str] = (DATA, PERTURBATION)

    @classmethod
    def of(cls, spec: RunSpec, rank: int) -> Mesh:
        """The place of ``rank`` among the ``spec.gpus`` ranks of a run."""
        shards, signs = divided(spec)
        order = (PERTURBATION, DATA) if spec.parallel == "2d-outer" else (DATA, PERTURBATION)
        return cls(rank=rank, shards=shards, signs=signs, order=order)

    @property
    def shape(self) -> tuple[int, int]:
        """Ranks along each dimension of ``order``."""
        return (self.shards, self.signs) if self.order[0] == DATA else (self.signs, self.shards)

    @property
    def shard(self) -> int:
        """The shard of each batch that is this rank's."""
        return self.rank // self.signs if self.order[0] == DATA else self.rank % self.shards

    @property
    def sign(self) -> int:
        """Which point of each pair is this rank's: 0 is +eps, 1 is -eps."""
        return self.rank % self.signs if self.order[0] == DATA else self.rank // self.shards

    def at(self, shard: int, sign: int) -> int:
        """The rank that works on ``shard`` and ``sign``."""
        return shard * self.signs + sign if self.order[0] == DATA else sign * self.shards + shard


def divided(spec: RunSpec) -> tuple[int, int]:
    """Into how many shards the batches of ``spec`` are cut, and how many signs of a pair of points are shared out."""
    signs = 2 if spec.parallel in SIGNED else 1
    return spec.gpus // signs, signs


def is_out_of_place(spec: RunSpec) -> bool:
    """Whether a rank goes straight to its own sign: then W + c z is made beside W (DistZO2, section 4.2)."""
    return spec.parallel in SIGNED and not spec.exact
