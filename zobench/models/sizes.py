"""Sizes of registered models in parameters (elements), from the numbers of their configurations. Imports no torch."""

from __future__ import annotations

from zobench.models.registry import get


def block_parameter_count(name: str) -> int:
    """Parameters of one transformer block (all blocks of a registered model are equal)."""
    config = get(name).config
    hidden = config["hidden_size"]
    if get(name).learned_positions:  # OPT and RoBERTa: biases everywhere, no gate
        inner = config.get("ffn_dim") or config["intermediate_size"]
        attention = 4 * (hidden * hidden + hidden)
        feed_forward = 2 * hidden * inner + inner + hidden
        return int(attention + feed_forward + 2 * 2 * hidden)
    head = config.get("head_dim", hidden // config["num_attention_heads"])
    attention = 2 * hidden * head * (config["num_attention_heads"] + config["num_key_value_heads"])
    norms = 2 * hidden + (2 * head if get(name).model_type == "qwen3" else 0)
    return int(attention + 3 * hidden * config["intermediate_size"] + norms)


def largest_linear(name: str) -> int:
    """Elements of the largest weight matrix in a block."""
    config = get(name).config
    heads = config["num_attention_heads"] * config.get("head_dim", 0)
    return int(config["hidden_size"] * max(config.get("ffn_dim") or config["intermediate_size"], heads))


def _resident_sizes(name: str, tie: bool | None, positions: int | None) -> list[int]:
    """Sizes of the tensors outside the blocks."""
    architecture = get(name)
    hidden, extra = architecture.hidden, architecture.extra
    width = extra.get("word_embed_proj_dim", hidden)
    sizes = [architecture.vocab * width] * (1 if (architecture.tied if tie is None else tie) else 2)
    if not architecture.learned_positions:
        return [*sizes, hidden]
    sizes.append(((positions or architecture.max_positions) + 2) * hidden)  # the first two positions are no token's
    if architecture.masked:  # of tokens: their type, a norm; before the head: a dense layer, a norm; the head's bias
        return [*sizes, hidden, *[hidden] * 2, hidden * hidden, *[hidden] * 3, architecture.vocab]
    if width != hidden:
        sizes += [width * hidden] * 2
    if extra.get("do_layer_norm_before", True):
        sizes += [hidden] * 2
    return sizes


def resident_parameter_count(name: str, tie: bool | None = None, positions: int | None = None) -> int:
    """Parameters outside the blocks: embeddings, projections, last norm, and the head where it is not tied."""
    return sum(_resident_sizes(name, tie, positions))


def largest_resident(name: str, tie: bool | None = None, positions: int | None = None) -> int:
    """Elements of the largest single tensor outside the blocks."""
    return max(_resident_sizes(name, tie, positions))


def parameter_count(name: str, tie: bool | None = None, positions: int | None = None) -> int:
    """All parameters, a tied tensor counted once; ``None`` is the published tying and number of positions."""
    return get(name).layers * block_parameter_count(name) + resident_parameter_count(name, tie, positions)
