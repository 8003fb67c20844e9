"""Fits the two constants of a GPU that no data sheet has to a user's own runs on it: what large products reach of their
peak, and what a kernel costs beside its work."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from zobench.cost import gpu as engine
from zobench.cost import sizes
from zobench.cost.hardware import Gpu
from zobench.result import Outcome, Result
from zobench.runspec import RunSpec
from zobench.runspec.kinds import TIERS

BOUNDS = {"fp32_products": (0.2, 1.0), "fp16_products": (0.2, 1.0), "kernel": (0.2e-6, 60e-6)}
"""Outside of which a constant is a sign of something else, such as a busy GPU; seconds, and shares of the peak."""
PRIOR_WEIGHT = 0.03
"""Of a constant's logarithm moving by 1 against a run's: one run alone cannot tell the two apart."""

STEP = 1e-3
"""Of a derivative: as a share of a constant's logarithm, since a simulated step is not smooth below that."""


@dataclass(frozen=True, slots=True)
class Anchored:
    """``gpu`` with constants of its own, and by how much it still misses each run: predicted / measured - 1."""

    gpu: Gpu
    errors: tuple[float, ...]


def anchor(gpu: Gpu, results: Sequence[Result]) -> Anchored:
    """``gpu`` fitted to the steps of ``results``, least squares of the errors' logarithms.

    Its range narrows to that of an anchored GPU if none is missed by more than that. Raises ``ValueError`` for a result
    that did not run on a GPU, or whose link or disk, not the GPU, would be fitted.
    """
    runs = [_run(result) for result in results]
    products = {"fp32_products" if sizes.precision(spec) == "fp32" else "fp16_products" for spec, _ in runs}
    if len(products) > 1:
        raise ValueError("`--anchor` needs runs of one precision, but got 16 bits and 32; leave those of one out")
    fitted = _fitted(gpu, (products.pop(), "kernel"), runs)
    errors = tuple(math.exp(miss) - 1 for miss in _misses(fitted, runs))
    close = max(map(abs, errors)) <= engine.errors("anchored")["throughput"]
    return Anchored(dataclasses.replace(fitted, errors="anchored") if close else fitted, errors)


def _run(result: Result) -> tuple[RunSpec, float]:
    spec, seconds = result.spec, result.step_seconds
    if result.outcome is not Outcome.OK or not seconds or not spec.device.startswith("cuda"):
        raise ValueError(
            f"`--anchor` needs a finished run on a GPU, but {spec.label} is {result.outcome} on {spec.device}; "
            "run one there"
        )
    if TIERS[spec.tier].is_file:
        raise ValueError(f"`--anchor` needs a run without a disk, but {spec.label} has one; run it with tier=pinned")
    return spec, seconds


def _with(gpu: Gpu, names: Sequence[str], logarithms: Sequence[float]) -> Gpu:
    values = {name: math.exp(value) for name, value in zip(names, logarithms, strict=True)}
    return dataclasses.replace(gpu, **values)  # type: ignore[arg-type]


def _misses(gpu: Gpu, runs: Sequence[tuple[RunSpec, float]]) -> list[float]:
    return [math.log(engine.predict(spec, gpu).step_seconds / seconds) for spec, seconds in runs]


def _fitted(gpu: Gpu, names: Sequence[str], runs: Sequence[tuple[RunSpec, float]]) -> Gpu:
    """``gpu`` with the constants ``names`` of the least squares, with a weak pull to those that it has."""
    start = np.log([getattr(gpu, name) for name in names])
    low, high = np.log([BOUNDS[name] for name in names]).T

    def residuals(logarithms: Any) -> Any:
        return [*_misses(_with(gpu, names, logarithms), runs), *(PRIOR_WEIGHT * (logarithms - start))]

    solved = least_squares(residuals, np.clip(start, low, high), bounds=(low, high), diff_step=STEP)
    return _with(gpu, names, solved.x)
