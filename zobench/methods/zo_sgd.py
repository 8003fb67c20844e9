"""ZO-SGD, MeZO's method: two points along a direction, one journal entry (MeZO algorithm 1, ZO2 equations 1, 2)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from zobench.engine import Batch, Engine, Entry, Point


@dataclass(frozen=True, kw_only=True, slots=True)
class StepResult:
    """One step: the mean of its two losses, g = (L+ - L-) / (2 eps), its seed, and whether the update was applied."""

    loss: float
    projected_grad: float
    seed: int
    applied: bool


class ZOSGD:
    """``W -= lr * (g * z + weight_decay * W)`` with z from a seed in [0, 1e9) of the run's own generator.

    A g that is not finite is not applied; ``skipped`` counts such steps.
    """

    def __init__(self, *, lr: float, eps: float = 1e-3, seed: int = 0, weight_decay: float = 0.0) -> None:
        if not (eps > 0 and lr >= 0 and weight_decay >= 0):
            raise ValueError(
                "`eps > 0`, `lr >= 0` and `weight_decay >= 0` must hold, but got "
                f"eps={eps}, lr={lr}, weight_decay={weight_decay}; MeZO uses eps=1e-3"
            )
        self.lr, self.eps, self.weight_decay = lr, eps, weight_decay
        self.skipped = 0
        self._step = 0
        self._seeds = np.random.default_rng(seed)

    def step(self, engine: Engine, batch: Batch) -> StepResult:
        """One step on ``batch``; ``lr`` may be changed between steps."""
        seed = int(self._seeds.integers(10**9))
        plus, minus = engine.probe(batch, [Point(seed, self.eps), Point(seed, -self.eps)])
        g = (plus - minus) / (2 * self.eps)
        applied = math.isfinite(g)
        if applied:
            engine.commit([Entry(step=self._step, seed=seed, g=g, lr=self.lr, weight_decay=self.weight_decay)])
        else:
            self.skipped += 1
        self._step += 1
        return StepResult(loss=(plus + minus) / 2, projected_grad=g, seed=seed, applied=applied)
