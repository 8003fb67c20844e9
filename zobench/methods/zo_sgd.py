"""ZO-SGD, MeZO's method: two points along a direction, one journal entry (MeZO algorithm 1, ZO2 equations 1, 2)."""

from __future__ import annotations

import math

import numpy as np

from zobench.engine import Batch, Engine, Entry, Point
from zobench.methods.base import StepResult


class ZOSGD:
    """``W -= lr * (ghat + weight_decay * W)``, ghat the mean of g z over ``queries`` directions (ZO-Bench, equation 2).

    All directions share one pass over the model. Their seeds, in [0, 1e9), come from the run's own generator. A g that
    is not finite is not applied; ``skipped`` counts steps with one.
    """

    def __init__(
        self, *, lr: float, eps: float = 1e-3, seed: int = 0, weight_decay: float = 0.0, queries: int = 1
    ) -> None:
        if not (eps > 0 and lr >= 0 and weight_decay >= 0):
            raise ValueError(
                "`eps > 0`, `lr >= 0` and `weight_decay >= 0` must hold, but got "
                f"eps={eps}, lr={lr}, weight_decay={weight_decay}; MeZO uses eps=1e-3"
            )
        if queries < 1:
            raise ValueError(f"`queries >= 1` must hold, but got queries={queries}; MeZO uses queries=1")
        self.lr, self.eps, self.weight_decay, self.queries = lr, eps, weight_decay, queries
        self.skipped = 0
        self._step = 0
        self._seeds = np.random.default_rng(seed)

    def step(self, engine: Engine, batch: Batch) -> StepResult:
        """One step on ``batch``; ``lr`` may be changed between steps."""
        seeds = tuple(int(self._seeds.integers(10**9)) for _ in range(self.queries))
        losses = engine.probe(batch, [Point(seed, scale) for seed in seeds for scale in (self.eps, -self.eps)])
        pairs = list(zip(losses[::2], losses[1::2], strict=True))
        gradients = tuple((plus - minus) / (2 * self.eps) for plus, minus in pairs)
        finite = [(seed, g) for seed, g in zip(seeds, gradients, strict=True) if math.isfinite(g)]
        engine.commit([self._entry(seed, g, first=n == 0) for n, (seed, g) in enumerate(finite)])
        applied = len(finite) == self.queries
        self.skipped += not applied
        self._step += 1
        loss = sum((plus + minus) / 2 for plus, minus in pairs) / self.queries
        return StepResult(loss=loss, seeds=seeds, gradients=gradients, applied=applied)

    def _entry(self, seed: int, g: float, first: bool) -> Entry:
        decay = self.weight_decay if first else 0.0  # once per step, whatever the number of directions
        return Entry(step=self._step, seed=seed, g=g / self.queries, lr=self.lr, weight_decay=decay)
