"""The head of a model: hidden states and targets become log-probabilities, a few tokens or vocabulary rows at a time.

The way from a batch to its loss is here once: :class:`~zobench.engine.objective.Objective` chooses the targets and
their states, the head computes their log-probabilities, and the objective the loss from these.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor, nn
from torch.nn import functional

from zobench.engine.blocks import Field, Unit
from zobench.engine.logits import Note, finished
from zobench.engine.loss import log_probabilities, mean_loss, rows_per_chunk

HEAD_BYTES = 16 << 20
"""Bytes of the vocabulary rows of the head that are perturbed at once (counter noise)."""
BIAS_BYTES = 64 << 10
"""The share of :data:`HEAD_BYTES` that the same rows of the head's bias have."""


class Judged(Protocol):
    """The head's output for n targets."""

    def log_probabilities(self) -> Tensor:
        """The log-probability of each target, float32 (n,); that of an ignored target has no meaning."""

    def mean(self) -> Tensor:
        """The mean loss over the targets that count, float32."""


@dataclass(frozen=True, eq=False, slots=True)
class Picked:
    """A :class:`Judged` by the log-probabilities ``values`` (n,) of ``targets`` (n,), from whole logits of a few tokens
    at a time."""

    values: Tensor
    targets: Tensor

    def log_probabilities(self) -> Tensor:
        return self.values

    def mean(self) -> Tensor:
        return mean_loss(self.values, self.targets)


@dataclass(frozen=True, eq=False, slots=True)
class Head:
    """``module``, a linear layer onto the vocabulary, the ``units`` that it uses, a bound on its float32 logits, and
    the ``notes`` of what the model does with them."""

    module: nn.Module
    logits_bytes: int
    units: Sequence[Unit] = ()
    notes: Sequence[Note] = ()

    def logits(self, states: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The model's logits of ``states`` (n, width) from these rows of the module's tensors."""
        return finished(functional.linear(states, weight, bias), self.notes)

    def picked(self, states: Tensor, targets: Tensor) -> Picked:
        """What the module, as it is bound now, makes of ``targets`` (n,) at ``states`` (n, width)."""
        rows = rows_per_chunk(self.module.out_features, self.logits_bytes)  # type: ignore[arg-type]
        weight, bias = self.module.weight, self.module.bias
        return Picked(log_probabilities(lambda chunk: self.logits(chunk, weight, bias), states, targets, rows), targets)  # type: ignore[arg-type]

    def tensors(self) -> dict[str, tuple[Unit, Field]]:
        """The module's own tensors by attribute, "weight" and perhaps "bias", and where they are."""
        return {
            key: (unit, item)
            for unit in self.units
            for item in unit.fields
            for module, key in item.homes
            if module is self.module
        }

    def rows(self, tokens: int) -> int:
        """Vocabulary rows that are perturbed at once, so that they and the logits of so many tokens stay small."""
        weight = self.module.get_parameter("weight")
        row = weight.shape[1] * weight.dtype.itemsize
        room = min((HEAD_BYTES - BIAS_BYTES) // row, BIAS_BYTES // weight.dtype.itemsize)
        return max(1, min(room, self.logits_bytes // (4 * tokens)))
