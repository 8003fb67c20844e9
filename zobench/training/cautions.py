"""Warnings about updates that were skipped or rounded away, and about a run that diverged."""

from __future__ import annotations

import math
from collections.abc import Sequence

from zobench import models
from zobench.result import Result
from zobench.runspec import METHODS, RunSpec, scheme_of
from zobench.runspec.kinds import WIRES, UpdateSize

TYPICAL_WEIGHT = 0.02
"""The models' initial standard deviation, the magnitude at which a lost update is judged."""


def cautions(spec: RunSpec, gradients: Sequence[float | None], skipped: int) -> list[str]:
    """Warnings about the updates of a run's steps, from their projected gradients and how many were skipped."""
    warnings = [no_effect] if (no_effect := METHODS.get(spec.method).nothing(spec)) else []
    finite = sorted(abs(g) for g in gradients if g is not None and math.isfinite(g))
    if skipped:  # FZOO divides by the spread of losses, which may be 0
        quantity = "projected gradient" if len(finite) < len(gradients) else "update"
        warnings.append(f"{skipped} updates were skipped, because their {quantity} was not finite")
    if finite and finite[-1] == 0:
        warnings.append("every projected gradient was 0: nothing was learnt")
    elif finite and scheme_of(spec).tunes_all and (warning := lost(spec, finite[len(finite) // 2])):
        warnings.append(warning)  # an adapter rests in float32
    return warnings


def diverged(spec: RunSpec, curve: Sequence[Sequence[float | None]]) -> list[str]:
    """A warning if the loss on dev was not finite after a step; ``curve``: [step, loss, ...] of each evaluation."""
    lost = [row[0] for row in curve if not _is_finite(row[1])]
    if not lost:
        return []
    if lost[0] == 0:
        return ["the loss on dev was not finite before the first step: the model cannot compute it in this dtype"]
    kept = "the best weights are those of an earlier step" if trained(curve) else "its weights are good for nothing"
    return [f"diverged: the loss on dev was not finite after step {lost[0]:g}; {kept}; try an lr below {spec.lr:g}"]


def only_lost(result: Result) -> tuple[str, ...]:
    """A warning if dev was better at the start than after any step, whose weights are kept all the same. A run that
    diverged has a warning of its own."""
    start, best = (result.evaluation[key]["loss"] for key in ("start", "best"))
    if start is None or not trained(result.evaluation["curve"]) or not result.spec.lr or best < start:
        return ()
    return (
        f"the loss on dev was {start:.4f} at the start and never below it after a step: this run learnt nothing; try "
        "another lr",
    )


def trained(curve: Sequence[Sequence[float | None]]) -> bool:
    """Whether the loss on dev was finite after any step of the ``curve``."""
    return any(bool(row[0]) and _is_finite(row[1]) for row in curve)


def _is_finite(value: float | None) -> bool:
    """A result that was stored has None for what is not finite."""
    return value is not None and math.isfinite(value)


def lost(spec: RunSpec, gradient: float) -> str:
    """A warning that updates of size lr * ``gradient`` (lr alone for sign methods) are rounded away, or "".

    They are if they lie below half an ulp of a typical weight in the dtype or wire format in which weights rest. ""
    also for methods of which g alone does not give the size of an update.
    """
    size = METHODS.get(spec.method).definition(spec).update
    kept = spec.wire if WIRES[spec.wire].is_packed else spec.dtype
    if size is UpdateSize.OTHER or kept == "fp32" or spec.writeback_every == "inf":
        return ""
    import torch

    eps = torch.finfo(getattr(torch, models.DTYPES.get(kept, "float8_e4m3fn"))).eps
    half_ulp = eps / 2 * 2.0 ** math.floor(math.log2(TYPICAL_WEIGHT))
    together = spec.writeback_every if isinstance(spec.writeback_every, int) else 1  # updates that are rounded at once
    typical = spec.lr * (1.0 if size is UpdateSize.SIGN else gradient) * together
    if typical >= half_ulp:
        return ""
    wider = "wire=none" if WIRES[spec.wire].is_packed else "fp32"
    return (
        f"{kept} updates are lost: {size.value} = {typical:.1e} is below half an ulp of a weight of {TYPICAL_WEIGHT} "
        f"({half_ulp:.1e}); use {wider}, writeback_every=inf with noise=counter, or a larger lr to learn"
    )
