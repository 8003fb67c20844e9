"""Update rules: how the gradient estimate of a step changes the weights, for methods other than SGD."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, Self

import torch
from torch import Tensor

# Each product and sum below is an operation of its own. A fused one (``alpha=``, ``lerp``) rounds once where the
# processor can and twice where it cannot: the bits would depend on the machine.


class UpdateRule(ABC):
    """An elementwise update with or without state: ``w -= lr * (change + weight_decay * w)``.

    ``states`` names its state tensors, each of the weights' shape, before the first step all what ``begins`` has by
    their names, or zero. An engine without a rule does SGD, ``w -= lr * (g z + weight_decay w)``, entry by entry
    (:mod:`zobench.kernels`).
    """

    states: ClassVar[tuple[str, ...]] = ()
    begins: ClassVar[Mapping[str, float]] = MappingProxyType({})

    @classmethod
    def of(cls, spec: object) -> Self:
        """The rule with the constants of its definition, whatever the run's spec."""
        return cls()

    def state_dtype(self, weights: torch.dtype) -> torch.dtype:
        """The dtype of the state of weights of this dtype: float32 for all of them."""
        return torch.float32

    @abstractmethod
    def change(self, estimate: Tensor, states: Sequence[Tensor], step: int) -> Tensor:
        """The change, float32, which may be ``estimate`` itself; ``states`` are updated in place."""

    def apply(
        self, weights: Tensor, estimate: Tensor, states: Sequence[Tensor], *, lr: float, weight_decay: float, step: int
    ) -> None:
        """Updates ``weights`` and ``states`` in place: flat pieces of the same elements, on one device.

        ``estimate``: ghat, the step's sum of g z, float32, which may be overwritten. ``step`` counts from 0. The update
        is computed in float32 and rounded once to the weights' dtype.
        """
        descend(weights, self.change(estimate, states, step), lr, weight_decay)


@dataclass(frozen=True)
class Sign(UpdateRule):
    """The change is sign(ghat), elementwise, sign(0) = 0 (ZO-Bench, equation 2 with h = sign)."""

    def change(self, estimate: Tensor, states: Sequence[Tensor], step: int) -> Tensor:
        return estimate.sign_()


@dataclass(frozen=True)
class Momentum(UpdateRule):
    """The change is m: ``m = beta * m + ghat`` (ZO-Bench, appendix A)."""

    beta: float = 0.9

    states = ("m",)

    def change(self, estimate: Tensor, states: Sequence[Tensor], step: int) -> Tensor:
        (m,) = states
        m.mul_(self.beta).add_(estimate)
        return estimate.copy_(m)


@dataclass(frozen=True)
class Adam(UpdateRule):
    """Adam without bias correction, by one of two formulas; the change is ``m / sqrt(V + eps)``.

    ZO-Adam as ZO-Bench prints it (appendix A), whose formula has no ``eps``, which is here for V = 0:
    ``m = beta1 m + (1 - beta1) ghat``; ``v' = beta2 v + (1 - beta2) ghat^2``; ``V = max(v', v)``. With ``is_refined``
    R-AdaZO's (Shu et al., arXiv 2502.01014), whose second moment is of the first: ``v' = beta2 v + (1 - beta2) m^2``
    and ``V = v'``.
    """

    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    is_refined: bool = False

    states = ("m", "v")

    def change(self, estimate: Tensor, states: Sequence[Tensor], step: int) -> Tensor:
        m, v = states
        if self.is_refined:
            m.mul_(self.beta1).add_(estimate.mul_(1 - self.beta1))
            v.mul_(self.beta2).add_(torch.square(m, out=estimate).mul_(1 - self.beta2))
            root = torch.add(v, self.eps, out=estimate).sqrt_()
        else:
            m.mul_(self.beta1).add_(estimate * (1 - self.beta1))
            before = v.clone()
            v.mul_(self.beta2).add_(estimate.square_().mul_(1 - self.beta2))
            root = torch.maximum(v, before, out=before).add_(self.eps).sqrt_()
        return torch.div(m, root, out=estimate)


@dataclass(frozen=True)
class TorchAdam(UpdateRule):
    """ZO-Adam as its program has it: torch's Adam on ghat, with bias correction; m and v in the weights' dtype.

    The change is ``m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps)``, t = step + 1, which counts skipped steps too.
    It is computed before m and v are rounded to their dtype. In float16 a v below 3e-8 is zero at the next step, whose
    update may then be huge: the published state is this coarse.
    """

    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8

    states = ("m", "v")

    def state_dtype(self, weights: torch.dtype) -> torch.dtype:
        return weights

    def change(self, estimate: Tensor, states: Sequence[Tensor], step: int) -> Tensor:
        m, v = (state.float() * beta for state, beta in zip(states, (self.beta1, self.beta2), strict=True))
        m.add_(estimate * (1 - self.beta1))
        v.add_(estimate.square_().mul_(1 - self.beta2))
        for state, value in zip(states, (m, v), strict=True):
            state.copy_(value)
        root = v.div_(1 - self.beta2 ** (step + 1)).sqrt_().add_(self.eps)
        return m.div_(1 - self.beta1 ** (step + 1)).div_(root)


def descend(weights: Tensor, update: Tensor, lr: float, weight_decay: float) -> None:
    """``weights -= lr * (update + weight_decay * weights)`` in float32, rounded once; ``update`` is overwritten."""
    if weight_decay:
        update.add_(weights.float() * weight_decay)
    weights.sub_(update.mul_(lr))
