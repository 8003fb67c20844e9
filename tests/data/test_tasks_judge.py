"""Judging scores: by hand, ties, what is not a number, and NumPy's argmax."""

import re
import string
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from zobench.data.batch import Choices
from zobench.data.tasks.judge import Score, exact_match, f1, judge


def choices(sizes: Sequence[int], answers: Sequence[int], loss: str = "choice") -> Choices:
    total = sum(sizes)
    groups = [example for example, size in enumerate(sizes) for _ in range(size)]
    starts = np.cumsum([0, *sizes[:-1]])
    places = torch.zeros(total, 2, dtype=torch.int64)
    right = torch.tensor([int(start) + answer for start, answer in zip(starts, answers, strict=True)])
    return Choices(
        places, torch.zeros(total, dtype=torch.int64), torch.arange(total), torch.tensor(groups), right, loss
    )


def test_judging_by_hand() -> None:
    question = choices([2, 3], [1, 0])
    verdict = judge(question, torch.tensor([-2.0, -1.0, -3.0, -1.0, -2.0]))
    softmax = [np.log(1 + np.exp(-1)), np.log(np.exp([-3.0, -1, -2]).sum()) + 3]
    assert (verdict.right, verdict.count) == (1, 2)
    assert verdict.loss_sum == pytest.approx(sum(softmax), rel=1e-6)
    assert [right for right, _ in verdict.examples] == [True, False]
    assert [loss for _, loss in verdict.examples] == pytest.approx(softmax, rel=1e-6)
    assert (verdict + verdict).examples == verdict.examples * 2
    verdict = judge(choices([2, 3], [1, 0], "lm"), torch.tensor([-2.0, -1.0, -3.0, -1.0, -2.0]))
    assert verdict == Score(1, 2, 4.0)
    assert Score(1, 2, 4.0) + Score(0, 1, 0.5) == Score(1, 3, 4.5)


def test_the_first_of_equal_scores_is_the_choice_and_nan_is_never_right() -> None:
    tied = torch.tensor([-1.0, -1.0])
    assert [judge(choices([2], [answer]), tied).right for answer in (0, 1)] == [1, 0]
    for answer in (0, 1):
        for bad in (0, 1):
            broken = torch.tensor([-1.0, -1.0])
            broken[bad] = torch.nan
            verdict = judge(choices([2], [answer]), broken)
            assert (verdict.right, verdict.count) == (0, 1)
            assert np.isnan(verdict.loss_sum)


@pytest.mark.parametrize(
    ("answer", "golds", "em", "overlap"),
    [
        ("The tower", ["tower", "x"], 1.0, 1.0),
        ("blue", ["red", "green"], 0.0, 0.0),
        ("U.S.A.", ["an usa"], 1.0, 1.0),
        ("one two", ["one", "one two three"], 0.0, 0.8),
        ("no answer", ["no answer", "red"], 1.0, 1.0),
        ("red", ["CANNOTANSWER", "red"], 1.0, 0.0),
    ],
)
def test_known_scores(answer: str, golds: list[str], em: float, overlap: float) -> None:
    assert (exact_match(answer, golds), f1(answer, golds)) == (em, pytest.approx(overlap))


def by_definition(answer: str, gold: str) -> float:
    """Harmonic mean of precision and recall of the words in common, as the evaluation of SQuAD 1.1 defines it."""
    scores, wanted = (
        re.sub(r"\b(a|an|the)\b", " ", "".join(c for c in text.lower() if c not in set(string.punctuation))).split()
        for text in (answer, gold)
    )
    same = sum((Counter(scores) & Counter(wanted)).values())
    return 2 * same / (len(scores) + len(wanted)) if same else 0.0


texts = st.lists(st.sampled_from(["The", "a", "red", "Red.", "dog", "dogs", "two-three", "."]), max_size=6).map(
    " ".join
)


@given(texts, st.lists(texts, min_size=1, max_size=3))
def test_f1_is_that_of_the_definition(answer: str, golds: list[str]) -> None:
    assert f1(answer, golds) == pytest.approx(max(by_definition(answer, gold) for gold in golds))


def test_any_of_several_right_candidates_is_right() -> None:
    owners = torch.arange(4)
    places, tokens = torch.zeros(4, 2, dtype=torch.int64), torch.zeros(4, dtype=torch.int64)
    choices = Choices(places, tokens, owners, torch.tensor([0, 0, 0, 1]), torch.tensor([0, 3]), "lm")
    for scores, right in (([0.1, 0.2, 0.3], 2), ([0.3, 0.2, 0.1], 2), ([0.1, 0.3, 0.3], 1), ([0.3, 0.3, 0.3], 2)):
        assert judge(choices, torch.tensor([*scores, 0.0]), [(0, 2), ()]).right == right
    assert judge(choices, torch.tensor([0.1, 0.2, 0.3, 0.0])).right == 1
