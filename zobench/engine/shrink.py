"""A small configuration of the same architecture: few layers and narrow, with every switch as it is."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

VOCABULARY = 160
"""Tokens that are left."""
_LEAST, _WIDE = 32, 512
"""No hidden vector becomes narrower, and none stays wider where heads can be fewer than two."""
_MOST_EXPERTS = 8

_LAYERS = (
    "num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers", "encoder_layers", "num_decoder_layers",
    "num_encoder_layers", "num_blocks", "depth", "num_layers_per_stack",
)  # fmt: skip
_HIDDEN = ("hidden_size", "d_model", "n_embd", "dim", "emb_dim", "embedding_dim")
_HEADS = (
    "num_attention_heads", "n_head", "n_heads", "decoder_attention_heads", "encoder_attention_heads", "attention_heads",
    "num_heads", "num_encoder_attention_heads", "num_decoder_attention_heads", "swa_num_attention_heads",
    "linear_num_heads",
)  # fmt: skip
_ALIKE = ("embedding_size", "pooler_hidden_size", "prediction_head_size")
"""Divided where they are as wide as the hidden vector."""
_STATE_HEADS = ("linear_num_key_heads", "linear_num_value_heads", "mamba_n_heads", "mamba_num_heads")
_WIDTHS = (
    "intermediate_size", "ffn_dim", "decoder_ffn_dim", "encoder_ffn_dim", "n_inner", "hidden_dim", "d_inner", "dff",
    "dim_ff", "feed_forward_size", "moe_intermediate_size", "shared_expert_intermediate_size",
    "shared_intermediate_size", "ffn_hidden_size", "expert_ffn_hidden_size", "intermediate_size_mlp",
    "dense_intermediate_size", "moe_shared_expert_intermediate_size", "shared_experts_intermediate_size",
    "word_embed_proj_dim", "lru_width", "attention_hidden_size", "mamba_d_ssm", "output_embedding_size",
)  # fmt: skip
_FEWER = (
    "num_key_value_heads", "num_kv_heads", "kv_n_heads", "swa_num_key_value_heads", "mamba_dt_rank",
    "time_step_rank", "n_groups", "mamba_n_groups",
)  # fmt: skip
"""Divided as the heads are, to 1 at least: of them there may be fewer."""
_EXPERTS = ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts")
_GROUPS = ("n_group", "n_groups", "num_expert_group")
_CHOSEN = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "moe_top_k", "top_k_experts")
_KINDS = ("layer_types", "layers_block_type", "mlp_layer_types", "attention_layers", "indexer_types", "layer_type_list")
_TABLES = ("vocab_size", "vocab_size_per_layer_input", "decoder_vocab_size", "unpadded_vocab_size", "entity_vocab_size")


def shrunk(config: PreTrainedConfig, layers: bool = True, heads: int = 2) -> PreTrainedConfig:
    """A configuration of the same class with the first layers alone, at least two and one of every kind, its widths
    divided by one number, so that heads keep theirs, and a small vocabulary; all else is as in ``config``.

    ``layers``: whether there are fewer of them; ``heads``: that are left where there are more.
    """
    values = copy.deepcopy(config.to_dict())
    for part_values, part in _parts(values, config):
        if layers:
            _fewer_layers(part_values, part)
        _narrower(part_values, heads)
        _fewer_experts(part_values)
        _fewer_tokens(part_values)
    small = type(config).from_dict(values)
    if config._attn_implementation in ("eager", "sdpa"):  # others may not run on a CPU
        small._attn_implementation = config._attn_implementation
    return small


def special_tokens(config: PreTrainedConfig) -> set[int]:
    """The ids that the configuration names."""
    return {token for tokens in _special(config.to_dict()).values() for token in tokens}


def _parts(values: dict[str, Any], config: Any) -> Iterator[tuple[dict[str, Any], Any]]:
    """The configuration's own values, and those of each configuration inside it."""
    yield values, config
    for key, value in values.items():
        if isinstance(value, dict) and hasattr(getattr(config, key, None), "to_dict"):
            yield from _parts(value, getattr(config, key))


