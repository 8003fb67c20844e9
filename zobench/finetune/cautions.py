"""What a reader of a run's numbers should know of its updates: that some were skipped, or too small to arrive."""

from __future__ import annotations

import math
from collections.abc import Sequence

from zobench import models
from zobench.runspec import RunSpec

TYPICAL_WEIGHT = 0.02
"""The models' initial standard deviation, the magnitude at which a lost update is judged."""


PLAIN = ("zo-sgd", "zo-sgd-cons", "zo-sgd-sparse", "forward-grad")
"""Methods whose updates are lr * g * z, of one g for the whole model."""


def cautions(spec: RunSpec, gradients: Sequence[float | None], skipped: int) -> list[str]:
    """Warnings about the updates of a run's steps, from their projected gradients and how many were skipped."""
    found = [nothing] if (nothing := empty(spec)) else []
    if skipped:
        found.append(f"{skipped} updates were skipped, because their projected gradient was not finite")
    finite = sorted(abs(g) for g in gradients if g is not None and math.isfinite(g))
    if finite and finite[-1] == 0:
        found.append("every projected gradient was 0: nothing was learnt")
    elif finite and spec.scheme == "full":  # an adapter rests in float32
        size = 1.0 if spec.method == "zo-sgd-sign" else finite[len(finite) // 2]
        if spec.method in (*PLAIN, "zo-sgd-sign") and (told := lost(spec, size)):
            found.append(told)
    return found


_EMPTY = {
    "zo-sgd-sparse": "sparsity=0 masks nothing: this is zo-sgd",
    "hybrid": "zo_layers=0 leaves nothing to directions: this is fo-sgd",
}
"""What a method without its own constant comes to."""


def empty(spec: RunSpec) -> str | None:
    """What a spec comes to whose method is nothing without a constant that is 0, or None."""
    masks_nothing = spec.method == "zo-sgd-sparse" and spec.sparsity == 0 and spec.definition == "as-written"
    return _EMPTY[spec.method] if masks_nothing or (spec.method == "hybrid" and spec.zo_layers == 0) else None


def lost(spec: RunSpec, gradient: float) -> str:
    """That updates of ``lr * gradient`` round away at the precision in which weights rest, or ""."""
    kept = spec.dtype if spec.wire == "none" else spec.wire
    if kept == "fp32" or spec.writeback_every == "inf":
        return ""
    import torch

    half_ulp = torch.finfo(getattr(torch, models.DTYPES.get(kept, "float8_e4m3fn"))).eps / 2 * TYPICAL_WEIGHT
    typical = spec.lr * gradient
    if typical >= half_ulp:
        return ""
    wider = "fp32" if spec.wire == "none" else "wire=none"
    size = "lr" if spec.method == "zo-sgd-sign" else "lr * g"
    return (
        f"{kept} updates are lost: {size} = {typical:.1e} is below half an ulp of a weight of {TYPICAL_WEIGHT} "
        f"({half_ulp:.1e}); use {wider}, writeback_every=inf with noise=counter, or a larger lr to learn"
    )
