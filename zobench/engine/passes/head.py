"""The head of a model: hidden states and targets become log-probabilities, a few tokens or vocabulary rows at a time.

The way from a batch to its loss is here once: :class:`Objective` chooses the targets and their states, the head
computes their log-probabilities, and the objective the loss from these.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor, nn
from torch.nn import functional

from zobench.data.batch import Batch
from zobench.engine.base import HEAD_BYTES as HEAD_BYTES
from zobench.engine.base import rows_per_chunk
from zobench.engine.directions.factor_rules import uncast
from zobench.engine.passes.drive import Note, finished
from zobench.engine.passes.loss import (
    candidate_scores,
    choice_loss,
    is_relative,
    log_probabilities,
    mean_loss,
    only_right,
    targets_of,
)
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
        """Returns the log-probability of each target, float32 (n,), up to a number that targets at one place share
        where the head's targets are :class:`Compared`; that of an ignored target has no meaning."""

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
        """Returns the log-probabilities of ``targets`` (n,) at ``states`` (n, width), by the module as it is bound
        now."""
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


class Objective:
    """The targets (n,) of ``batch`` on ``device``: of all its positions, or with choices of their tokens alone.

    ``scored``: every candidate counts, also where the loss needs the right ones only; then ``batch`` must have choices.
    ``judged_on``: where the loss of choices is computed from their log-probabilities. ``compared``: the only tokens
    whose logits the loss needs, or None where it needs those of the whole vocabulary. Raises ``ValueError`` for what is
    no batch.
    """

    def __init__(
        self, model: nn.Module, batch: Batch, device: str, *, scored: bool = False, judged_on: str = "cpu"
    ) -> None:
        if not isinstance(batch, Batch):
            raise ValueError(
                f"`batch` must be a zobench.Batch, but got {type(batch).__name__}; build Batch(ids, labels)"
            )
        if scored and batch.choices is None:
            raise ValueError(
                "`batch.choices` must be given to score candidates, but got none; give Batch(..., choices=...)"
            )
        self._positions = None
        self.compared: Compared | None = None
        self.choices = None if batch.choices is None else batch.choices.to(judged_on)
        if self.choices is None:
            self.targets = targets_of(model, batch.labels.to(device))
            return
        if self.choices.loss == "lm" and not scored:
            self.choices = only_right(self.choices)
        self._positions, self.targets = self.choices.places.to(device), self.choices.tokens.to(device)
        if not scored and is_relative(self.choices):
            tokens, index = self.choices.tokens.unique(return_inverse=True)
            self.compared = Compared(tokens.to(device), index.to(device))

    def states(self, copies: Sequence[Tensor]) -> list[Tensor]:
        """Returns the states that the head multiplies, (n, width), one for each target, of each copy's head input
        (rows, tokens, width)."""
        positions = self._positions
        if positions is None:
            return [copy.reshape(-1, copy.shape[-1]) for copy in copies]
        return [copy[positions[:, 0], positions[:, 1]] for copy in copies]

    def reduced(self, judged: Judged) -> Tensor:
        """The mean loss (), or with choices the log-probabilities (n,) that :meth:`loss` is made from; those that are
        ``compared`` up to a number that is the same for all candidates of an example."""
        return judged.mean() if self.choices is None else judged.log_probabilities()

    def loss(self, reduced: Tensor) -> Tensor:
        """The batch's mean loss, from what :meth:`reduced` gave, where choices are judged."""
        return reduced if self.choices is None else choice_loss(reduced, self.choices)

    def scores(self, reduced: Tensor) -> Tensor:
        """The score of each candidate (c,)."""
        assert self.choices is not None
        return candidate_scores(reduced, self.choices)
