"""EGGROLL: evolution strategies along directions of low rank, a population in one forward (Sarkar et al., 2025, arXiv
2511.16652, "Evolution Strategies at the Hyperscale"), and its program, ESHyperscale/HyperscaleES."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from zobench.data.tasks.file import task_of
from zobench.engine.base import PassRecord, Point
from zobench.engine.interface import PopulationEngine, lacks
from zobench.methods.base import LOW_RANK, Direction, Taken, at_least_two, rank
from zobench.methods.populations import SHAPINGS, Shaping
from zobench.methods.zo_sgd import ZOSGD, projected_gradient
from zobench.runspec.kinds import Definition, MethodKind, Need, SpecFields, Structure
from zobench.runspec.options import Option

if TYPE_CHECKING:
    from zobench.data.batch import Batch
    from zobench.engine.directions.factors import IndependentLowRank
    from zobench.engine.interface import SteppingEngine
    from zobench.engine.passes.population import Population, Reward
    from zobench.runspec import RunSpec

VARIANCE = 1e-5
"""The number that the authors' program adds to a variance before it divides by its root."""


def less_loss(members: Population, batches: Sequence[Batch]) -> list[float]:
    """The negative mean loss of each member's batch."""
    return [-loss for loss in members.losses(batches)]


def accuracy(members: Population, batches: Sequence[Batch]) -> list[float]:
    """The share of each member's examples whose right candidate has the highest score, as an evaluation counts it.

    Raises ``ValueError`` for batches without candidates. Of a batch with the right candidates alone the share is 1.
    """
    from zobench.data.tasks.judge import judge

    rewards = []
    for batch, scores in zip(batches, members.scores(batches), strict=True):
        assert batch.choices is not None  # there would be no scores
        total = judge(batch.choices, scores)
        rewards.append(total.right / total.count)
    return rewards


REWARDS = {"loss": less_loss, "accuracy": accuracy}
"""The rewards of a member, by their names in a spec."""


class EGGROLL(ZOSGD):
    """``W += lr / (P sigma) * (f_1 E_1 + ... + f_P E_P)``: f_i is the fitness of member i at W + sigma E_i, sigma the
    ``eps``.

    ``queries`` directions make a population of P members: with ``antithetic`` each serves two, W + sigma E and
    W - sigma E, so that P is twice as many. ``reward`` says what a member deserves
    (:data:`~zobench.engine.passes.population.Reward`), ``shaping`` makes fitness of rewards. A batch is cut into
    ``shards``, and as many members see each of them: with 1 all members see all of it, with P each its own rows, with P
    / 2 each antithetic pair. ``shipped``: the update is ``lr * sigma / sqrt(P)`` times the sum, and 1e-5 is added to a
    variance, as in the program.

    A step's loss is the mean of the rewards, negative; its g are the slopes of fitness, also negative.
    """

    def __init__(
        self, *, reward: Reward, shaping: Shaping = SHAPINGS["z-score"], antithetic: bool = True, shards: int = 1,
        shipped: bool = False, **constants: Any,
    ) -> None:  # fmt: skip
        super().__init__(**constants)
        self.reward, self.shaping, self.antithetic = reward, shaping, antithetic
        self.shards, self.shipped = shards, shipped
        self.population = self.queries * (2 if antithetic else 1)
        if shards < 1 or self.population % shards:
            raise ValueError(
                f"`shards` must divide the population of {self.population}, but got {shards}; use shards=1, or "
                f"{self.population} for rows of each member's own"
            )

    def _points(self, directions: Sequence[Direction]) -> tuple[Point, ...]:
        if self.antithetic:
            return super()._points(directions)
        return tuple(Point(seed, self.eps, part) for seed, part in directions)

    def _probe(
        self, engine: SteppingEngine, batch: Batch, directions: Sequence[Direction]
    ) -> tuple[float, tuple[float, ...]]:
        """The mean reward and each direction's slope of fitness, both negative."""
        each = self.population // self.shards
        batches = [shard for number in range(self.shards) for shard in [batch.shard(number, self.shards)] * each]
        if not isinstance(engine, PopulationEngine):
            raise lacks(engine, "a population")
        rewards = engine.fitness(self.reward, batches, self._points(directions))
        fitness = self.shaping(rewards, each, VARIANCE if self.shipped else 0.0)
        return -sum(rewards) / len(rewards), tuple(self._slopes(fitness, engine.config.device))

    def _slopes(self, fitness: Sequence[float], device: str) -> list[float]:
        if not self.antithetic:
            return [-value / self.eps for value in fitness]
        pairs = zip(fitness[::2], fitness[1::2], strict=True)
        return [projected_gradient(-plus, -minus, self.eps, device) for plus, minus in pairs]

    def _coefficient(self, g: float) -> float:
        return g * self.eps**2 * math.sqrt(self.population) if self.shipped else g

    def _moments(self, taken: Taken) -> list[PassRecord]:
        """As many passes as its reward looked at the population; the last had the updates."""
        last = super()._moments(taken)
        return [PassRecord(points=last[0].points)] * (taken.passes - 1) + last


