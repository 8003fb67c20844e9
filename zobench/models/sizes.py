"""Sizes of models in parameters (elements): of a registered one from the numbers of its configuration, of any other as
it was counted. Imports no torch."""

from __future__ import annotations

from zobench.models.registry import Model, get


def block_parameter_count(model: str | Model) -> int:
    """Parameters of one transformer block, the largest where they differ: what a slot must hold."""
    return get(model).block


def blocks_parameter_count(model: str | Model, count: int | None = None) -> int:
    """Parameters of all blocks together, or of ``count`` of them, spread evenly over the model."""
    architecture = get(model)
    return architecture.all_blocks if count is None else round(architecture.all_blocks * count / architecture.layers)


def largest_linear(model: str | Model) -> int:
    """Elements of the largest weight matrix in a block."""
    return get(model).largest_linear


def resident_sizes(model: str | Model, tie: bool | None, positions: int | None) -> list[int]:
    """Elements of each tensor outside the blocks."""
    architecture = get(model)
    return architecture.resident(architecture.tied if tie is None else tie, positions or architecture.max_positions)


def resident_parameter_count(model: str | Model, tie: bool | None = None, positions: int | None = None) -> int:
    """Parameters outside the blocks: embeddings, projections, last norm, and the head where it is not tied."""
    return sum(resident_sizes(model, tie, positions))


def largest_resident(model: str | Model, tie: bool | None = None, positions: int | None = None) -> int:
    """Elements of the largest single tensor outside the blocks."""
    return max(resident_sizes(model, tie, positions))


def parameter_count(model: str | Model, tie: bool | None = None, positions: int | None = None) -> int:
    """All parameters, a tied tensor counted once; ``None`` is the published tying and number of positions."""
    return get(model).all_blocks + resident_parameter_count(model, tie, positions)
