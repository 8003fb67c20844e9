"""Losses and scores over candidates, from the log-probabilities of their tokens."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from zobench.data.batch import Choices
from zobench.engine.passes.loss import candidate_scores, choice_loss, only_right

shapes = st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=4), min_size=1, max_size=4)


@given(shapes, st.randoms(use_true_random=False), st.sampled_from(["choice", "lm"]))
def test_scores_and_losses_equal_plain_loops_for_any_number_of_candidates_and_tokens(shape, random, loss):
    """``shape``: for each example, the number of tokens of each of its candidates."""
    values = [[[-5 * random.random() for _ in range(count)] for count in example] for example in shape]
    rights = [random.randrange(len(example)) for example in shape]
    firsts = list(itertools.accumulate(map(len, shape[:-1]), initial=0))
    flat = [logs for example in values for logs in example]
    owners = torch.tensor([n for n, logs in enumerate(flat) for _ in logs])
    choices = Choices(
        places=torch.stack([owners, torch.arange(len(owners))], 1),
        tokens=torch.arange(len(owners)),
        owners=owners,
        groups=torch.tensor([n for n, example in enumerate(shape) for _ in example]),
        answers=torch.tensor([first + right for first, right in zip(firsts, rights, strict=True)]),
        loss=loss,
    )
    picked = torch.tensor([value for logs in flat for value in logs], dtype=torch.float64, requires_grad=True)
    scores = [[sum(logs) / len(logs) for logs in example] for example in values]
    assert candidate_scores(picked, choices).tolist() == pytest.approx([s for example in scores for s in example])
    chosen = [example[right] for example, right in zip(values, rights, strict=True)]
    if loss == "lm":
        expected = -sum(map(sum, chosen)) / sum(map(len, chosen))
    else:
        pairs = zip(scores, rights, strict=True)
        expected = sum(math.log(sum(map(math.exp, each))) - each[right] for each, right in pairs) / len(shape)
    computed = choice_loss(picked, choices)
    assert computed.item() == pytest.approx(expected)
    assert torch.autograd.gradcheck(lambda logs: choice_loss(logs, choices), (picked,))
    if loss == "lm":
        alone = only_right(choices)
        assert alone.groups.tolist() == alone.answers.tolist() == list(range(len(shape)))
        assert alone.tokens.tolist() == [n for n in range(len(owners)) if owners[n] in choices.answers]
        assert torch.equal(choice_loss(picked[alone.tokens], alone), computed)
