"""The members of a population are shared out over ranks, and all ranks take the same step."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from zobench import Batch, Engine, EngineConfig, Point, RunSpec, methods
from zobench.data.batch import IGNORED
from zobench.methods import StepResult
from zobench.parallel.engine import ParallelEngine
from zobench.parallel.mesh import Mesh
from zobench.testing.plain import full, padded, skeleton, start
from zobench.testing.suite import assert_same

RANKS = 2
SPEC = RunSpec(
    model="opt-tiny", method="eggroll", queries=3, noise="counter", lr=1e-5, eps=1e-2, seed=5, batch_size=3,
    options={"shards": 3},
)  # fmt: skip


class Worlds:
    """What ranks in threads exchange: each waits for all."""

    def __init__(self) -> None:
        self.table, self.barrier = torch.empty(0), threading.Barrier(RANKS, timeout=120)

    def of(self, rank: int) -> Any:
        def gather(row: Tensor) -> Tensor:
            if rank == 0:
                self.table = row.new_empty(RANKS, len(row))
            self.barrier.wait()
            self.table[rank] = row
            self.barrier.wait()
            table = self.table.clone()
            self.barrier.wait()
            return table

        return SimpleNamespace(rank=rank, mesh=Mesh(rank=rank, shards=RANKS, signs=1), gather=gather, from_first=list)


def engine() -> Engine:
    config = EngineConfig(noise="counter", slots=2)
    return Engine(skeleton(), config, weights=start(), directions=methods.directions(SPEC))


def steps(member: Any) -> tuple[list[StepResult], dict[str, Tensor]]:
    method = methods.make(SPEC)
    done = [method.step(member, batch()) for batch in (full, padded, full)]
    return done, dict(member.named_tensors())


def test_a_shard_in_which_nothing_counts_changes_no_mean():
    batch = full()
    rows = len(batch.input_ids) // RANKS * RANKS
    labels = batch.labels[:rows].clone()
    labels[rows // RANKS :] = IGNORED
    batch = Batch(batch.input_ids[:rows], labels)
    points, worlds = [Point(3, 1e-2), Point(3, -1e-2)], Worlds()
    with ExitStack() as opened, ThreadPoolExecutor(RANKS) as pool:
        alone, *engines = [opened.enter_context(engine()) for _ in range(1 + RANKS)]
        ranks = [ParallelEngine(each, worlds.of(rank)) for rank, each in enumerate(engines)]
        for losses in pool.map(lambda rank: rank.probe(batch, points), ranks):
            assert losses == pytest.approx(alone.probe(batch, points), rel=1e-6)


def test_two_ranks_look_at_half_of_the_members_each():
    worlds, passes = Worlds(), []
    with engine() as alone:
        wanted = steps(alone)

    def run(rank: int) -> tuple[list[StepResult], dict[str, Tensor]]:
        done = steps(ParallelEngine(engines[rank], worlds.of(rank)))
        passes.append(engines[rank].passes)
        return done

    with ExitStack() as opened, ThreadPoolExecutor(RANKS) as pool:
        engines = [opened.enter_context(engine()) for _ in range(RANKS)]  # models are not built in threads at once
        first, second = pool.map(run, range(RANKS))
    assert first[0] == second[0]
    assert_same(first[1], second[1])
    assert [step.loss for step in first[0]] == pytest.approx([step.loss for step in wanted[0]], rel=1e-6)
    assert_same(first[1], wanted[1], 1e-4)
    assert passes == [3, 3]
