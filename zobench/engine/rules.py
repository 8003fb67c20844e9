"""Rules: how the gradient estimate of one step becomes an update of the weights, where that is not SGD's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor


class Rule(Protocol):
    """An elementwise update with or without state; ``states`` names its state tensors, each of the weights' shape.

    An engine without a rule does SGD, ``w -= lr * (g z + weight_decay w)``, entry by entry (:mod:`zobench.kernels`).
    """

    states: tuple[str, ...]

    def state_dtype(self, weights: torch.dtype) -> torch.dtype:
        """The dtype of the state of weights of this dtype."""

    def apply(
        self, weights: Tensor, estimate: Tensor, states: Sequence[Tensor], *, lr: float, weight_decay: float, step: int
    ) -> None:
        """Updates ``weights`` and ``states`` in place: flat pieces of the same elements, on one device.

        ``estimate``: ghat, the step's sum of g z, float32, which may be overwritten. ``step`` counts from 0. The update
        is computed in float32 and rounded once to the weights' dtype.
        """
