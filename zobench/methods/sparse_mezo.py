"""Sparse-MeZO: ZO-SGD that moves the small weights of each tensor only (Liu et al., 2024, arXiv 2402.15751).

Which weights are small follows from the weights at each step and a threshold for each tensor that is set before the
first: no mask is stored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zobench.runspec.kinds import Definition, MethodKind, Need, SpecFields, UpdateSize

if TYPE_CHECKING:
    from torch import nn

    from zobench.engine.rules import UpdateRule
    from zobench.models.weights import Weights
    from zobench.runspec import RunSpec


def rule(spec: RunSpec) -> UpdateRule:
    """Directions that are zero where a weight is large."""
    from zobench.engine.shapes import SmallWeights

    return SmallWeights()


def thresholds(spec: RunSpec, model: nn.Module, weights: Weights) -> dict[str, float]:
    """The magnitude of each trainable parameter, by its name, above which a weight stays."""
    from zobench.methods.sparsity import magnitude_quantiles

    return magnitude_quantiles(model, weights, 1 - spec.sparsity)


def _nothing(spec: SpecFields) -> str | None:
    return None if spec.sparsity else "sparsity=0 masks nothing at the first step: this is nearly zo-sgd"


KIND = MethodKind(
    name="sparse-mezo",
    as_written=Definition(
        formula="w -= lr * ghat, z = 0 where |w| > h; h is the quantile 1 - s of a tensor's |w| before the first step",
        make="zobench.methods.zo_sgd:make",
        rule="zobench.methods.sparse_mezo:rule",
        copies=2,
        piece_copies=5,
        update=UpdateSize.SCALED,
    ),
    thresholds="zobench.methods.sparse_mezo:thresholds",
    needs=(
        Need("noise", "counter", "its masks follow from weights that no perturbation moves; use noise=counter"),
        Need("writeback_every", 1, "its masks follow from the weights as they rest; use writeback_every=1"),
        Need("wire", "none", "its masks follow from the weights as they rest; use wire=none"),
    ),
    takes=("sparsity",),
    nothing=_nothing,
)
