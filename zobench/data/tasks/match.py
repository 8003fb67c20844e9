"""How well a text that was generated answers a question: exact match and F1, as SQuAD defines them."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
NO_ANSWER = ("CANNOTANSWER", "no answer")
"""A first right answer that says that there is none: then only the same answer is right."""


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
