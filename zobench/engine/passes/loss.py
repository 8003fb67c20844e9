"""Losses and scores from hidden states, over chunks of tokens or of the vocabulary: full logits never exist."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from zobench.data.batch import IGNORED, Batch, Choices
from zobench.models import is_masked


def targets_of(model: nn.Module, labels: Tensor) -> Tensor:
    """Returns the token that the output at each position is to predict, flat (batch * tokens,): the label of the next
    position, or with a masked language model of the same one. ``labels`` (batch, tokens), -100 ignored."""
    return labels.reshape(-1) if is_masked(model) else next_tokens(labels)


def next_tokens(labels: Tensor) -> Tensor:
    """Returns the token that the output at each position predicts, flat: ``labels`` (batch, tokens) moved by one, -100
    after the last."""
    return functional.pad(labels[:, 1:], (0, 1), value=IGNORED).reshape(-1)


def counted(model: nn.Module, batch: Batch) -> int:
    """How many tokens or examples the mean loss of ``batch`` is over: its weight among other shards of one batch."""
    if batch.choices is None:
        return int((targets_of(model, batch.labels) != IGNORED).sum())
    choices = batch.choices
    return len(choices.answers) if choices.loss == "choice" else int(torch.isin(choices.owners, choices.answers).sum())


def averaged(model: nn.Module, batch: Batch, count: int, numbers: Callable[[Batch], Sequence[float]]) -> list[float]:
    """Returns ``numbers`` of ``batch``, which are means over the tokens or examples of its loss, computed on ``count``
    micro-batches one after another (gradient accumulation). Raises ``ValueError`` if the examples cannot be cut
    equally."""
    if count == 1:
        return list(numbers(batch))
    shards = [batch.shard(index, count) for index in range(count)]
    weights, rows = [counted(model, shard) for shard in shards], [numbers(shard) for shard in shards]
    rows = [row for weight, row in zip(weights, rows, strict=True) if weight] or rows  # a mean of nothing is no number
    columns, weights = zip(*rows, strict=True), [weight for weight in weights if weight] or [1] * count
    return [sum(map(operator.mul, weights, column)) / sum(weights) for column in columns]


def log_probabilities(head: Callable[[Tensor], Tensor], states: Tensor, targets: Tensor, rows: int) -> Tensor:
    """The log-probability of each of ``targets`` (n,) at ``states`` (n, width), float32 (n,); ``rows`` states at once.

    Of an ignored target it is the log-probability of token 0.
    """
    index = targets.clamp(min=0).unsqueeze(1)
    picked = torch.empty(len(targets), 1, dtype=torch.float32, device=states.device)
    for start in range(0, len(targets), rows):
        chunk = slice(start, start + rows)
        picked[chunk] = functional.log_softmax(head(states[chunk]).float(), dim=-1).gather(1, index[chunk])
    return picked.squeeze(1)


def mean_loss(picked: Tensor, targets: Tensor) -> Tensor:
    """The mean of ``-picked`` (n,) where ``targets`` (n,) are not ignored.

    The log-probabilities of all tokens are reduced once, by the kernel that reduces an unchunked cross-entropy:
    chunking changes no sum.
    """
    counted = torch.where(targets == IGNORED, IGNORED, 0)
    return functional.nll_loss(picked.unsqueeze(1), counted, ignore_index=IGNORED)


def on_cpu(values: Tensor) -> Tensor:
    """``values`` on the CPU; NaN in their place on the meta device, where nothing is computed."""
    return torch.full(values.shape, torch.nan) if values.is_meta else values.cpu()


class Targets:
    """The tokens that several points are to predict: ``values`` (n,), -100 ignored."""

    def __init__(self, values: Tensor) -> None:
        self.values = values
        self._cached: tuple[int, int, Tensor, Tensor] | None = None

    def among(self, first: int, rows: int) -> tuple[Tensor, Tensor]:
        """(n,) which of them are among so many of the vocabulary from ``first`` on, and (n, 1) which of those they
        are, any if they are not. Kept until others are asked for, because each point asks for the same."""
        if self._cached is None or self._cached[:2] != (first, rows):
            index = self.values - first
            self._cached = first, rows, (index >= 0) & (index < rows), index.clamp_(0, rows - 1).unsqueeze(1)
        return self._cached[2:]


class RunningLoss:
    """Log-probabilities from logits that come a few vocabulary rows at a time: maximum and sum of exponentials so far.

    The device holds one such piece of the logits at a time.
    """

    def __init__(self, targets: Targets) -> None:
        self._targets = targets
        count, device = len(targets.values), targets.values.device
        self._maximum = torch.full((count,), -torch.inf, device=device)
        self._sum = torch.zeros(count, device=device)
        self._picked = torch.zeros(count, device=device)

    def add(self, logits: Tensor, first: int) -> None:
        """Takes float32 logits (n, rows) of the vocabulary rows from ``first`` on; they are overwritten."""
        inside, index = self._targets.among(first, logits.shape[1])
        self._picked = torch.where(inside, logits.gather(1, index).squeeze(1), self._picked)
        maximum = torch.maximum(self._maximum, logits.amax(dim=1))
        self._sum.mul_((self._maximum - maximum).exp_())
        self._sum.add_(logits.sub_(maximum.unsqueeze(1)).exp_().sum(dim=1))
        self._maximum = maximum

    def log_probabilities(self) -> Tensor:
        """The log-probability of each target, float32 (n,); of an ignored one, it means nothing."""
        return self._picked - (self._maximum + self._sum.log())

    def mean(self) -> Tensor:
        """The mean loss over the targets that count, float32."""
        counted = self._targets.values != IGNORED
        return torch.where(counted, -self.log_probabilities(), 0.0).sum() / counted.sum()


def candidate_scores(picked: Tensor, choices: Choices) -> Tensor:
    """The score (c,) of each candidate, the mean of its tokens' log-probabilities ``picked`` (n,).

    Source: docs/design/METHODS.md, "Tasks".
    """
    return _rows(picked, choices.owners, 0.0).sum(1) / choices.owners.bincount()


def choice_loss(picked: Tensor, choices: Choices) -> Tensor:
    """The loss of ``choices`` (:class:`~zobench.data.batch.Choices` defines it), of ``picked`` (n,), differentiable.

    For the loss "lm", ``choices`` may be :func:`only_right` of the whole.
    """
    if choices.loss == "lm":
        return -picked[torch.isin(choices.owners, choices.answers)].mean()
    scores = _rows(candidate_scores(picked, choices), choices.groups, -torch.inf)
    return functional.cross_entropy(scores, choices.answers - _starts(choices.groups))


def is_relative(choices: Choices) -> bool:
    """Whether the loss follows from differences of logits: where all candidates of an example are one token each at one
    place, the normaliser of their log-probabilities is the same for all of them, and the softmax over them drops it."""
    first = _starts(choices.groups)[choices.groups]
    single = choices.loss == "choice" and len(choices.tokens) == len(choices.groups)
    return single and bool((choices.places == choices.places[first]).all())


def only_right(choices: Choices) -> Choices:
    """Each example's right candidate alone."""
    kept = torch.isin(choices.owners, choices.answers)
    each, owners = torch.unique(choices.owners[kept], return_inverse=True)
    alone = torch.arange(len(each), device=each.device)
    return Choices(choices.places[kept], choices.tokens[kept], owners, alone, alone, choices.loss)


def _starts(owners: Tensor) -> Tensor:
    """Where each owner's entries begin, (max(owners) + 1,), of ``owners`` (n,) in rising order."""
    counts = owners.bincount()
    return counts.cumsum(0) - counts


def _rows(values: Tensor, owners: Tensor, fill: float) -> Tensor:
    """``values`` (n,) in one row per owner, ended by ``fill``: one sum per row, in one order on every device."""
    return pad_sequence(values.split(owners.bincount().tolist()), batch_first=True, padding_value=fill)
