"""The engines that methods step: one whose blocks may be elsewhere, or one that backpropagates and answers like it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import nn

from zobench.engine import Engine, EngineConfig
from zobench.engine.backprop import Backprop
from zobench.engine.directions.factors import LowRank
from zobench.engine.passes.drive import Drive
from zobench.engine.updates.rules import UpdateRule
from zobench.models.weights import Weights
from zobench.runspec import RunSpec

if TYPE_CHECKING:
    from zobench.engine.interface import Start, TunedEngine
    from zobench.engine.weights.tiers import Hosts


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineParts:
    """The arguments that an engine is built with (see :class:`zobench.engine.Engine`). ``shared_out`` makes the engine
    of all ranks of one rank's, None if there is one rank; ``sharded`` then builds what backpropagates instead of
    Backprop."""

    model: nn.Module
    config: EngineConfig
    weights: Weights
    drive: Drive
    rule: UpdateRule | None = None
    state: Weights | None = None
    thresholds: dict[str, float] | None = None
    directions: LowRank | None = None
    start: Start | None = None
    hosts: Hosts | None = None
    shared_out: Callable[[Engine], TunedEngine] | None = None
    sharded: Callable[..., Backprop] | None = None


def streaming(spec: RunSpec, parts: EngineParts) -> TunedEngine:
    """The shared offload engine, which also keeps all blocks where ``spec`` says so."""
    engine = Engine(
        parts.model, parts.config, weights=parts.weights, drive=parts.drive, rule=parts.rule, state=parts.state,
        thresholds=parts.thresholds, start=parts.start, hosts=parts.hosts, directions=parts.directions,
    )  # fmt: skip
    return engine if parts.shared_out is None else parts.shared_out(engine)


def backpropagating(spec: RunSpec, parts: EngineParts) -> TunedEngine:
    """The resident engine of gradients, below which ``spec.zo_layers`` layers move along directions."""
    return (parts.sharded or Backprop)(
        parts.model, parts.config, weights=parts.weights, state=parts.state, drive=parts.drive,
        checkpointing=spec.checkpointing, zo_layers=spec.zo_layers,
    )  # fmt: skip
