"""Kernels of attention: each against the formula in float64, engines with them against transformers' own losses."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from tests.support.causal import CONFIGS, POINTS, batch_of, model_of
from zobench import Engine, EngineConfig
from zobench.engine.directions.factors import LowRank
from zobench.engine.passes import attention, packing
from zobench.engine.passes.attention import FUSED, KERNELS, PRODUCTS, Choice, Shape

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
def test_a_kernel_is_the_formula(name, dtype, bound, masked, monkeypatch) -> None:
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


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The kernel and the length of the rows of each call of attention."""
    seen: list[tuple[str, int]] = []

    def counted(name: str, kernel: Any) -> Any:
        return lambda module, query, *given, **options: (
            seen.append((name, query.shape[2])) or kernel(module, query, *given, **options)  # type: ignore[func-returns-value]
        )

    monkeypatch.setattr(attention, "KERNELS", {name: counted(name, kernel) for name, kernel in KERNELS.items()})
    return seen


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", CONFIGS)
def test_losses_are_those_of_the_models_own_attention_and_the_chosen_kernel_runs(name, packed, calls) -> None:
    """Once in each layer of a pass, where a choice is for rows as long as these or longer, and never without a choice
    but for the rows of a packed batch, which are zobench's own."""
    layers, losses = model_of(name).config.num_hidden_layers, []
    width = 11 if packed else 12  # the longest row, and its width with padding
    choices: dict[Choice, str] = {(): FUSED, ((width - 1, FUSED), (4096, PRODUCTS)): PRODUCTS, EVERY[FUSED]: FUSED}
    for choice, kernel in choices.items():
        config = EngineConfig(placement="resident", noise="counter", attention=choice, packed=packed)
        with Engine(model_of(name), config, directions=LowRank(2)) as engine:
            calls.clear()
            losses.append(engine.probe(batch_of(), POINTS))
            assert calls == ([(kernel, width)] * layers if packed or choice else []), choice
            assert engine.model.config._attn_implementation == "sdpa"  # as it was
    for loss in losses[1:]:
        assert loss == pytest.approx(losses[0], abs=1e-5)


def test_in_16_bits_losses_are_as_near_float32s_as_with_the_models_own_attention() -> None:
    losses = {}
    for dtype, choice in (
        (torch.float32, ()),
        (torch.bfloat16, ()),
        *((torch.bfloat16, kernel) for kernel in EVERY.values()),
    ):
        with Engine(model_of("llama").to(dtype), EngineConfig(placement="resident", attention=choice)) as engine:
            losses[dtype, choice] = engine.evaluate(batch_of())
    exact = losses.pop((torch.float32, ()))
    for key, loss in losses.items():
        assert loss == pytest.approx(exact, abs=5e-3), key


def test_the_kernel_follows_from_the_length_of_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {(FUSED, 32): 1.0, (PRODUCTS, 512): 1.0, (PRODUCTS, 128): 1.0}
    monkeypatch.setattr(attention, "seconds", lambda name, shape, length: seconds.get((name, length), 2.0 + len(name)))
    shape = Shape(torch.bfloat16, 4, 2, 8)
    attention.choice_of.cache_clear()
    choice = attention.choice_of(shape)
    assert choice == ((32, FUSED), (512, PRODUCTS), (2048, FUSED))
    assert [attention.kernel_for(choice, length) for length in (7, 33, 512, 513, 4096)] == [
        FUSED, PRODUCTS, PRODUCTS, FUSED, FUSED,
    ]  # fmt: skip
    attention.choice_of.cache_clear()


def test_a_model_that_one_kernel_would_get_wrong_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Although rows of a small twin are so short that the choice has another kernel for them."""

    def wrong(*given: Any, **options: Any) -> Tensor:
        return 2 * KERNELS[FUSED](*given, **options)

    class Another(LlamaForCausalLM):  # no registered class, so it is compared with a twin
        pass

    monkeypatch.setattr(attention, "KERNELS", {FUSED: KERNELS[FUSED], PRODUCTS: wrong})
    choice = ((128, FUSED), (2048, PRODUCTS))
    with pytest.raises(ValueError, match="an engine must give the model's own loss, but of Another it gives"):
        Engine(Another(model_of("llama").config), EngineConfig(placement="resident", attention=choice))
    with pytest.raises(ValueError, match=r"packed logits of Another are .* from those of its rows"):
        packing.check(Another(model_of("llama").config))
