"""Losses over candidates of one token each, which need the head's rows of these tokens alone."""

import copy
from typing import Any

import pytest
import torch
from torch.nn import functional

from tests.support.causal import POINTS, model_of, with_bias
from zobench import Batch, Engine, EngineConfig
from zobench.data.batch import IGNORED, Choices
from zobench.engine.base import Entry
from zobench.engine.directions.factors import LowRank
from zobench.engine.directions.pristine import Pristine
from zobench.engine.passes import head
from zobench.engine.passes.loss import is_relative
from zobench.engine.updates.rules import Adam

TOKENS = [60, 61, 7, 60, 61, 7]
"""The candidates of both examples."""


def batch_of(answers: tuple[int, int] = (1, 3)) -> Batch:
    """Two examples of 6 and 4 tokens, padded at the left, with three candidates of one token each."""
    rows = [[10, 11, 12, 13, 14, 15], [20, 21, 22, 23]]
    ids = torch.tensor([rows[0], [0, 0, *rows[1]]])
    mask = torch.ones_like(ids)
    mask[1, :2] = 0
    places, index = torch.tensor([[0, 5]] * 3 + [[1, 5]] * 3), torch.arange(6)
    choices = Choices(places, torch.tensor(TOKENS), index, index // 3, torch.tensor(answers))
    return Batch(ids, torch.full_like(ids, IGNORED), mask, choices)


def losses_and_weights(name: str, how: dict[str, Any], more: dict[str, Any], steps: int = 3) -> tuple[Any, ...]:
    """Losses at three points in each of some steps, and the weights after them."""
    losses, model = [], with_bias() if name == "phi" else model_of(name)
    with Engine(model, EngineConfig(**how), **more) as engine:
        for step in range(steps):
            losses += engine.probe(batch_of(), POINTS)
            engine.commit([Entry(step=step, seed=7, g=0.5, lr=1e-2, weight_decay=0.1)])
        losses.append(engine.evaluate(batch_of()))
        return losses, dict(engine.named_tensors())


@pytest.mark.parametrize(
    ("how", "more"),
    [
        ({"placement": "resident"}, {}),
        ({"placement": "resident", "writeback_every": 2, "packed": True}, {}),
        ({"granularity": "linear", "writeback_every": "inf"}, {}),
        ({"placement": "resident"}, {"rule": Adam()}),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["llama", "opt", "phi"])  # of these OPT's head is tied, and Phi's has a bias
def test_losses_are_those_over_the_whole_vocabulary_and_updates_the_same(name, how, more, monkeypatch) -> None:
    how = {"noise": "counter", **how}
    with monkeypatch.context() as whole:
        whole.setattr(head, "is_relative", lambda choices: False)
        expected, weights = losses_and_weights(name, how, more)
    monkeypatch.setattr(Pristine, "part", None)  # no other row is perturbed
    losses, same = losses_and_weights(name, how, more)
    assert losses == pytest.approx(expected, abs=1e-5)
    assert len(set(losses)) == len(losses)
    for key, tensor in weights.items():
        assert torch.equal(same[key], tensor), key


@pytest.mark.parametrize(
    ("dtype", "autocast", "more"),
    [
        ("float32", "none", {}),
        ("bfloat16", "none", {}),
        ("float32", "bf16", {}),
        ("float32", "none", {"directions": LowRank(2)}),
    ],
    ids=str,
)
@torch.no_grad()
def test_the_loss_is_that_of_transformers_states_in_float32(dtype: str, autocast: str, more: dict[str, Any]) -> None:
    """Whatever the dtype of the products: logits of 16 in bf16 would be a sixteenth apart. Along directions of low rank
    it comes from logits of the whole vocabulary."""
    model, batch = model_of("llama").to(getattr(torch, dtype)), batch_of()
    model.lm_head.weight.mul_(40)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast != "none"):
        states = model.model(input_ids=batch.input_ids, attention_mask=batch.attention_mask).last_hidden_state[:, -1]
    logits = (states.float() @ model.lm_head.weight.float().T)[:, TOKENS[:3]]
    expected = float(functional.cross_entropy(logits, torch.tensor([1, 0])))
    config = EngineConfig(placement="resident", noise="counter", autocast=autocast)
    with Engine(copy.deepcopy(model), config, **more) as engine:
        assert engine.evaluate(batch) == pytest.approx(expected, abs=1e-5)


def test_only_candidates_of_one_token_at_one_place_are_compared() -> None:
    choices = batch_of().choices
    assert choices is not None
    assert is_relative(choices)
    places, index = choices.places.clone(), torch.arange(6)
    places[4, 1] = 4  # behind another context
    answers, groups = choices.answers, choices.groups
    assert not is_relative(Choices(places, choices.tokens, index, groups, answers))
    assert not is_relative(Choices(choices.places, choices.tokens, index, groups, answers, "lm"))
    owners, three = torch.tensor([0, 0, 1, 2, 2, 3]), torch.tensor([0, 0, 1, 1])
    assert not is_relative(Choices(choices.places, choices.tokens, owners, three, torch.tensor([0, 2])))
