"""The model that a run uses: how it differs from the published one (tying, positions), and what it cannot have."""

from __future__ import annotations

from zobench.models.families import Architecture
from zobench.models.registry import get
from zobench.runspec import RunSpec


def check(spec: RunSpec) -> None:
    """Raises ``ValueError`` if the spec asks of its model what it does not have: positions, blocks, or weights."""
    architecture = get(spec.model)
    if spec.seq_len > position_count(spec):
        longer = " or weights=random" if architecture.family.learned_positions else ""
        raise ValueError(
            f"`seq_len <= {architecture.max_positions}` must hold for {architecture.name}, but got "
            f"seq_len={spec.seq_len}; the model has {architecture.max_positions} positions: use a shorter seq_len"
            f"{longer}"
        )
    check_tying(architecture, spec.tie_embeddings)
    if spec.resident_blocks > architecture.layers:
        raise ValueError(
            f"`resident_blocks <= {architecture.layers}` must hold for {architecture.name}, but got "
            f"resident_blocks={spec.resident_blocks}; use engine=resident to keep all blocks"
        )
    if spec.weights == "pretrained" and not (spec.weights_path or architecture.hub_id):
        raise ValueError(
            f"`weights=pretrained` needs a checkpoint, but none of {architecture.name} is on the hub; "
            "give weights_path=FOLDER or use weights=random"
        )


def checked(spec: RunSpec, device: str) -> RunSpec:
    """The spec as it runs on ``device`` ("cpu" or "cuda..."), with its model's own name: the one way from what was
    asked for to what is run. A spec checks its own fields; this, what the model and then the device cannot have.

    Raises ``ValueError`` with the constraint, the value and the remedy.
    """
    check(spec)
    return spec.resolve(device).replace(model=get(spec.model).name)


def position_count(spec: RunSpec) -> int:
    """Positions of the model that ``spec`` runs: a learned table of random values is as long as the sequences need."""
    architecture = get(spec.model)
    if architecture.family.learned_positions and spec.weights != "pretrained":
        return max(architecture.max_positions, spec.seq_len)
    return architecture.max_positions


def variant(spec: RunSpec) -> tuple[str, bool | None, int]:
    """(name, tying, positions) of the model that ``spec`` runs, as the counts below take them."""
    return spec.model, spec.tie_embeddings, position_count(spec)


def differences(spec: RunSpec) -> list[str]:
    """In what the model that ``spec`` runs is not the published one: what a reader of its result should know."""
    published, used = get(spec.model).max_positions, position_count(spec)
    if used == published:
        return []
    return [
        f"the position table was extended from {published} to {used} positions with random values: {spec.model} was "
        f"published with {published} (the papers that report longer sequences do not say what they did)"
    ]


def check_tying(architecture: Architecture, tie: bool | None) -> None:
    """Raises ``ValueError`` for a tying that the architecture cannot have."""
    if architecture.family.masked and tie is False:
        raise ValueError(
            f"{architecture.name} must be tied, but got tie_embeddings=False; an untied one keeps a bias that nothing "
            "uses: use tie_embeddings=None"
        )
