"""A model that is known by its configuration and not by name: what was seen of it on the meta device. No torch."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, ClassVar

POSITIONS_KEYS = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length", "max_sequence_length")
"""The keys by which configurations name the longest sequence."""
ANY_LENGTH = 2**31 - 1
"""Positions of a model whose configuration names no longest sequence, such as one of linear biases or recurrence."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockKind:
    """``count`` blocks of a model that have the same shapes.

    ``matrices``: (inputs, outputs) of each product that every token goes through. ``experts``: (how many, how many of
    them a token goes through, inputs, outputs, whether it is its experts' last) of each stack of matrices of a mixture
    of experts. ``others``: elements of each other tensor, of which ``biases`` are added to products. ``norms``: numbers
    of one token that each normalisation reads. ``attention``: widths of a token's queries and of its values in all
    heads, zeros without attention. ``window``: tokens back from itself that a token attends to, 0 for all.
    """

    count: int
    matrices: tuple[tuple[int, int], ...]
    experts: tuple[tuple[int, float, int, int, bool], ...]
    others: tuple[int, ...]
    biases: int
    norms: tuple[int, ...]
    attention: tuple[int, int]
    window: int

    @property
    def tensors(self) -> tuple[int, ...]:
        """Elements of every tensor of a block."""
        stacks = (count * inputs * outputs for count, _, inputs, outputs, _ in self.experts)
        return (*(inputs * outputs for inputs, outputs in self.matrices), *stacks, *self.others)

    @property
    def operands(self) -> float:
        """Numbers that the products of a block read and write for one token."""
        return sum(map(sum, self.matrices)) + sum(chosen * (a + b) for _, chosen, a, b, _ in self.experts)


@dataclass(frozen=True, kw_only=True, slots=True)
class Inspected:
    """The same facts as a registered model's (:class:`zobench.models.Architecture`), counted on the model itself.

    ``kinds``: its blocks, which may differ. ``resident_sizes``: of each tensor outside the blocks.
    ``whole_attention``: its attention makes matrices of tokens x tokens, because transformers has no fused one for it.
    ``all_linear``: whether every matrix of a block is in a linear layer, so that a unit may be smaller than a block.
    ``uncounted``: what a block computes that no count has, a sentence each; ``overcounted``: what it may compute less
    of. ``settings_json``: the whole transformers configuration. ``hub_id`` is empty: its weights are where its
    configuration is, which decides how many positions there are, and none are added (``learned_positions``).
    """

    hub_id: ClassVar[str] = ""
    learned_positions: ClassVar[bool] = False

    name: str
    model_type: str
    masked: bool
    heads: int
    hidden: int
    vocab: int
    max_positions: int
    tied: bool
    embedding_width: int
    attention_widths: tuple[int, int]
    kinds: tuple[BlockKind, ...]
    resident_sizes: tuple[int, ...]
    whole_attention: bool
    all_linear: bool
    uncounted: tuple[str, ...]
    overcounted: tuple[str, ...]
    settings_json: str

    @property
    def layers(self) -> int:
        """Number of its blocks."""
        return sum(kind.count for kind in self.kinds)

    @property
    def largest(self) -> BlockKind:
        """The blocks with the most parameters."""
        return max(self.kinds, key=lambda kind: sum(kind.tensors))

    @property
    def block(self) -> int:
        """Parameters of its largest block."""
        return sum(self.largest.tensors)

    @property
    def all_blocks(self) -> int:
        """Parameters of all its blocks."""
        return sum(kind.count * sum(kind.tensors) for kind in self.kinds)

    @property
    def largest_linear(self) -> int:
        """Elements of the largest tensor of the largest block."""
        return max(self.largest.tensors)

    @property
    def inner(self) -> int:
        """The longer side of the largest matrix that every token goes through, of a block without such its experts'."""
        sides = [max(sides) for kind in self.kinds for sides in kind.matrices]
        return max(sides or [max(a, b) for kind in self.kinds for _, _, a, b, _ in kind.experts] or [self.hidden])

    def resident(self, tied: bool, positions: int) -> list[int]:
        """Sizes of the tensors outside the blocks."""
        return list(self.resident_sizes)

    def kept(self, width: int, autocast: bool, full: bool) -> int:
        """Bytes per token that a layer keeps for its backward: the operands of every product, the inputs of its norms
        in float32 with what they make of them, and rotated queries and keys. A bound from above: what several
        products read counts for each of them."""
        operands = max(kind.operands for kind in self.kinds) + 2 * sum(self.attention_widths)
        norms = max(sum(kind.norms) for kind in self.kinds)
        return int(operands * (2 if autocast else width) + norms * (12 if autocast else 4 + 2 * width))

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
