"""Rules that shape directions: z is made of normal numbers u, the weights and the rule's state, element by element."""

from __future__ import annotations

import functools
import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, cast

import torch
from torch import Tensor

from zobench.engine.updates.rules import UpdateRule, descend
from zobench.kernels import Update

Draws = Iterable[tuple[Update, Tensor]]
"""The updates of one step, each with its normal numbers u, float32, which may be overwritten before the next is asked
for."""


@dataclass(frozen=True)
class Shaped(UpdateRule):
    """An update rule that also says what a direction is; without it z is u itself. The update is SGD's along them.

    ``reads_weights``: z follows from the weights at the base point, which only noise=counter leaves as they are.
    One whose points are not W + c z has ``moved``, a function of W, z and c that gives them in float32.
    """

    reads_weights = False

    @abstractmethod
    def shape(self, u: Tensor, weights: Tensor, states: Sequence[Tensor], limit: float) -> Tensor:
        """The direction z, made of flat pieces of the same elements; ``u`` may be overwritten.

        ``limit``: the tensor's threshold (:func:`zobench.methods.thresholds`), or infinity.
        """

    def change(self, estimate: Tensor, states: Sequence[Tensor], step: int) -> Tensor:
        """The estimate itself: its directions are shaped already."""
        return estimate

    def update(self, weights: Tensor, draws: Draws, states: Sequence[Tensor], limit: float) -> None:
        """One step of ``weights`` (float32) and ``states``, in place: all directions are of the weights and the state
        before the step."""
        updates: list[Update] = []

        def estimates() -> Iterable[Tensor]:
            for update, u in draws:
                updates.append(update)
                yield self.shape(u, weights, states, limit).mul_(update.g)

        estimate = functools.reduce(Tensor.add_, estimates())
        descend(weights, estimate, updates[0].lr, updates[0].weight_decay)


def shaping(rule: UpdateRule | None) -> Shaped | None:
    """``rule`` as one that shapes directions, or None if it has no ``shape``: its directions are normal numbers."""
    return cast(Shaped, rule) if hasattr(rule, "shape") else None


def moving(rule: UpdateRule | None) -> Callable[[Tensor, Tensor, float], Tensor] | None:
    """Returns the function that gives the points of ``rule`` from W, z and c, or None where they are W + c z."""
    moved: Callable[[Tensor, Tensor, float], Tensor] | None = getattr(rule, "moved", None)
    return moved


@dataclass(frozen=True)
class Rademacher(Shaped):
    """z = sign(u), which is +1 or -1 with equal chance (FZOO)."""

    def shape(self, u: Tensor, weights: Tensor, states: Sequence[Tensor], limit: float) -> Tensor:
        """As :class:`Shaped` has it; the sign of zero is its sign bit."""
        return torch.copysign(torch.ones_like(u), u, out=u)


@dataclass(frozen=True)
class SmallWeights(Shaped):
    """z = u where ``|w| <= limit``, else 0: which weights move follows from the weights at each step (Sparse-MeZO)."""

    reads_weights = True

    def shape(self, u: Tensor, weights: Tensor, states: Sequence[Tensor], limit: float) -> Tensor:
        return u.masked_fill_(weights.abs() > limit, 0.0)


@dataclass(frozen=True)
class DiagonalHessian(Shaped):
    """``z = u / sqrt(H)``, H an estimate of the Hessian's diagonal that begins as ones (HiZOO).

    A step's update has the curvature ``|L+ + L- - 2 L| / (2 eps^2)`` along z as ``extra``:
    ``H = (1 - smooth) H + smooth * extra * H u^2``, then ``w -= lr * (g u / sqrt(H) + weight_decay * w)``.
    ``narrow``: H is in the weights' dtype, else in float32.
    """

    smooth: float
    narrow: bool = False

    states: ClassVar[tuple[str, ...]] = ("h",)
    begins = MappingProxyType({"h": 1.0})

    def state_dtype(self, weights: torch.dtype) -> torch.dtype:
        return weights if self.narrow else torch.float32

    def shape(self, u: Tensor, weights: Tensor, states: Sequence[Tensor], limit: float) -> Tensor:
        return u.div_(states[0].float().sqrt())

    def update(self, weights: Tensor, draws: Draws, states: Sequence[Tensor], limit: float) -> None:
        """As :class:`Shaped` has it: the direction of the step itself is of the H that it has changed."""
        ((update, u),) = draws
        h = states[0]
        increment = u.square().mul_(h).mul_(update.extra * self.smooth)
        h.copy_((h.float() * (1 - self.smooth)).add_(increment))
        descend(weights, self.shape(u, weights, states, limit).mul_(update.g), update.lr, update.weight_decay)


