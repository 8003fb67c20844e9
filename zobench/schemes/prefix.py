"""Prefix tuning: in every layer 5 keys and values before the tokens' own are tuned.

Source: docs/design/METHODS.md, "What is tuned".
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer

from zobench.data.batch import Batch
from zobench.engine.base import BASE, EngineConfig
from zobench.engine.core import Engine
from zobench.engine.passes.drive import call
from zobench.models.weights import Weights
from zobench.runspec import RunSpec
from zobench.schemes import PREFIX_TOKENS as TOKENS
from zobench.schemes.base import Adapter, check_positions, extended, real_tokens, virtual_ids

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Prefix(Adapter):
    """``peft``'s prefix encoder, without its projection, as a module of the model, ``prompt_encoder``.

    It starts as the keys and values that the base itself computes for 5 real tokens.
    """

    virtual_tokens = TOKENS

    def __init__(self, spec: RunSpec, model: PreTrainedModel) -> None:
        from peft import PrefixTuningConfig

        _check(spec, model)
        check_positions(spec, model, TOKENS)
        self._plain = copy.deepcopy(model)  # on the meta device: it holds no weights
        self._tokens = real_tokens(model, TOKENS, spec.seed, "prefix")
        config = PrefixTuningConfig(num_virtual_tokens=TOKENS)
        super().__init__(spec, model, config)
        heads = cast("int", config.num_attention_heads)  # peft has set both; the heads are those of keys and values
        self._head = heads, config.token_dim // heads
        self.drive = self._drive

    def values(self, base: Weights, config: EngineConfig) -> Callable[[str], Tensor]:
        """Keys and values of all layers, layer by layer, as ``peft`` lays them out in one row per token."""
        if config.device == "meta":  # there nothing is computed: memory alone is counted
            return lambda name: torch.empty(0)
        layers = key_values(self._plain, self._tokens, base, config)
        prefix = torch.stack([tensor for pair in layers for tensor in pair])  # (2 layers, heads, tokens, head)
        prefix = prefix.permute(2, 0, 1, 3).reshape(TOKENS, -1).float()
        return lambda name: prefix

    def _drive(self, model: nn.Module, input_ids: Tensor, attention_mask: Tensor | None) -> Tensor:
        """Calls the model's body on the tokens, with the prefix as their past."""
        prefix = model.prompt_encoder(virtual_ids(input_ids, TOKENS))  # type: ignore[operator]
        states = prefix.view(*prefix.shape[:2], -1, *self._head)
        mask, positions = extended(model, attention_mask, TOKENS)
        return call(
            model, input_ids=input_ids, attention_mask=mask,
            position_ids=None if positions is None else positions[:, TOKENS:],
            past_key_values=PrefixCache(states.permute(2, 0, 3, 1, 4)),
        )  # fmt: skip


class PrefixLayer(DynamicLayer):  # type: ignore[no-untyped-call]
    """The keys and values of one layer's prefix, (rows, heads, tokens, head). It does not grow."""

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.lazy_initialization(keys, values)
        self.keys, self.values = keys, values

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """The prefix and the new states after it, in their dtype; nothing is kept."""
        assert self.keys is not None
        assert self.values is not None
        keys, values = self.keys.to(key_states.dtype), self.values.to(value_states.dtype)
        return torch.cat([keys, key_states], -2), torch.cat([values, value_states], -2)


class PrefixCache(Cache):
    """The prefixes of all layers: ``states`` (2 layers, rows, heads, tokens, head), keys and values by turns."""

    def __init__(self, states: Tensor) -> None:
        super().__init__(layers=[PrefixLayer(*pair) for pair in zip(states[::2], states[1::2], strict=True)])
        self._states = states
        self._cuts: dict[tuple[int, int], PrefixCache] = {}

    def rows(self, start: int, stop: int) -> PrefixCache:
        """The prefixes of some rows of the batch: one copy's, as :mod:`zobench.engine.passes.fold` cuts its
        arguments."""
        if (start, stop) not in self._cuts:  # once for all blocks
            self._cuts[start, stop] = PrefixCache(self._states[:, start:stop])
        return self._cuts[start, stop]


def key_values(
    model: PreTrainedModel, tokens: list[int], weights: Weights, config: EngineConfig
) -> list[tuple[Tensor, Tensor]]:
    """(keys, values) of each layer for these tokens, (heads, tokens, head) on the CPU.

    An engine computes them, so that ``model``, plain and on the meta device, may be larger than the device.
    """
    cache = DynamicCache()

    def record(model: nn.Module, input_ids: Tensor, attention_mask: Tensor | None) -> Tensor:
        return call(model, input_ids=input_ids, past_key_values=cache)

    ids = torch.tensor([tokens])
    with Engine(model, replace(config, compile=False, accumulate=1), weights=weights, drive=record) as engine:
        engine.probe(Batch(ids, ids), [BASE])
    layers = cast("list[DynamicLayer]", cache.layers)
    return [(cast("Tensor", x.keys)[0].cpu().clone(), cast("Tensor", x.values)[0].cpu().clone()) for x in layers]


def _check(spec: RunSpec, model: PreTrainedModel) -> None:
    """Raises ``ValueError`` if the model cannot take keys and values from outside, or would lose them on its way."""
    if "past_key_values" not in inspect.signature(model.base_model.forward).parameters:
        raise ValueError(
            f"`scheme=prefix` needs a model that takes past keys and values, but {type(model).__name__} does not; "
            "use scheme=prompt"
        )
    window = getattr(model.config, "sliding_window", None)
    if window is not None and spec.seq_len + TOKENS > window:
        raise ValueError(
            f"`seq_len + {TOKENS} <= {window}` must hold for scheme=prefix on {spec.model}, whose later tokens would "
            f"not see the prefix through its window, but got seq_len={spec.seq_len}; use scheme=prompt"
        )
