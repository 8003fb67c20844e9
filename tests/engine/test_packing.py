"""Packed batches: the losses, scores, gradients and derivatives of padded ones, from fewer tokens."""

import pytest
import torch
from transformers import AutoModelForCausalLM, BloomConfig, Gemma3TextConfig

from tests.support.causal import CONFIGS, POINTS, SIZES, batch_of, model_of
from zobench import Batch, Engine, EngineConfig
from zobench.engine.backprop import Backprop
from zobench.engine.base import Entry
from zobench.engine.directions.factors import LowRank
from zobench.engine.passes import packing
from zobench.engine.passes.loss import candidate_scores


def test_a_packed_batch_holds_each_beginning_of_a_row_once() -> None:
    whole = packing.packed(batch_of())
    assert whole is not None
    # 9 + 1 + 2 of the first prompt, 2 + 1 + 2 more of the second, which begins alike, and 5 more of the third
    assert whole.batch.input_ids.shape == (1, 22)


@torch.no_grad()
def rows_alone(model: torch.nn.Module, batch: Batch) -> torch.Tensor:
    """The scores of the candidates from transformers' own forward of each row without its padding."""
    assert batch.choices is not None
    assert batch.attention_mask is not None
    picked = []
    for (row, position), token in zip(batch.choices.places.tolist(), batch.choices.tokens.tolist(), strict=True):
        kept = batch.attention_mask[row].bool()
        logits = model(input_ids=batch.input_ids[row][kept][None]).logits[0]
        at = position - int(batch.attention_mask[row].argmax())
        picked.append(logits[at].float().log_softmax(-1)[token])
    return candidate_scores(torch.stack(picked), batch.choices)


@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize(("dtype", "apart"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-3)])
def test_scores_are_those_of_each_row_by_itself(name: str, left: bool, dtype: torch.dtype, apart: float) -> None:
    batch, expected = batch_of(left=left), rows_alone(model_of(name).to(dtype), batch_of(left=left))
    with Engine(model_of(name).to(dtype), EngineConfig(placement="resident", packed=True)) as engine:
        torch.testing.assert_close(engine.scores(batch), expected, rtol=0, atol=apart)
        assert engine.model.config._attn_implementation == "sdpa"  # as it was


@pytest.mark.parametrize("loss", ["choice", "lm"])
@pytest.mark.parametrize(
    ("settings", "directions"),
    [
        ({"placement": "resident"}, None),
        ({"placement": "resident", "noise": "counter"}, None),
        ({"placement": "resident", "noise": "counter"}, LowRank(2)),
        ({"placement": "offload", "noise": "counter", "granularity": "linear"}, None),
        ({"placement": "offload", "tier": "disk"}, None),
    ],
)
def test_losses_at_points_are_the_padded_ones(settings: dict, directions: LowRank | None, loss: str) -> None:
    batch, losses = batch_of(loss), []
    for packed in (False, True):
        engine = Engine(model_of("llama"), EngineConfig(packed=packed, **settings), directions=directions)
        with engine:
            first = engine.probe(batch, POINTS)
            engine.commit([Entry(step=0, seed=7, g=1.5, lr=1e-2)])
            losses.append([*first, *engine.probe(batch, POINTS)])
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)
    assert losses[1][1] != losses[1][2]


def test_gradients_and_derivatives_are_the_padded_ones() -> None:
    batch, results = batch_of(), []
    for packed in (False, True):
        with Backprop(model_of("llama"), EngineConfig(placement="resident", packed=packed)) as engine:
            loss = engine.backward(batch)
            grads = torch.cat([p.grad.flatten() for p in engine.model.parameters() if p.grad is not None])
        with Engine(model_of("llama"), EngineConfig(placement="resident", packed=packed)) as engine:
            results.append((loss, grads, engine.tangent(batch, 5)))
    (loss, grads, tangent), (packed_loss, packed_grads, packed_tangent) = results
    assert packed_loss == pytest.approx(loss, abs=1e-5)
    torch.testing.assert_close(packed_grads, grads, rtol=1e-3, atol=1e-6)
    assert packed_tangent == pytest.approx(tangent, rel=1e-4)


def test_a_row_longer_than_attention_reaches_is_not_packed() -> None:
    config = Gemma3TextConfig(intermediate_size=64, num_key_value_heads=1, head_dim=16, sliding_window=8, **SIZES)
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(config).eval()
    with Engine(model, EngineConfig(placement="resident", packed=True)) as engine:
        assert engine.packer.driven(batch_of())[0].input_ids.shape[0] == 5


def test_a_model_with_attention_of_its_kind_is_refused_in_a_line() -> None:
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(BloomConfig(vocab_size=96, hidden_size=32, n_layer=2, n_head=2)).eval()
    with pytest.raises(ValueError, match=r"`packed` needs a model whose attention.*BloomForCausalLM.*use packed=false"):
        Engine(model, EngineConfig(placement="resident", packed=True))
