"""A model that is known by its configuration and not by name: what was seen of it on the meta device. No torch."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

POSITIONS_KEYS = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length", "max_sequence_length")
"""What configurations call the longest sequence."""
ANY_LENGTH = 2**31 - 1
"""Positions of a model whose configuration names no longest sequence, such as one of linear biases or recurrence."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Inspected:
    """The same facts as a registered model's (:class:`zobench.models.Architecture`), counted on the model itself.

    ``block`` and ``largest_linear`` are of the largest block, ``all_blocks`` of all together: blocks may differ.
    ``resident_sizes``: of each tensor outside the blocks. ``operands``: widths of what the products of the largest
    block read and write for one token, summed; ``norms``: of what its norms read. ``whole_attention``: its attention
    makes matrices of tokens x tokens, because transformers has no fused one for it. ``settings_json``: the whole
    transformers configuration.
    """

    name: str
    model_type: str
    masked: bool
    layers: int
    heads: int
    hidden: int
    inner: int
    vocab: int
    max_positions: int
    tied: bool
    embedding_width: int
    attention_widths: tuple[int, int]
    block: int
    all_blocks: int
    largest_linear: int
    resident_sizes: tuple[int, ...]
    operands: int
    norms: int
    whole_attention: bool
    settings_json: str

    @property
    def hub_id(self) -> str:
        """The empty id: its weights are where its configuration is."""
        return ""

    @property
    def learned_positions(self) -> bool:
        """False: its configuration decides how many positions there are, and none are added."""
        return False

    def resident(self, tied: bool, positions: int) -> list[int]:
        """Sizes of the tensors outside the blocks."""
        return list(self.resident_sizes)

    def kept(self, width: int, autocast: bool, full: bool) -> int:
        """Bytes per token that a layer keeps for its backward: the operands of every product, the inputs of its norms
        in float32 with what they make of them, and rotated queries and keys. A bound from above: what several
        products read counts for each of them."""
        rotated = 2 * sum(self.attention_widths)
        return (self.operands + rotated) * (2 if autocast else width) + self.norms * (12 if autocast else 4 + 2 * width)

    def settings(self, tied: bool | None, positions: int | None) -> dict[str, Any]:
        """Keyword arguments of its transformers configuration."""
        values: dict[str, Any] = json.loads(self.settings_json)
        return values

    def check_tying(self, tied: bool | None) -> None:
        """Raises ``ValueError`` for another tying than its configuration's."""
        if tied is not None and tied is not self.tied:
            raise ValueError(
                f"`tie_embeddings` must be as the config.json of {self.name} has it ({str(self.tied).lower()}), but "
                f"got {str(tied).lower()}; leave it out, or edit tie_word_embeddings there"
            )