@dataclass(frozen=True)
class Cone(Shaped):
    """``z = cos(theta) m + sin(theta) u``, in a cone around the momentum m of length sqrt(d) (ConMeZO).

    The momentum itself is ``norm * m``: with a step's estimate g z it becomes ``beta * norm * m + (1 - beta) g z``,
    whose length in units of sqrt(d) is :meth:`norm_after`. A step's update has ``norm`` before it as ``extra``; 0 says
    that there is no momentum yet. ``beta``: a function of the step. ``narrow``: m in the weights' dtype.
    """

    theta: float
    beta: Callable[[int], float]
    narrow: bool = False

    states: ClassVar[tuple[str, ...]] = ("m",)

    def state_dtype(self, weights: torch.dtype) -> torch.dtype:
        return weights if self.narrow else torch.float32

    def norm_after(self, norm: float, g: float, step: int) -> float:
        """The momentum's length after a step along z with ``g``, in units of sqrt(d), as expected of a u that knows
        nothing of m: their product is 0 and u's length sqrt(d)."""
        beta = self.beta(step)
        along = beta * norm + (1 - beta) * g * math.cos(self.theta) if norm else 0.0
        return math.hypot(along, (1 - beta) * g * math.sin(self.theta))

    def shape(self, u: Tensor, weights: Tensor, states: Sequence[Tensor], limit: float) -> Tensor:
        return u.mul_(math.sin(self.theta)).add_(states[0] * math.cos(self.theta))

    def update(self, weights: Tensor, draws: Draws, states: Sequence[Tensor], limit: float) -> None:
        ((update, u),) = draws
        estimate = self.shape(u, weights, states, limit).mul_(update.g)
        beta, norm = self.beta(update.step), update.extra
        if after := self.norm_after(norm, update.g, update.step):
            m = states[0].float() * (beta * norm / after)
            states[0].copy_(m.add_(estimate * ((1 - beta) / after)))
        else:
            states[0].zero_()
        descend(weights, estimate, update.lr, update.weight_decay)


@dataclass(frozen=True)
class RecentMoments(Shaped):
    """z = u. The updates of a step are those of the last steps, the newest first, and the moments of Adam are made of
    all of them, so that none is kept (AdaMeZO).

    With the age k of an update, 0 of the newest: ``m = (1 - beta1) sum of beta1^k g_k u_k``,
    ``v = (1 - beta2) sum of beta2^k (g_k u_k)^2``, ``w -= lr * (m / sqrt(v + zeta) + weight_decay * w)``; lr and decay
    are the newest's.
    """

    beta1: float
    beta2: float
    zeta: float

    def shape(self, u: Tensor, weights: Tensor, states: Sequence[Tensor], limit: float) -> Tensor:
        return u

    def update(self, weights: Tensor, draws: Draws, states: Sequence[Tensor], limit: float) -> None:
        first, second = torch.zeros_like(weights), torch.zeros_like(weights)
        newest: Update | None = None
        for age, (update, u) in enumerate(draws):
            newest = newest or update
            estimate = u.mul_(update.g)
            second.add_(estimate.square().mul_((1 - self.beta2) * self.beta2**age))
            first.add_(estimate.mul_((1 - self.beta1) * self.beta1**age))
        assert newest is not None, "a step has at least its own update"
        descend(weights, first.div_(second.add_(self.zeta).sqrt_()), newest.lr, newest.weight_decay)
