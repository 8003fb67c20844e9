"""Kernels of attention: each against the formula in float64, engines with them against transformers' own losses."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from tests.support.candidates import POINTS, batch_of
from tests.support.causal import CONFIGS, model_of
from zobench import Engine, EngineConfig
from zobench.engine import attention
from zobench.engine.attention import FUSED, KERNELS, PRODUCTS, Shape
from zobench.engine.factors import LowRank

EVERY = {name: ((1 << 20, name),) for name in KERNELS}


def formula(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    """softmax(Q K^T / sqrt(width) + mask) V in float64, (b, t, heads, width); causal without a mask."""
    each = query.shape[1] // key.shape[1]
    query, key, value = (
        query.double(),
        key.double().repeat_interleave(each, 1),
        value.double().repeat_interleave(each, 1),
    )
    length = query.shape[2]
    seen = torch.ones(length, length, dtype=torch.bool).tril() if mask is None else mask
    scores = torch.einsum("bhqw,bhkw->bhqk", query, key) / query.shape[-1] ** 0.5
    return torch.einsum("bhqk,bhkw->bqhw", scores.masked_fill(~seen, -torch.inf).softmax(-1), value)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-6), (torch.bfloat16, 2e-2), (torch.float16, 3e-3)])
@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_is_the_formula(
    name: str, dtype: torch.dtype, bound: float, masked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "SCORES", 300)  # several blocks of rows and of queries
    monkeypatch.setattr(attention, "QUERIES", 4)
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(3, heads, 11, 8, generator=generator).to(dtype) for heads in (6, 2, 2))
    mask = None
    if masked:  # the first row is padded by three tokens; what padding sees is read by no one, but it must be a number
        mask = torch.ones(11, 11, dtype=torch.bool).tril().repeat(3, 1, 1, 1)
        mask[0, :, :, :3] = False
    module = SimpleNamespace(num_key_value_groups=3, is_causal=True)
    made = KERNELS[name](module, query, key, value, mask)
    assert (made.dtype, made.shape) == (dtype, (3, 11, 6, 8))
    assert bool(made.isfinite().all())
    first = 3 if masked else 0
    torch.testing.assert_close(
        made.double()[:, first:], formula(query, key, value, mask)[:, first:], rtol=0, atol=bound
    )


def test_a_mask_that_is_added_is_that_of_truth_values() -> None:
    query = torch.randn(2, 2, 5, 4, generator=torch.Generator().manual_seed(0))
    seen = torch.ones(5, 5, dtype=torch.bool).tril()[None, None]
    added = torch.zeros(1, 1, 5, 5).masked_fill(~seen, torch.finfo(torch.float32).min)
    module = SimpleNamespace(num_key_value_groups=1, is_causal=True)
    expected = KERNELS[PRODUCTS](module, query, query, query, seen)
    assert torch.equal(KERNELS[PRODUCTS](module, query, query, query, added), expected)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", CONFIGS)
def test_losses_are_those_of_the_models_own_attention(name: str, packed: bool) -> None:
    losses = []
    for choice in ((), EVERY[PRODUCTS]):
        config = EngineConfig(placement="resident", noise="counter", attention=choice, packed=packed)
        with Engine(model_of(name), config, directions=LowRank(2)) as engine:
            losses.append(engine.probe(batch_of(), POINTS))
            assert engine.model.config._attn_implementation == "sdpa"  # as it was
    assert losses[1] == pytest.approx(losses[0], abs=1e-5)


def test_in_16_bits_losses_are_as_near_float32s_as_with_the_models_own_attention() -> None:
    losses = {}
    for dtype, choice in (
        (torch.float32, ()),
        (torch.bfloat16, ()),
        *((torch.bfloat16, one) for one in EVERY.values()),
    ):
        with Engine(model_of("llama").to(dtype), EngineConfig(placement="resident", attention=choice)) as engine:
            losses[dtype, choice] = engine.evaluate(batch_of())
    exact = losses.pop((torch.float32, ()))
    for key, loss in losses.items():
        assert loss == pytest.approx(exact, abs=5e-3), key


def test_the_kernel_follows_from_the_length_of_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {(FUSED, 32): 1.0, (PRODUCTS, 512): 1.0, (PRODUCTS, 128): 1.0}
    monkeypatch.setattr(attention, "seconds", lambda name, shape, length: seconds.get((name, length), 2.0 + len(name)))
    monkeypatch.setattr(attention, "_CHOICES", {})
    shape = Shape(torch.bfloat16, 4, 2, 8)
    choice = attention.choice_of(shape)
    assert choice == ((32, FUSED), (512, PRODUCTS), (2048, FUSED))
    assert [attention.kernel_for(choice, length) for length in (7, 33, 512, 513, 4096)] == [
        FUSED, PRODUCTS, PRODUCTS, FUSED, FUSED,
    ]  # fmt: skip
    assert attention.described(choice) == (
        "attention: fused up to 32 tokens, products up to 512 tokens, fused above (measured)"
    )
    attention.adopt(shape, [[2048, PRODUCTS]])
    assert attention.choice_of(shape) == ((2048, PRODUCTS),)


def test_every_kernel_is_timed() -> None:
    assert all(0 < attention.seconds(name, Shape(torch.bfloat16, 2, 1, 8), 32) < 60 for name in KERNELS)
