"""The conformance suite of engines on every engine of zobench's."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.support.low_rank import LowRankPlain
from tests.support.suites import OfEngine
from zobench.engine import Engine, EngineConfig
from zobench.engine.backprop import Backprop
from zobench.engine.directions.factors import LowRank
from zobench.engine.interface import Start, TunedEngine
from zobench.models.weights import Weights
from zobench.parallel.engine import ParallelEngine
from zobench.parallel.mesh import Mesh
from zobench.testing import GradientConformance, LocalEngineConformance
from zobench.testing.plain import PlainModel

pytestmark = pytest.mark.usefixtures("small_tiles")
SUITES: dict[str, dict[str, Any]] = {
    "TorchOffload": {"noise": "torch", "config": {"slots": 2}},
    "TorchOnDisk": {"noise": "torch", "tied": False, "config": {"tier": "disk", "slots": 1}},
    "TorchAblated": {
        "noise": "torch", "config": {"fused_update": False, "overlap": False, "reusable_memory": False},
    },
    "CounterResident": {"streams": False, "config": {"placement": "resident"}},
    "CounterPacked": {"config": {"packed": True, "tier": "disk"}},
    "CounterLinears": {"has_tangent": False, "config": {"granularity": "linear", "resident_blocks": 1}},
    "CounterTilesOnDisk": {
        "has_tangent": False, "config": {"granularity": "tile", "tier": "disk", "slots": 2, "writeback_every": 2},
    },
    # updates stay in the journal: the weights at rest are the base until a flush
    "CounterJournal": {"tied": False, "config": {"writeback_every": "inf"}},
}  # fmt: skip
"""What each suite sets of :class:`OfEngine`."""
globals().update({f"Test{suite}": type(f"Test{suite}", (OfEngine,), fields) for suite, fields in SUITES.items()})


class OfLowRank(OfEngine):
    """Directions of rank 2 in every matrix, each in a subspace of its own, and along the way of LOZO's steps."""

    def make(self, model: nn.Module, weights: Weights, start: Start | None = None) -> TunedEngine:
        config = EngineConfig(**{"noise": self.noise, **self.config})
        return Engine(model, config, weights=weights, start=start, directions=LowRank(2))

    def plain(self) -> PlainModel:
        return LowRankPlain(2, self.tied)


class TestLowRankTilesOnDisk(OfLowRank):
    has_tangent = False
    config = {"granularity": "tile", "tier": "disk", "slots": 2, "writeback_every": 2}  # noqa: RUF012


class TestLowRankJournal(OfLowRank):
    """No subspace ever ends up in the weights at rest."""

    tied, config = False, {"slots": 2, "writeback_every": "inf"}


class TestBackprop(GradientConformance):
    """Nothing is moved along directions."""

    def make(self, model: nn.Module, weights: Weights, start: Start | None = None) -> TunedEngine:
        return Backprop(model, EngineConfig(placement="resident"), weights=weights)

    def moved(self, name: str) -> bool:
        return False


class TestHybridBackprop(TestBackprop):
    """What comes before the second block is moved along directions, and has no gradients."""

    def make(self, model: nn.Module, weights: Weights, start: Start | None = None) -> TunedEngine:
        return Backprop(model, EngineConfig(placement="resident"), weights=weights, zo_layers=1)

    def moved(self, name: str) -> bool:
        return "embed" in name or "layers.0." in name


class World:
    """One rank alone: what :class:`zobench.parallel.world.World` is, without a process group."""

    mesh = Mesh(rank=0, shards=1, signs=1)

    def gather(self, row: Tensor) -> Tensor:
        return row[None]

    def from_first(self, values: list[int]) -> list[int]:
        return [int(value) for value in torch.tensor(values)]


class TestParallel(LocalEngineConformance):
    noise = "torch"

    def make(self, model: nn.Module, weights: Weights, start: Start | None = None) -> TunedEngine:
        config = EngineConfig(noise=self.noise, slots=2)
        return ParallelEngine(Engine(model, config, weights=weights, start=start), World())  # type: ignore[arg-type]
