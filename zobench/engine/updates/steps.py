"""Rules of integer weights: scales that must stay positive, and codes that move by whole steps."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, ClassVar

import torch
from torch import Tensor

from zobench.engine.directions.shapes import Draws, Shaped
from zobench.engine.updates.rules import UpdateRule

LEAST_CHANCE = 2.0**-30
"""Chances of a step below this are none: the numbers that decide have 32 bits."""
WINDUP = 1.5
"""Steps that a residual may hold."""


@dataclass(frozen=True)
class AtLeast(UpdateRule):
    """SGD that ends at ``least``: ``w = max(w - lr * (ghat + weight_decay * w), least)`` (QZO, of scales)."""

    least: float

    def change(self, estimate: Tensor, states: Sequence[Tensor], step: int) -> Tensor:
        return estimate

    def apply(self, weights: Tensor, estimate: Tensor, states: Sequence[Tensor], **rates: Any) -> None:
        super().apply(weights, estimate, states, **rates)
        weights.clamp_(min=self.least)


@dataclass(frozen=True)
class WholeSteps(Shaped):
    """Codes, whole numbers from ``-2^(bits-1)`` to ``2^(bits-1) - 1``, that move by whole steps (QES).

    z is ``sigma u`` rounded up or down at random, so that its mean is ``sigma u``; a point's scale is +1 or -1. Where a
    code would leave its range it stays (:meth:`moved`). A step's estimate is ``ghat = sum_i g_i (z_i where q + z_i is
    in range, and z_i where q - z_i is) / sigma``; then, with the residual e::

        x = decay * e - lr * ghat;  d = round(x), 0 where q + d is out of range;  q += d;  e = x - d

    e within +-1.5. ``narrow``: e in float16, else in float32.
    """

    sigma: float
    bits: int
    decay: float
    narrow: bool = False

    states: ClassVar[tuple[str, ...]] = ("e",)

    def state_dtype(self, weights: torch.dtype) -> torch.dtype:
        return torch.float16 if self.narrow else torch.float32

    def shape(self, u: Tensor, weights: Tensor, states: Sequence[Tensor], limit: float) -> Tensor:
        """One number decides each: z >= k where u reaches the number
        that normal ones reach as rarely as a rounded ``sigma u'`` reaches k."""
        z = torch.zeros_like(u)
        for edge in edges(self.sigma):
            z.add_((u >= edge).float()).sub_((u <= -edge).float())
        return z

    def moved(self, weights: Tensor, z: Tensor, scale: float) -> Tensor:
        """``weights + scale * z``, but ``weights`` where that leaves the range."""
        moved = weights + z * scale
        return torch.where(self._inside(moved), moved, weights)

    def update(self, weights: Tensor, draws: Draws, states: Sequence[Tensor], limit: float) -> None:
        (residual,) = states
        estimate, lr = torch.zeros_like(weights), 0.0
        for update, u in draws:
            z, lr = self.shape(u, weights, states, limit), update.lr
            signs_inside = self._inside(weights + z).float().add_(self._inside(weights - z))
            estimate.add_(z.mul_(signs_inside).mul_(update.g))
        wanted = (residual.float() * self.decay).sub_(estimate.mul_(lr / self.sigma))
        moved = weights + wanted.round()
        kept = torch.where(self._inside(moved), moved, weights)
        residual.copy_(wanted.sub_(kept - weights).clamp_(-WINDUP, WINDUP))
        weights.copy_(kept)

    def _inside(self, codes: Tensor) -> Tensor:
        half = 2 ** (self.bits - 1)
        return torch.logical_and(codes >= -half, codes < half)


@functools.cache
def edges(sigma: float) -> tuple[float, ...]:
    """Returns, for k = 1, 2, ..., the number that a normal one reaches with the chance that ``sigma u`` rounded at
    random reaches k."""
    # x ~ N(0, sigma^2), rounded up with the chance of its fraction, is k or more: the mean of x - (k - 1), cut at 0, 1
    reached = (_above(k - 1, sigma) - _above(k, sigma) for k in itertools.count(1))
    chances = itertools.takewhile(lambda p: p > LEAST_CHANCE, reached)
    return tuple(-NormalDist().inv_cdf(chance) for chance in chances)


def _above(a: float, sigma: float) -> float:
    """The mean of max(x - a, 0) for x ~ N(0, sigma^2)."""
    t = a / sigma
    return sigma * math.exp(-t * t / 2) / math.sqrt(2 * math.pi) - a * math.erfc(t / math.sqrt(2)) / 2
