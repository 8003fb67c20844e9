"""The engine of one rank among several: every method steps on it as on one device, and gets the same numbers.

A rank looks at its shard of the batch, at its sign of each pair of points (DistZO2, sections 4, 5 and 6.2). Losses are
combined into those of the whole batch: the mean over what each shard's loss counts, tokens or examples. So g is that
of one device on the concatenated batch, whatever the shards hold; with equal shards it is the paper's mean of their g.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch

from zobench.data.batch import Batch
from zobench.engine import BASE, Engine, Point
from zobench.engine.loss import counted
from zobench.parallel.world import World


class ParallelEngine:
    """``engine``, whose probes are shared out over ``world``; all else is the engine's own.

    Every rank makes the same calls with the same arguments, and commits the same entries.
    """

    def __init__(self, engine: Engine, world: World) -> None:
        self.engine, self.world = engine, world

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def probe(self, batch: Batch, points: Sequence[Point], looked: Sequence[int] | None = None) -> list[float]:
        """The mean loss of the whole ``batch`` at each point, the same on all ranks."""
        assert looked is None, "a rank's share is the mesh's to say"
        mesh = self.world.mesh
        mine, shards = self._own(batch)
        splits = mesh.signs == 2 and _are_pairs(points)
        own = range(mesh.sign, len(points), 2) if splits else range(len(points))
        losses = self.engine.probe(mine, points, own if splits else None)
        return self._combined(mine, shards, losses, 2 if splits else 1)

    def evaluate(self, batch: Batch) -> float:
        """The mean loss of the whole ``batch`` with every committed update applied."""
        return self.probe(batch, [BASE])[0]

    def tangent(self, batch: Batch, seed: int) -> tuple[float, float]:
        """The mean loss of the whole ``batch``, and its derivative along z(seed)."""
        mine, shards = self._own(batch)
        loss, slope = self._combined(mine, shards, self.engine.tangent(mine, seed), 1)
        return loss, slope

    def shared(self, values: Sequence[int]) -> list[int]:
        """Rank 0's values on all ranks."""
        return self.world.from_first(values)

    def _combined(self, mine: Batch, shards: int, found: Sequence[float], signs: int) -> list[float]:
        """Means of the whole batch, from what each rank has ``found`` of its shard: every ``signs``-th of the numbers,
        from its own sign on. What ranks have found alike is the first one's."""
        mesh, count = self.world.mesh, counted(self.engine.model, mine)
        table = self.world.gather(torch.tensor([count, *found], dtype=torch.float64)).tolist()
        rows = []
        for shard in range(shards):
            parts = [table[mesh.at(shard, sign)] for sign in range(signs)]
            numbers = itertools.chain.from_iterable(zip(*(part[1:] for part in parts), strict=True))
            rows.append([parts[0][0], *numbers])
        return _means(rows)

    def _own(self, batch: Batch) -> tuple[Batch, int]:
        """This rank's shard, and of how many; the whole of a batch that cannot be cut, as an evaluation's last."""
        shards = self.world.mesh.shards
        if shards == 1 or batch.examples % shards:
            return batch, 1
        return batch.shard(self.world.mesh.shard, shards), shards

    def __enter__(self) -> ParallelEngine:
        self.engine.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.engine.__exit__(*error)


def _are_pairs(points: Sequence[Point]) -> bool:
    """Whether the points are (+eps, -eps) of one direction after another."""
    pairs = zip(points[::2], points[1::2], strict=False)
    return len(points) % 2 == 0 and all(
        (a.seed, a.part, a.scale) == (b.seed, b.part, -b.scale) and a.scale for a, b in pairs
    )


def _means(rows: Sequence[Sequence[float]]) -> list[float]:
    """The mean of each column after the first, weighted by the first: products of float32 losses and counts are exact
    in float64, so the sums hardly round, and a single row is given back as it is."""
    total = sum(row[0] for row in rows)
    return [sum(row[0] * row[column] for row in rows) / total for column in range(1, len(rows[0]))]
