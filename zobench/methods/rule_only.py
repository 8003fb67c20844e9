"""The methods that have a step of ZO-SGD's and differ in the update rule or in the mask of their directions.

ZO-SGD-Sign, ZO-SGD-MMT and ZO-Adam are ZO-Bench's (equation 2, appendix A), ZO-SGD-Sparse too (section 5). R-AdaZO:
Shu et al., ICML 2025, arXiv 2502.01014, with the program shuyao95/R-AdaZO. Sparse-MeZO: Liu et al., 2024, arXiv
2402.15751: which weights are small follows from the weights at each step and a threshold for each tensor that is set
before the first, so that no mask is stored.
"""

from __future__ import annotations

from dataclasses import replace

from zobench.methods.base import TRAVELLING_STATE
from zobench.runspec.kinds import Definition, MethodKind, Need, SpecFields, UpdateSize
from zobench.runspec.options import Option

SIGN = MethodKind(
    name="zo-sgd-sign",
    as_written=Definition(
        formula="w -= lr * sign(ghat), elementwise, as ZO-Bench's equation 2 has it",
        make="zobench.methods.zo_sgd:make",
        rule="zobench.engine.updates.rules:Sign.of",
        copies=1,
        piece_copies=3,
        update=UpdateSize.SIGN,
    ),
    as_shipped=Definition(
        formula="w -= lr * sign(g) z, as ZO-Bench's program and its appendix A have it",
        make="zobench.methods.zo_sgd:ZOSGDSignOfG.of",
        update=UpdateSize.SIGN,
    ),
)
MOMENTUM = MethodKind(
    name="zo-sgd-mmt",
    as_written=Definition(
        formula="m = beta * m + ghat; w -= lr * m; m in float32",
        make="zobench.methods.zo_sgd:make",
        rule="zobench.methods.rules:momentum",
        copies=1,
        piece_copies=3,
    ),
    states=1,
    needs=TRAVELLING_STATE,
    takes=("momentum",),
)
ADAM = MethodKind(
    name="zo-adam",
    as_written=Definition(
        formula="w -= lr * m / sqrt(max(v_t, v_(t-1)) + 1e-8), without bias correction; m and v in float32",
        make="zobench.methods.zo_sgd:make",
        rule="zobench.engine.updates.rules:Adam.of",
        copies=3,
        piece_copies=5,
    ),
    as_shipped=Definition(
        formula="torch's Adam on ghat, with bias correction; m and v in the weights' dtype",
        make="zobench.methods.zo_sgd:make",
        rule="zobench.engine.updates.rules:TorchAdam.of",
        state_width=None,
        copies=5,
        piece_copies=7,
    ),
    states=2,
    needs=TRAVELLING_STATE,
)
R_ADAZO = MethodKind(
    name="r-adazo",
    as_written=Definition(
        formula="m = beta1 m + (1 - beta1) ghat; v = beta2 v + (1 - beta2) m^2; w -= lr * m / sqrt(v + zeta); ghat is "
        "one-sided, m and v in float32",
        make="zobench.methods.zo_sgd:OneSided.of",
        rule="zobench.methods.rules:refined_adam",
        copies=1,
        piece_copies=3,
    ),
    pairs=lambda spec, layers: 0,
    singles=lambda spec: spec.queries + 1,
    draws=3,
    states=2,
    needs=TRAVELLING_STATE,
    options={
        "beta1": Option(0.9, lowest=0, below=1),
        "beta2": Option(0.99, lowest=0, below=1),
        "zeta": Option(1e-8, above=0),
    },
)


def _masks_nothing(spec: SpecFields) -> str | None:
    """The published program's masks zero half of a tensor whose share is 0."""
    masks = spec.sparsity or spec.definition == "as-shipped"
    return None if masks else "sparsity=0 masks nothing: this is zo-sgd"


_RANDOM_MASKS = Definition(
    formula="w -= lr * ghat, z masked at random; of a tensor s is zeroed, its share of magnitude pruning",
    make="zobench.methods.zo_sgd:make",
    copies=1,
    piece_copies=4,
    update=UpdateSize.SCALED,
)
SPARSE = MethodKind(
    name="zo-sgd-sparse",
    as_written=_RANDOM_MASKS,
    as_shipped=replace(
        _RANDOM_MASKS,
        formula="w -= lr * ghat, z masked at random; of a tensor Phi(s) is zeroed, s its share of magnitude pruning",
    ),
    thresholds="zobench.methods.sparsity:random_masks",
    normals=2,
    takes=("sparsity",),
    nothing=_masks_nothing,
)
SPARSE_MEZO = MethodKind(
    name="sparse-mezo",
    as_written=Definition(
        formula="w -= lr * ghat, z = 0 where |w| > h; h is the quantile 1 - s of a tensor's |w| before the first step",
        make="zobench.methods.zo_sgd:make",
        rule="zobench.engine.directions.shapes:SmallWeights.of",
        copies=2,
        piece_copies=5,
        update=UpdateSize.SCALED,
    ),
    thresholds="zobench.methods.sparsity:small_weights",
    needs=(
        Need("noise", "counter", "its masks follow from weights that no perturbation moves; use noise=counter"),
        Need("writeback_every", 1, "its masks follow from the weights as they rest; use writeback_every=1"),
        Need("wire", "none", "its masks follow from the weights as they rest; use wire=none"),
    ),
    takes=("sparsity",),
    nothing=lambda spec: None if spec.sparsity else "sparsity=0 masks nothing at the first step: this is nearly zo-sgd",
)
