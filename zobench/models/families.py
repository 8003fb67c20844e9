"""The architecture of a model, and what those of one family have in common: the sizes of their weights, and what a
forward keeps for a backward pass. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar


@dataclass(frozen=True, kw_only=True, slots=True)
class Family:
    """Models of one ``model_type`` of transformers, whose configurations name their numbers alike.

    ``block`` counts the parameters of a transformer block. ``resident``: the sizes of the tensors outside the blocks,
    of (model, whether tied, positions). ``kept``: bytes per token that a layer keeps for its backward, of (model, bytes
    of a weight, whether autocast computes in 16 bits, whether all weights are tuned). ``inner``: width of the
    feed-forward. ``learned_positions``: positions are rows of a table, as in OPT, and not computed. ``masked``: it
    predicts masked tokens in their places, from both sides, and not the next token. ``unused_positions``: positions of
    the configuration that no token has.
    """

    model_type: str
    block: Callable[[Architecture], int]
    resident: Callable[[Architecture, bool, int], list[int]]
    kept: Callable[[Architecture, int, bool, bool], int]
    inner: Callable[[Architecture], int] = lambda model: int(
        model.config.get("ffn_dim") or model.config["intermediate_size"]
    )
    learned_positions: bool = False
    masked: bool = False
    unused_positions: int = 0


@dataclass(frozen=True, slots=True)
class Architecture:
    """One model's published configuration. ``hub_id`` is empty where no checkpoint is on the hub.

    ``extra``: arguments of the transformers configuration class of ``model_type`` beside those of ``config``. A
    ``model_type`` that is not in :data:`FAMILIES` needs a family in ``own_family``. Of all of them ``whole_attention``,
    ``all_linear``, ``uncounted`` and ``overcounted`` (:class:`zobench.models.inspected.Inspected`) are the same.
    """

    whole_attention: ClassVar[bool] = False
    all_linear: ClassVar[bool] = True
    uncounted: ClassVar[tuple[str, ...]] = ()
    overcounted: ClassVar[tuple[str, ...]] = ()

    name: str
    hub_id: str
    model_type: str
    layers: int
    heads: int
    hidden: int
    max_positions: int
    vocab: int
    tied: bool
    extra: Mapping[str, Any] = field(hash=False)
    own_family: Family | None = None

    def __post_init__(self) -> None:
        if self.own_family is None and self.model_type not in FAMILIES:
            raise ValueError(
                f"`model_type` must be one of {', '.join(FAMILIES)}, or come with `own_family`, but got "
                f"{self.model_type!r}; give a zobench.models.Family with its sizes"
            )

    @property
    def family(self) -> Family:
        """The facts that it shares with other models of its ``model_type``."""
        return self.own_family or FAMILIES[self.model_type]

    @property
    def embedding_width(self) -> int:
        """The width of a row of the word embedding; OPT-350M's is half of its hidden vector."""
        return int(self.extra.get("word_embed_proj_dim", self.hidden))

    @property
    def attention_widths(self) -> tuple[int, int]:
        """Widths of a token's queries, and of its keys or values, in all heads together."""
        head = self.extra.get("head_dim", self.hidden // self.heads)
        return self.heads * head, self.extra.get("num_key_value_heads", self.heads) * head

    @property
    def inner(self) -> int:
        """Width of the feed-forward."""
        return self.family.inner(self)

    @property
    def config(self) -> dict[str, Any]:
        """All keyword arguments of the transformers configuration class of ``model_type``."""
        return {
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "hidden_size": self.hidden,
            "max_position_embeddings": self.max_positions + self.family.unused_positions,
            "vocab_size": self.vocab,
            "tie_word_embeddings": self.tied,
            **self.extra,
        }

    @property
    def masked(self) -> bool:
        """Whether it predicts masked tokens in their places."""
        return self.family.masked

    @property
    def learned_positions(self) -> bool:
        """Whether its positions are rows of a table, which random values may extend."""
        return self.family.learned_positions

    @property
    def window(self) -> int:
        """Tokens that one attends to, 0 for all before it."""
        return int(self.extra.get("sliding_window") or 0)

    @property
    def block(self) -> int:
        """Parameters of its largest block; of a registered model all are equal."""
        return self.family.block(self)

    @property
    def all_blocks(self) -> int:
        """Parameters of all its blocks."""
        return self.layers * self.block

    @property
    def largest_linear(self) -> int:
        """Elements of the largest weight matrix in a block."""
        return self.hidden * max(self.inner, self.attention_widths[0])

    def resident(self, tied: bool, positions: int) -> list[int]:
        """Sizes of the tensors outside the blocks."""
        return self.family.resident(self, tied, positions)

    def kept(self, width: int, autocast: bool, full: bool) -> int:
        """Bytes per token that a layer keeps for its backward (:class:`Family`)."""
        return self.family.kept(self, width, autocast, full)

    def settings(self, tied: bool | None, positions: int | None) -> dict[str, Any]:
        """Keyword arguments of its transformers configuration, with another tying or number of positions if given."""
        values = {key: dict(value) if isinstance(value, Mapping) else value for key, value in self.config.items()}
        if tied is not None:
            values["tie_word_embeddings"] = tied
        if positions is not None:
            values["max_position_embeddings"] = positions + self.family.unused_positions
        return values

    def check_tying(self, tied: bool | None) -> None:
        """Raises ``ValueError`` for a tying that it cannot have."""
        if self.masked and tied is False:
            raise ValueError(
                f"{self.name} must be tied, but got tie_embeddings=False; an untied one keeps a bias that nothing "
                "uses: use tie_embeddings=None"
            )


def _tables(model: Architecture, tied: bool) -> list[int]:
    """The word embedding, and the head where it is not tied."""
    return [model.vocab * model.embedding_width] * (1 if tied else 2)


def plain_block(model: Architecture) -> int:
    """OPT's and RoBERTa's: biases everywhere, no gate."""
    hidden, inner = model.hidden, model.inner
    attention = 4 * (hidden * hidden + hidden)
    feed_forward = 2 * hidden * inner + inner + hidden
    return attention + feed_forward + 2 * 2 * hidden


def gated_block(model: Architecture) -> int:
    """LLaMA's and Mistral's: no biases, a gate, and keys and values of fewer heads than queries."""
    queries, keys = model.attention_widths
    return 2 * model.hidden * (queries + keys) + 3 * model.hidden * model.inner + 2 * model.hidden


def _qwen3_block(model: Architecture) -> int:
    """Parameters of a block of Qwen3, which normalises each head's query and key too."""
    return gated_block(model) + 2 * (model.attention_widths[0] // model.heads)


def gated_resident(model: Architecture, tied: bool, positions: int) -> list[int]:
    """Embedding, head and the last norm."""
    return [*_tables(model, tied), model.hidden]


def _opt_resident(model: Architecture, tied: bool, positions: int) -> list[int]:
    sizes = [*_tables(model, tied), (positions + 2) * model.hidden]  # the first two positions are no token's
    if model.embedding_width != model.hidden:
        sizes += [model.embedding_width * model.hidden] * 2
    if model.extra.get("do_layer_norm_before", True):
        sizes += [model.hidden] * 2
    return sizes


def _roberta_resident(model: Architecture, tied: bool, positions: int) -> list[int]:
    """RoBERTa's tensors outside the blocks: of tokens also their type and a norm; before the head a dense layer, a
    norm, and the head's bias."""
    hidden = model.hidden
    of_tokens = [*_tables(model, tied), (positions + 2) * hidden, hidden, *[hidden] * 2]
    return [*of_tokens, hidden * hidden, *[hidden] * 3, model.vocab]


def plain_kept(model: Architecture, width: int, autocast: bool, full: bool) -> int:
    """A frozen layer keeps less: its input is only needed for the gradient of its weights."""
    hidden, inner = model.hidden, model.inner
    statistics = 4 * (4 + model.heads)  # of both norms, and the log-sum-exp of each head, in float32
    if autocast:  # the norms' inputs in float32, every product's operands in 16 bits
        return 2 * 4 * hidden + 2 * (3 + 3 + 1 + 1) * hidden + 2 * inner + statistics
    if full:  # both norms' inputs and outputs, query, key, value, attention's output; the feed-forward
        return (8 * hidden + inner) * width + statistics
    return (6 * hidden + inner) * width + statistics


def gated_kept(model: Architecture, width: int, autocast: bool, full: bool, heads: int = 0) -> int:
    """Norms compute in float32, keys and values are repeated for all heads. ``heads``: the widths of queries and keys
    where it normalises them too."""
    queries, hidden, inner = model.attention_widths[0], model.hidden, model.inner
    if autocast:
        return 2 * 8 * hidden + 2 * 5 * hidden + 2 * 4 * (inner + queries) + 8 * heads
    if full:
        return 2 * (4 + 2 * width) * hidden + 4 * (inner + queries) * width + (4 + width) * heads
    return 2 * 4 * hidden + (3 * inner + 4 * queries) * width + 4 * heads


def _qwen3_kept(model: Architecture, width: int, autocast: bool, full: bool) -> int:
    return gated_kept(model, width, autocast, full, sum(model.attention_widths))


FAMILIES = {
    family.model_type: family
    for family in (
        Family(model_type="opt", block=plain_block, resident=_opt_resident, kept=plain_kept, learned_positions=True),
        Family(model_type="llama", block=gated_block, resident=gated_resident, kept=gated_kept),
        Family(model_type="mistral", block=gated_block, resident=gated_resident, kept=gated_kept),
        Family(model_type="qwen3", block=_qwen3_block, resident=gated_resident, kept=_qwen3_kept),
        Family(
            model_type="roberta", block=plain_block, resident=_roberta_resident, kept=plain_kept,
            learned_positions=True, masked=True, unused_positions=2,  # tokens begin behind its padding's id, 1
        ),
    )
}  # fmt: skip
"""The families by their ``model_type`` in transformers."""
