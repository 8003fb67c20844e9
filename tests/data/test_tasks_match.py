"""Exact match and F1 against the definition of SQuAD's evaluation, written out by hand."""

from __future__ import annotations

import re
import string
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zobench.data.batch import Choices
from zobench.data.tasks.judge import exact_match, f1, judge, normalized


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("The  Eiffel Tower!", "eiffel tower"), ("a an the", ""), ("theatre", "theatre"), ("U.S.A.", "usa"),
        ("an-other", "another"), ("\tThe\nend. ", "end"), ("«Ä» the", "«ä»"),
    ],
)  # fmt: skip
def test_texts_are_normalized(text: str, wanted: str) -> None:
    assert normalized(text) == wanted


@pytest.mark.parametrize(
    ("answer", "golds", "em", "overlap"),
    [
        ("The tower", ["tower", "x"], 1.0, 1.0),
        ("big red tower", ["red tower"], 0.0, 0.8),
        ("red red", ["red"], 0.0, 2 / 3),
        ("blue", ["red", "green"], 0.0, 0.0),
        ("", ["red"], 0.0, 0.0),
        ("one two", ["one", "one two three"], 0.0, 0.8),
        ("no answer", ["no answer", "red"], 1.0, 1.0),
        ("red", ["CANNOTANSWER", "red"], 1.0, 0.0),
    ],
)
def test_known_scores(answer: str, golds: list[str], em: float, overlap: float) -> None:
    assert (exact_match(answer, golds), f1(answer, golds)) == (em, pytest.approx(overlap))


def by_definition(answer: str, gold: str) -> float:
    """Harmonic mean of precision and recall of the words in common, as the evaluation of SQuAD 1.1 defines it."""
    found, wanted = (
        re.sub(r"\b(a|an|the)\b", " ", "".join(c for c in text.lower() if c not in set(string.punctuation))).split()
        for text in (answer, gold)
    )
    same = sum((Counter(found) & Counter(wanted)).values())
    return 2 * same / (len(found) + len(wanted)) if same else 0.0


texts = st.lists(st.sampled_from(["The", "a", "red", "Red.", "dog", "dogs", "two-three", "."]), max_size=6).map(
    " ".join
)


@given(texts, st.lists(texts, min_size=1, max_size=3))
def test_f1_is_that_of_the_definition(answer: str, golds: list[str]) -> None:
    assert f1(answer, golds) == pytest.approx(max(by_definition(answer, gold) for gold in golds))


def test_any_of_several_right_candidates_is_right() -> None:
    import torch

    owners = torch.arange(4)
    places, tokens = torch.zeros(4, 2, dtype=torch.int64), torch.zeros(4, dtype=torch.int64)
    choices = Choices(places, tokens, owners, torch.tensor([0, 0, 0, 1]), torch.tensor([0, 3]), "lm")
    for scores, right in (([0.1, 0.2, 0.3], 2), ([0.3, 0.2, 0.1], 2), ([0.1, 0.3, 0.3], 1), ([0.3, 0.3, 0.3], 2)):
        assert judge(choices, torch.tensor([*scores, 0.0]), [(0, 2), ()]).right == right
    assert judge(choices, torch.tensor([0.1, 0.2, 0.3, 0.0])).right == 1