def _fewer_layers(values: dict[str, Any], config: Any) -> None:
    keys = [key for key in _LAYERS if isinstance(values.get(key), int)]
    whole = max((values[key] for key in keys), default=0)
    count = 2
    for name in _KINDS:
        kinds = getattr(config, name, None)
        if isinstance(kinds, (list, tuple)) and len(kinds) == whole:
            count = max(count, 1 + max(list(kinds).index(kind) for kind in set(kinds)))
    for key in keys:
        values[key] = min(values[key], count)
    for key, value in values.items():
        if isinstance(value, (list, tuple)) and len(value) == whole > count:
            values[key] = list(value)[:count]
        if isinstance(value, dict) and value and all(str(number).isdigit() for number in value):
            values[key] = {number: entry for number, entry in value.items() if int(number) < count}


def _narrower(values: dict[str, Any], least: int) -> None:
    def named(keys: tuple[str, ...]) -> list[str]:
        return [key for key in keys if isinstance(values.get(key), int) and values[key] > 0]

    heads, hidden = named(_HEADS), named(_HIDDEN)
    if not hidden:
        return
    alike = [key for key in _ALIKE if values.get(key) == values[hidden[0]]]
    divided = [*heads, *hidden, *named(_STATE_HEADS), *alike]
    common, width = math.gcd(*(values[key] for key in divided)), min(values[key] for key in hidden)
    divisors = [n for n in range(1, common + 1) if common % n == 0 and width // n >= _LEAST]
    divisors = [n for n in divisors if width // n % 8 == 0] or divisors
    with_enough_heads = [n for n in divisors if all(values[key] // n >= least for key in heads)]
    factor = max(with_enough_heads or [1])
    if width // factor > _WIDE and least == 2:
        factor = max(divisors or [1])
    for key in divided:
        values[key] //= factor
    for key in named(_FEWER):
        values[key] = max(1, values[key] // factor)
    for key in named(_WIDTHS):
        width_left = values[key] / factor
        values[key] = int(width_left) if width_left.is_integer() else math.ceil(width_left / 16) * 16


def _fewer_experts(values: dict[str, Any]) -> None:
    """As many as are left even if a router chooses among groups of them."""
    chosen = max([values[key] for key in _CHOSEN if isinstance(values.get(key), int)], default=1)
    groups = max([values[key] for key in _GROUPS if isinstance(values.get(key), int)], default=1)
    least = max(_MOST_EXPERTS, chosen, 2 * groups)
    for key in _EXPERTS:
        if isinstance(values.get(key), int) and values[key] > least:
            values[key] = next(n for n in range(least, values[key] + 1) if values[key] % n == 0)


def _fewer_tokens(values: dict[str, Any]) -> None:
    """Special tokens whose ids are gone become the last ones that are left."""
    for key in _TABLES:
        if isinstance(values.get(key), int):
            values[key] = min(values[key], VOCABULARY)
    ids = sorted({token for value in _special(values).values() for token in value if token >= VOCABULARY})
    fresh = {token: VOCABULARY - 1 - number for number, token in enumerate(ids)}
    for key, tokens in _special(values).items():
        new = [fresh.get(token, token) for token in tokens]
        values[key] = new if isinstance(values[key], (list, tuple)) else new[0]


def _special(values: Mapping[str, Any]) -> dict[str, list[int]]:
    """The configuration's special tokens, by key."""
    named = {key: value for key, value in values.items() if key.endswith(("_token_id", "_token_index"))}
    lists = {key: list(value) if isinstance(value, (list, tuple)) else [value] for key, value in named.items()}
    return {key: value for key, value in lists.items() if value and all(isinstance(token, int) for token in value)}
