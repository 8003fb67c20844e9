"""ZO-SGD-Sparse: ZO-SGD along directions that are masked at random (ZO-Bench, section 5)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from zobench.runspec.kinds import Definition, MethodKind, SpecFields, UpdateSize

if TYPE_CHECKING:
    from torch import nn

    from zobench.models.weights import Weights
    from zobench.runspec import RunSpec


def thresholds(spec: RunSpec, model: nn.Module, weights: Weights) -> dict[str, float]:
    """The threshold of each trainable parameter by its name (see :func:`zobench.methods.thresholds`)."""
    from zobench.methods.sparsity import layer_sparsity, mask_thresholds

    return mask_thresholds(layer_sparsity(model, weights, spec.sparsity), spec.definition)


def _nothing(spec: SpecFields) -> str | None:
    """The published program's masks zero half of a tensor whose share is 0."""
    masks = spec.sparsity or spec.definition == "as-shipped"
    return None if masks else "sparsity=0 masks nothing: this is zo-sgd"


WRITTEN = Definition(
    formula="w -= lr * ghat, z masked at random; of a tensor s is zeroed, its share of magnitude pruning",
    make="zobench.methods.zo_sgd:make",
    copies=1,
    piece_copies=4,
    update=UpdateSize.SCALED,
)
KIND = MethodKind(
    name="zo-sgd-sparse",
    as_written=WRITTEN,
    as_shipped=replace(
        WRITTEN,
        formula="w -= lr * ghat, z masked at random; of a tensor Phi(s) is zeroed, s its share of magnitude pruning",
    ),
    thresholds="zobench.methods.zo_sgd_sparse:thresholds",
    normals=2,
    takes=("sparsity",),
    nothing=_nothing,
)
