"""Fits the two constants of a GPU that no data sheet has to a user's own runs on it: what large products reach of their
peak, and what a kernel costs beside its work."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

from zobench.predict import gpu as engine
from zobench.predict.hardware import Gpu
from zobench.result import Outcome, Result
from zobench.runspec import RunSpec
from zobench.runspec.kinds import TIERS

BOUNDS = {"fp32_products": (0.2, 1.0), "fp16_products": (0.2, 1.0), "kernel": (0.2e-6, 60e-6)}
"""Outside of which a constant is a sign of something else, such as a busy GPU; seconds, and shares of the peak."""
PRIOR_WEIGHT = 0.03
"""Of a constant's logarithm moving by 1 against a run's: one run alone cannot tell the two apart."""
ROUNDS, STEP = 8, 1e-3


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
    precisions = {_products(spec) for spec, _ in runs}
    if len(precisions) > 1:
        raise ValueError("`--anchor` needs runs of one precision, but got 16 bits and 32; leave those of one out")
    names = (precisions.pop(), "kernel")
    point = fitted = [math.log(getattr(gpu, name)) for name in names]
    for _ in range(ROUNDS):
        fitted = _bounded(names, _stepped(gpu, names, fitted, point, runs))
    known = _with(gpu, names, fitted)
    errors = tuple(math.exp(miss) - 1 for miss in _misses(known, runs))
    close = max(map(abs, errors)) <= engine.errors(dataclasses.replace(gpu, errors="anchored"))["throughput"]
    return Anchored(dataclasses.replace(known, errors="anchored") if close else known, errors)


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


def _products(spec: RunSpec) -> str:
    """The constant that prices the products of ``spec``."""
    precision = spec.dtype if spec.autocast == "none" else spec.autocast
    return "fp32_products" if precision == "fp32" else "fp16_products"


def _with(gpu: Gpu, names: Sequence[str], logarithms: Sequence[float]) -> Gpu:
    values = {name: math.exp(value) for name, value in zip(names, logarithms, strict=True)}
    return dataclasses.replace(gpu, **values)  # type: ignore[arg-type]


def _misses(gpu: Gpu, runs: Sequence[tuple[RunSpec, float]]) -> list[float]:
    return [math.log(engine.predict(spec, gpu).step_seconds / seconds) for spec, seconds in runs]


def _bounded(names: Sequence[str], logarithms: Sequence[float]) -> list[float]:
    edges = [map(math.log, BOUNDS[name]) for name in names]
    return [min(max(value, low), high) for value, (low, high) in zip(logarithms, edges, strict=True)]


def _stepped(
    gpu: Gpu, names: Sequence[str], here: Sequence[float], prior: Sequence[float],
    runs: Sequence[tuple[RunSpec, float]],
) -> list[float]:  # fmt: skip
    """One step of Gauss and Newton from the logarithms ``here``, with a weak pull to ``prior``."""
    misses = _misses(_with(gpu, names, here), runs)
    slopes = []
    for k in range(2):
        moved = [value + STEP * (j == k) for j, value in enumerate(here)]
        slopes.append([(after - before) / STEP for after, before in zip(_misses(_with(gpu, names, moved), runs), misses,
                                                                       strict=True)])  # fmt: skip
    weight = PRIOR_WEIGHT**2
    a, b, d = (sum(map(float.__mul__, *pair)) for pair in ((slopes[0],) * 2, (slopes[0], slopes[1]), (slopes[1],) * 2))
    right = [-sum(map(float.__mul__, slope, misses)) - weight * (here[k] - prior[k]) for k, slope in enumerate(slopes)]
    a, d = a + weight, d + weight
    scale = a * d - b * b
    return [here[0] + (right[0] * d - b * right[1]) / scale, here[1] + (a * right[1] - b * right[0]) / scale]
