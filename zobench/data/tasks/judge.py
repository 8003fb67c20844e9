"""What scores say about a batch of choices: how many are right, and their loss."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from zobench.data.batch import Choices


@dataclass(frozen=True, slots=True)
class Score:
    """Of ``count`` examples ``right`` are right; ``loss_sum`` is the sum of their losses, in nats. They add up."""

    right: int = 0
    count: int = 0
    loss_sum: float = 0.0

    def __add__(self, other: Score) -> Score:
        return Score(self.right + other.right, self.count + other.count, self.loss_sum + other.loss_sum)


def judge(choices: Choices, scores: Tensor) -> Score:
    """Judges ``scores`` (c,), the mean log-probability of each candidate's tokens.

    The highest score is the choice, the first of equal ones; a score that is not a number makes its example wrong. The
    loss of an example: "choice", the cross-entropy over its scores; "lm", the right candidate's mean negative
    log-probability per token.
    """
    scores, groups = scores.double().cpu(), choices.groups.cpu()
    total = Score()
    for example, answer in enumerate(choices.answers.tolist()):
        members = (groups == example).nonzero().squeeze(1)
        first = int(members[0])
        own, right = scores[members], answer - first
        loss = functional.cross_entropy(own, torch.tensor(right)) if choices.loss == "choice" else -own[right]
        wins = bool((own[right] > own[:right]).all() and (own[right] >= own[right:]).all())
        total += Score(int(wins), 1, float(loss))
    return total
