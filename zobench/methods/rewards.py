"""Rewards of a population's members: what an evolution strategy maximises."""

from __future__ import annotations

from collections.abc import Sequence

from zobench.data.batch import Batch
from zobench.data.tasks.judge import judge
from zobench.engine.passes.population import Population


def less_loss(members: Population, batches: Sequence[Batch]) -> list[float]:
    """The negative mean loss of each member's batch."""
    return [-loss for loss in members.losses(batches)]


def accuracy(members: Population, batches: Sequence[Batch]) -> list[float]:
    """The share of each member's examples whose right candidate has the highest score, as an evaluation counts it.

    Raises ``ValueError`` for batches without candidates.
    """
    rewards = []
    for batch, scores in zip(batches, members.scores(batches), strict=True):
        assert batch.choices is not None  # there would be no scores
        total = judge(batch.choices, scores)
        rewards.append(total.right / total.count)
    return rewards