def make(spec: RunSpec) -> EGGROLL:
    """The method of ``spec``. Raises ``ValueError`` where its shards are not equal, and for a reward that its batches
    do not give."""
    population, shards = _population(spec), _shards(spec)
    if spec.batch_size % shards:
        raise ValueError(
            f"`options.shards` must divide batch_size={spec.batch_size} and the population of {population}, but got "
            f"options.shards={shards}; use options.shards=1"
        )
    if spec.option("reward") == "accuracy" and not _trains_on_choices(spec):
        raise ValueError(
            f"`options.reward=accuracy` needs a task that trains on all candidates of an example, but got task="
            f"{spec.task_name}; use options.reward=loss"
        )
    return EGGROLL.of(
        spec, reward=REWARDS[spec.option("reward")], shaping=SHAPINGS[spec.option("shaping")], shards=shards,
        antithetic=spec.option("antithetic"), shipped=spec.definition == "as-shipped",
    )  # fmt: skip


def directions(spec: RunSpec) -> IndependentLowRank:
    """EGGROLL's directions, of the option ``rank``."""
    from zobench.engine.directions.factors import IndependentLowRank

    return IndependentLowRank(rank(spec))


def _trains_on_choices(spec: RunSpec) -> bool:
    """Whether a training batch has wrong candidates too: with the loss "lm" it has the right ones alone."""
    if spec.task == "none":
        return False
    task = task_of(spec)
    return task.loss == "choice" and not task.goal.every_token


def _population(spec: SpecFields) -> int:
    return spec.queries * (2 if spec.option("antithetic") else 1)


def _shards(spec: SpecFields) -> int:
    shards: int = spec.option("shards")
    population = _population(spec)
    if population % shards:
        raise ValueError(
            f"`options.shards` must divide the population of {population}, but got options.shards={shards}; use "
            "options.shards=1"
        )
    return shards


WRITTEN = Definition(
    formula="w += lr / (P sigma) * sum of f E, E = U V^T / sqrt(r) in every matrix; f from the rewards of P members",
    make="zobench.methods.eggroll:make",
)
KIND = MethodKind(
    name="eggroll",
    as_written=WRITTEN,
    as_shipped=replace(
        WRITTEN,
        formula="w += lr sigma / sqrt(P) * sum of f E, E = U V^T / sqrt(r) in every matrix; 1e-5 is added to the "
        "variance of rewards",
    ),
    structure=Structure(make="zobench.methods.eggroll:directions", rank=rank, lasts=lambda spec: 1, is_apart=True),
    pairs=lambda spec, layers: 0,
    singles=lambda spec: _population(spec) // _shards(spec),
    grid="eggroll",
    needs=(
        *LOW_RANK,
        Need("queries", at_least_two(32), "a member's fitness is beside others': use queries=32, or 2 and more"),
    ),
    options={
        "rank": Option(1, lowest=1),
        "antithetic": True,
        "shaping": Option("z-score", choices=tuple(SHAPINGS)),
        "shards": Option(1, lowest=1),
        "reward": Option("loss", choices=tuple(REWARDS)),
    },
)
