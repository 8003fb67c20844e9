"""The conformance suites of zobench.testing as zobench's own tests run them, with a fault or without."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from zobench.engine import Engine, EngineConfig
from zobench.engine.interface import Start, TunedEngine
from zobench.engine.transfers.lanes import Lanes, ThreadLanes
from zobench.engine.weights.tiers import HostTier, Tier
from zobench.models.weights import Weights
from zobench.testing import LanesConformance, LocalEngineConformance, TierConformance
from zobench.testing.tier import SIZES


class OfEngine(LocalEngineConformance):
    """Engine with ``config``."""

    config: dict[str, Any]

    def make(self, model: nn.Module, weights: Weights, start: Start | None = None) -> TunedEngine:
        return Engine(model, EngineConfig(**{"noise": self.noise, **self.config}), weights=weights, start=start)


class OfHostTier(TierConformance):
    """The tier of host memory."""

    def make(self, blocks: Sequence[Tensor], folder: Path) -> Tier:
        return self.filled(HostTier(SIZES, pinned=False), blocks)


class OfThreadLanes(LanesConformance):
    """A thread for each lane."""

    def make(self) -> Lanes:
        return ThreadLanes()
