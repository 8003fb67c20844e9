"""The head of a model: hidden states and targets become log-probabilities, a few tokens or vocabulary rows at a time.

The way from a batch to its loss is here once: :class:`~zobench.engine.passes.objective.Objective` chooses the targets
and their states, the head computes their log-probabilities, and the objective the loss from these.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor, nn
from torch.nn import functional

from zobench.engine.base import HEAD_BYTES as HEAD_BYTES
from zobench.engine.base import rows_per_chunk
from zobench.engine.directions.narrow import uncast
from zobench.engine.passes.logits import Note, finished
from zobench.engine.passes.loss import log_probabilities, mean_loss
from zobench.engine.weights.blocks import Field, Unit

BIAS_BYTES = 64 << 10
"""The share of :data:`HEAD_BYTES` that the same rows of the head's bias have."""


@dataclass(frozen=True, eq=False, slots=True)
class Compared:
    """The distinct ``tokens`` (k,) among n targets, and the ``index`` (n,) of each target among them, int64."""

    tokens: Tensor
    index: Tensor


class Judged(Protocol):
    """The head's output for n targets."""

    def log_probabilities(self) -> Tensor:
        """Of each target, float32 (n,), up to a number that targets at one place share where the head's targets are
        :class:`Compared`; that of an ignored target has no meaning."""

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
    """``module``, a linear layer onto the vocabulary, the ``units`` that it uses, a bound on its float32 logits, the
    ``notes`` of what the model does with them, and ``compared``, the tokens whose logits are enough for the loss."""

    module: nn.Module
    logits_bytes: int
    units: Sequence[Unit] = ()
    notes: Sequence[Note] = ()
    compared: Compared | None = None

    def logits(self, states: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The model's logits of ``states`` (n, width) from these rows of the module's tensors."""
        return finished(functional.linear(states, weight, bias), self.notes)

    def picked(self, states: Tensor, targets: Tensor) -> Picked:
        """What the module, as it is bound now, makes of ``targets`` (n,) at ``states`` (n, width)."""
        rows = rows_per_chunk(self.module.out_features, self.logits_bytes)  # type: ignore[arg-type]
        weight, bias = self.module.weight, self.module.bias
        return Picked(log_probabilities(lambda chunk: self.logits(chunk, weight, bias), states, targets, rows), targets)  # type: ignore[arg-type]

    def differing(self, states: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor) -> Picked:
        """The logits of ``targets`` (n,) at ``states`` (n, width) from the rows ``weight`` (k, width) and ``bias`` (k,)
        of the module's tensors that are ``compared``, in float32 whatever the dtype of the products."""
        assert self.compared is not None
        with uncast(states.device):
            logits = self.logits(states.float(), weight.float(), None if bias is None else bias.float())
        return Picked(logits.float().gather(1, self.compared.index.unsqueeze(1)).squeeze(1), targets)

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
