"""The adapters of ``peft``'s: LoRA, prefix tuning and prompt tuning (docs/design/METHODS.md, "What is tuned")."""

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
from zobench.schemes import LORA_ALPHA, LORA_RANK, PREFIX_TOKENS, PROMPT_TOKENS
from zobench.schemes.base import Adapter, check_positions, extended, generator, real_tokens, virtual_ids

if TYPE_CHECKING:
    from transformers import PreTrainedModel

TARGETS = (("q_proj", "v_proj"), ("query", "value"))
"""Names of the two projections in one family of models or another."""


class Lora(Adapter):
    """Each query and value projection W becomes W + 2 B A, of rank 8: ``peft`` makes of the model's layer the frozen
    ``base_layer``, ``lora_A`` and ``lora_B``."""

    def __init__(self, spec: RunSpec, model: PreTrainedModel) -> None:
        from peft import LoraConfig

        ends = {name.rpartition(".")[2] for name, _ in model.named_modules()}
        pairs = [pair for pair in TARGETS if ends.issuperset(pair)]
        if not pairs:
            raise ValueError(
                f"`scheme=lora` needs layers named q_proj and v_proj or query and value, but {type(model).__name__} "
                "has none; use scheme=full"
            )
        config = LoraConfig(
            r=LORA_RANK, lora_alpha=LORA_ALPHA, target_modules=list(pairs[0]), lora_dropout=0.0, bias="none"
        )
        super().__init__(spec, model, config)
        self._shapes = {name: model.get_parameter(name).shape for name in self.names}

    def base_name(self, name: str) -> str:
        return name.replace(".base_layer.", ".")

    def file_name(self, name: str) -> str:
        return "base_model.model." + name.replace(".default.", ".")

    def values(self, base: Weights, config: EngineConfig) -> Callable[[str], Tensor]:
        """B is zero; A uniform within 1/sqrt(inputs), which is Kaiming's bound for a slope of sqrt(5), ``peft``'s."""

        def make(name: str) -> Tensor:
            shape = self._shapes[name]
            if ".lora_B." in name:
                return torch.zeros(shape)
            bound = shape[1] ** -0.5
            return torch.from_numpy(generator(self.seed, name).uniform(-bound, bound, tuple(shape))).float()

        return make


class Prefix(Adapter):
    """The scheme adds to every layer 5 keys and values before the tokens' own: ``peft``'s prefix encoder, without its
    projection, as a module of the model, ``prompt_encoder``. It starts as the keys and values that the base computes
    for real tokens."""

    virtual_tokens = PREFIX_TOKENS

    def __init__(self, spec: RunSpec, model: PreTrainedModel) -> None:
        from peft import PrefixTuningConfig

        _check(spec, model)
        check_positions(spec, model, PREFIX_TOKENS)
        self._plain = copy.deepcopy(model)  # on the meta device: it holds no weights
        self._tokens = real_tokens(model, PREFIX_TOKENS, spec.seed, "prefix")
        config = PrefixTuningConfig(num_virtual_tokens=PREFIX_TOKENS)
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
        prefix = prefix.permute(2, 0, 1, 3).reshape(PREFIX_TOKENS, -1).float()
        return lambda name: prefix

    def _drive(self, model: nn.Module, input_ids: Tensor, attention_mask: Tensor | None) -> Tensor:
        """Calls the model's body on the tokens, with the prefix as their past."""
        prefix = model.prompt_encoder(virtual_ids(input_ids, PREFIX_TOKENS))  # type: ignore[operator]
        states = prefix.view(*prefix.shape[:2], -1, *self._head)
        mask, positions = extended(model, attention_mask, PREFIX_TOKENS)
        return call(
            model, input_ids=input_ids, attention_mask=mask,
            position_ids=None if positions is None else positions[:, PREFIX_TOKENS:],
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
    if window is not None and spec.seq_len + PREFIX_TOKENS > window:
        raise ValueError(
            f"`seq_len + {PREFIX_TOKENS} <= {window}` must hold for scheme=prefix on {spec.model}, whose later tokens "
            f"would not see the prefix through its window, but got seq_len={spec.seq_len}; use scheme=prompt"
        )


class Prompt(Adapter):
    """10 embeddings before those of the tokens, at first of real ones: ``peft``'s encoder is ``prompt_encoder``."""

    virtual_tokens = PROMPT_TOKENS

    def __init__(self, spec: RunSpec, model: PreTrainedModel) -> None:
        from peft import PromptTuningConfig

        check_positions(spec, model, PROMPT_TOKENS)
        table = cast("Tensor", model.get_input_embeddings().weight)
        self._table = next(name for name, tensor in model.named_parameters() if tensor is table)
        self._shape, self._dtype = (1, table.shape[1]), table.dtype
        words = model.get_input_embeddings()
        self._scale = float(getattr(words, "scalar_embed_scale", getattr(words, "embed_scale", 1.0)))  # Gemma's, Bart's
        self._tokens = real_tokens(model, PROMPT_TOKENS, spec.seed, "prompt")
        # peft's own choice is the model's width, which is not the table's where a projection is between (OPT-350M)
        super().__init__(spec, model, PromptTuningConfig(num_virtual_tokens=PROMPT_TOKENS, token_dim=table.shape[1]))
        self.drive = drive

    def values(self, base: Weights, config: EngineConfig) -> Callable[[str], Tensor]:
        """The rows of the base's word embedding that belong to the chosen tokens, as large as that embedding makes
        them."""
        rows = [torch.empty(self._shape, dtype=self._dtype) for _ in self._tokens]
        for token, row in zip(self._tokens, rows, strict=True):
            base.fill(self._table, row, token)
        prompt = torch.cat(rows).float() * self._scale
        return lambda name: prompt


def drive(model: nn.Module, input_ids: Tensor, attention_mask: Tensor | None) -> Tensor:
    """Calls the model's body on the prompt and the tokens (see :class:`~zobench.engine.passes.drive.Drive`)."""
    words = model.get_input_embeddings()(input_ids)  # type: ignore[operator]
    prompt = model.prompt_encoder(virtual_ids(input_ids, PROMPT_TOKENS)).to(words.dtype)  # type: ignore[operator]
    mask, positions = extended(model, attention_mask, PROMPT_TOKENS)
    whole = call(model, inputs_embeds=torch.cat([prompt, words], 1), attention_mask=mask, position_ids=positions)
    return whole[:, PROMPT_TOKENS:]
