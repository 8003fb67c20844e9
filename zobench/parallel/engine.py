"""The engine of one rank among several: every method steps on it as on one device, and gets the same numbers.

A rank looks at its shard of the batch, at its sign of each pair of points (DistZO2, sections 4, 5 and 6.2). Losses are
combined into those of the whole batch: the mean over what each shard's loss counts, tokens or examples. So g is that
of one device on the concatenated batch, whatever the shards hold; with equal shards it is the paper's mean of their g.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from zobench.data.batch import Batch
from zobench.engine import BASE, Engine, Point
from zobench.engine.passes.loss import counted
from zobench.engine.passes.population import Reward
from zobench.parallel.world import World


class ParallelEngine:
    """``engine``, whose probes are shared out over ``world``; all else is the engine's own (:attr:`local`).

    Every rank makes the same calls with the same arguments, and commits the same entries. Where ranks share memory, all
    of them ask for tensors at the same time.
    """

    def __init__(self, engine: Engine, world: World) -> None:
        self.engine, self.world = engine, world
        self.model, self.config, self.parts = engine.model, engine.config, engine.parts
        self.commit, self.flush, self.drain, self.close = engine.commit, engine.flush, engine.drain, engine.close
        self.scores, self.next_logits = engine.scores, engine.next_logits  # of the whole batch, on every rank
        self.named_tensors, self.state_tensors = engine.named_tensors, engine.state_tensors
        self.save_pretrained, self.record, self.timeline = engine.save_pretrained, engine.record, engine.timeline

    def probe(self, batch: Batch, points: Sequence[Point]) -> list[float]:
        """The mean loss of the whole ``batch`` at each point, the same on all ranks."""
        mesh = self.world.mesh
        local_batch, shards = self._local_shard(batch)
        splits = mesh.signs == 2 and _are_pairs(points)
        if not splits:
            losses = self.engine.probe(local_batch, points)
        elif self.config.out_of_place:
            losses = self.engine.probe(local_batch, points[mesh.sign :: 2])
        else:
            losses = self.engine.probe(local_batch, points, range(mesh.sign, len(points), 2))
        return self._combined(local_batch, shards, losses, 2 if splits else 1)

    def evaluate(self, batch: Batch) -> float:
        return self.probe(batch, [BASE])[0]

    def tangent(self, batch: Batch, seed: int) -> tuple[float, float]:
        """The mean loss of the whole ``batch``, and its derivative along z(seed)."""
        local_batch, shards = self._local_shard(batch)
        loss, slope = self._combined(local_batch, shards, self.engine.tangent(local_batch, seed), 1)
        return loss, slope

    def fitness(self, reward: Reward, batches: Sequence[Batch], points: Sequence[Point]) -> list[float]:
        """Returns the numbers that ``reward`` gives all members: each rank looks at as many of them, one after
        another."""
        ranks = self.world.mesh.shards * self.world.mesh.signs
        if len(points) % ranks:
            raise ValueError(
                f"a population must be shared out over {ranks} ranks, but has {len(points)} members; use a multiple"
            )
        each = len(points) // ranks
        members = slice(self.world.rank * each, (self.world.rank + 1) * each)
        rewards = self.engine.fitness(reward, batches[members], points[members])
        table: list[float] = self.world.gather(torch.tensor(rewards, dtype=torch.float64)).flatten().tolist()
        return table

    def shared(self, values: Sequence[int]) -> list[int]:
        return self.world.from_first(values)

    def _combined(self, local_batch: Batch, shards: int, numbers: Sequence[float], signs: int) -> list[float]:
        """Means of the whole batch, from each rank's ``numbers`` of its shard: every ``signs``-th of them, from its
        own sign on. Where ranks of a shard have the same numbers, those of its first rank count.

        Products of float32 losses and counts are exact in float64, so the sums hardly round, and the numbers of a
        single shard are given back as they are."""
        mesh, count = self.world.mesh, counted(self.engine.model, local_batch)
        table = self.world.gather(torch.tensor([count, *numbers], dtype=torch.float64))
        ranks = torch.tensor([[mesh.at(shard, sign) for sign in range(signs)] for shard in range(shards)])
        by_sign = table[ranks]
        counts, in_order = by_sign[:, 0, 0], by_sign[:, :, 1:].transpose(1, 2).flatten(1)
        in_order = torch.where((counts == 0)[:, None] & (counts.sum() > 0), 0.0, in_order)  # a mean of nothing is NaN
        means: list[float] = ((counts[:, None] * in_order).sum(0) / counts.sum()).tolist()
        return means

    def _local_shard(self, batch: Batch) -> tuple[Batch, int]:
        """This rank's shard, and of how many; the whole of a batch that cannot be cut, as an evaluation's last."""
        shards = self.world.mesh.shards
        if shards == 1 or batch.examples % shards:
            return batch, 1
        return batch.shard(self.world.mesh.shard, shards), shards

    # --- the engine's own ---------------------------------------------------------------------------------------------

    @property
    def local(self) -> Engine:
        return self.engine

    @property
    def gradients(self) -> None:
        """None: ranks that backpropagate would have to exchange gradients."""
        return None

    @property
    def bytes_at_rest(self) -> int:
        return self.engine.bytes_at_rest

    @property
    def tier_note(self) -> str:
        """A caution for readers of a measurement about the tier, or ""."""
        return self.engine.tier_note

    def __enter__(self) -> ParallelEngine:
        self.engine.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _are_pairs(points: Sequence[Point]) -> bool:
    """Whether the points are (+eps, -eps) of one direction after another."""
    pairs = zip(points[::2], points[1::2], strict=False)
    return len(points) % 2 == 0 and all(
        (a.seed, a.part, a.scale) == (b.seed, b.part, -b.scale) and a.scale for a, b in pairs
    )
