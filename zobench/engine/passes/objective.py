"""The objective of a batch: the target tokens and their positions, and the loss from their log-probabilities."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from zobench.data.batch import Batch
from zobench.engine.passes.head import Compared, Judged
from zobench.engine.passes.loss import candidate_scores, choice_loss, is_relative, only_right, targets_of


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
        """What the head multiplies for each target, (n, width), of each copy's head input (rows, tokens, width)."""
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
