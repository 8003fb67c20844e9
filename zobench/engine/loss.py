"""The causal loss from hidden states, over chunks of tokens, so that full logits never exist."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

IGNORED = -100
"""Label of a token that does not count."""


def causal_loss(head: Callable[[Tensor], Tensor], hidden: Tensor, labels: Tensor, rows: int) -> Tensor:
    """Mean negative log-likelihood of the next token, float32, as ``transformers`` computes it from full logits.

    ``hidden`` (batch, tokens, width), ``labels`` (batch, tokens) with -100 ignored, ``rows`` tokens per chunk. The
    log-probabilities of all tokens are collected first and reduced once, by the kernel that reduces an unchunked
    cross-entropy: chunking changes no sum.
    """
    targets = functional.pad(labels[:, 1:], (0, 1), value=IGNORED).reshape(-1)
    states = hidden.reshape(-1, hidden.shape[-1])
    index = targets.clamp(min=0).unsqueeze(1)
    picked = torch.empty(len(targets), 1, dtype=torch.float32, device=hidden.device)
    for start in range(0, len(targets), rows):
        chunk = slice(start, start + rows)
        picked[chunk] = functional.log_softmax(head(states[chunk]).float(), dim=-1).gather(1, index[chunk])
    return functional.nll_loss(picked, torch.where(targets == IGNORED, IGNORED, 0), ignore_index=IGNORED)


def rows_per_chunk(vocabulary: int, logits_bytes: int) -> int:
    """Tokens whose float32 logits fit ``logits_bytes``: a multiple of 64 where that is possible, at least 1."""
    rows = logits_bytes // (4 * vocabulary)
    return max(rows // 64 * 64, min(rows, 64), 1)


class RunningLoss:
    """The same loss from logits that come a few vocabulary rows at a time: maximum and sum of exponentials so far.

    ``labels`` (batch, tokens) as for :func:`causal_loss`. The device holds one such piece of the logits at a time.
    """

    def __init__(self, labels: Tensor) -> None:
        self._targets = functional.pad(labels[:, 1:], (0, 1), value=IGNORED).reshape(-1)
        count, device = len(self._targets), labels.device
        self._maximum = torch.full((count,), -torch.inf, device=device)
        self._sum = torch.zeros(count, device=device)
        self._picked = torch.zeros(count, device=device)

    def add(self, logits: Tensor, first: int) -> None:
        """Takes float32 logits (tokens, rows) of the vocabulary rows from ``first`` on; they are overwritten."""
        inside = (self._targets >= first) & (self._targets < first + logits.shape[1])
        index = (self._targets - first).clamp(0, logits.shape[1] - 1)
        picked = logits.gather(1, index.unsqueeze(1)).squeeze(1)
        self._picked = torch.where(inside, picked, self._picked)
        maximum = torch.maximum(self._maximum, logits.amax(dim=1))
        self._sum.mul_((self._maximum - maximum).exp_())
        self._sum.add_(logits.sub_(maximum.unsqueeze(1)).exp_().sum(dim=1))
        self._maximum = maximum

    def mean(self) -> Tensor:
        """The mean over the tokens that count, float32."""
        counted = self._targets != IGNORED
        losses = torch.where(counted, self._maximum + self._sum.log() - self._picked, 0.0)
        return losses.sum() / counted.sum()
