"""Sizes of models in parameters (elements), from the numbers of their configurations. Imports no torch."""

from __future__ import annotations

from zobench.models.registry import get


def block_parameter_count(name: str) -> int:
    """Parameters of one transformer block (all blocks of a model are equal)."""
    return get(name).family.block(get(name))


def largest_linear(name: str) -> int:
    """Elements of the largest weight matrix in a block."""
    architecture = get(name)
    return architecture.hidden * max(architecture.inner, architecture.attention_widths[0])


def _resident_sizes(name: str, tie: bool | None, positions: int | None) -> list[int]:
    """Sizes of the tensors outside the blocks."""
    architecture = get(name)
    tied = architecture.tied if tie is None else tie
    return architecture.family.resident(architecture, tied, positions or architecture.max_positions)


def resident_parameter_count(name: str, tie: bool | None = None, positions: int | None = None) -> int:
    """Parameters outside the blocks: embeddings, projections, last norm, and the head where it is not tied."""
    return sum(_resident_sizes(name, tie, positions))


def largest_resident(name: str, tie: bool | None = None, positions: int | None = None) -> int:
    """Elements of the largest single tensor outside the blocks."""
    return max(_resident_sizes(name, tie, positions))


def parameter_count(name: str, tie: bool | None = None, positions: int | None = None) -> int:
    """All parameters, a tied tensor counted once; ``None`` is the published tying and number of positions."""
    return get(name).layers * block_parameter_count(name) + resident_parameter_count(name, tie, positions)
