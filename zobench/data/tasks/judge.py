"""The scores of answers: how many of a batch's choices are right, and their loss; exact match and F1 of generated
texts, as SQuAD defines them."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional

from zobench.data.batch import Choices

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
NO_ANSWER = ("CANNOTANSWER", "no answer")
"""A first right answer that says that there is none: then only the same answer is right."""


@dataclass(frozen=True, slots=True)
class Score:
    """The score of ``count`` examples: ``right`` of them are right; ``loss_sum`` is the sum of their losses, in nats.

    Of answers that were generated ``right`` is the sum of their F1, and ``exact`` of them match exactly. Of plain text
    ``count`` are the tokens that were predicted, and none is right or wrong. ``examples``: of choices whether each is
    right, and its loss.
    """

    right: float = 0
    count: int = 0
    loss_sum: float = 0.0
    exact: float = 0
    examples: tuple[tuple[bool, float], ...] = field(default=(), compare=False, repr=False)

    def __add__(self, other: Score) -> Score:
        return Score(
            self.right + other.right, self.count + other.count, self.loss_sum + other.loss_sum,
            self.exact + other.exact, self.examples + other.examples,
        )  # fmt: skip


def judge(choices: Choices, scores: Tensor, right: Sequence[Sequence[int]] | None = None) -> Score:
    """Judges ``scores`` (c,), the mean log-probability of each candidate's tokens.

    The highest score is the choice, the first of equal ones; a score that is not a number makes its example wrong.
    ``right``: of each example the candidates that count as right, numbered within it; none: its answer alone. The
    loss of an example: "choice", the cross-entropy over its scores; "lm", the right candidate's mean negative
    log-probability per token.
    """
    scores, groups = scores.double().cpu(), choices.groups.cpu()
    total = Score()
    for example, answer in enumerate(choices.answers.tolist()):
        members = (groups == example).nonzero().squeeze(1)
        first = int(members[0])
        candidate_scores, trained = scores[members], answer - first
        loss = (
            functional.cross_entropy(candidate_scores, torch.tensor(trained))
            if choices.loss == "choice"
            else -candidate_scores[trained]
        )
        wins = any(_wins(candidate_scores, candidate) for candidate in (right[example] if right else ()) or (trained,))
        total += Score(int(wins), 1, float(loss), examples=((wins, float(loss)),))
    return total


def _wins(scores: Tensor, candidate: int) -> bool:
    """Whether ``candidate`` is the first of those with the highest score."""
    return bool((scores[candidate] > scores[:candidate]).all() and (scores[candidate] >= scores[candidate:]).all())


def normalized(text: str) -> str:
    """``text`` in lower case without punctuation and articles, its words apart by one space."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(answer: str, golds: Sequence[str]) -> float:
    """1.0 if ``answer`` is one of ``golds`` when both are normalized, else 0.0."""
    return float(normalized(answer) in map(normalized, golds))


def f1(answer: str, golds: Sequence[str]) -> float:
    """The greatest F1 of the words of ``answer`` and of one of ``golds``, as bags of normalized words."""
    if golds[0] in NO_ANSWER:
        return float(normalized(answer) == normalized(golds[0]))
    return max(_overlap(normalized(answer).split(), normalized(gold).split()) for gold in golds)


def _overlap(words: Sequence[str], wanted: Sequence[str]) -> float:
    common = (Counter(words) & Counter(wanted)).total()
    if not common:
        return 0.0
    precision, recall = common / len(words), common / len(wanted)
    return 2 * precision * recall / (precision + recall)
