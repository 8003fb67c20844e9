"""The engine's update rules with the constants that a spec gives them, each a function of the spec.

Methods name these functions by strings, so that torch, which the rules are written in, is imported when a run begins; a
rule that needs nothing of the spec they name itself (:meth:`zobench.engine.updates.rules.ElementwiseRule.of`).
"""

from __future__ import annotations

import math

from zobench.engine.directions.shapes import Cone, DiagonalHessian, RecentMoments
from zobench.engine.updates.rules import Adam, Momentum
from zobench.engine.updates.steps import AtLeast, WholeSteps
from zobench.methods.conmezo import warmed_up
from zobench.runspec import RunSpec

LEAST_SCALE = 1e-7
"""The smallest scale in QZO's program."""


def momentum(spec: RunSpec) -> Momentum:
    """ZO-SGD-MMT's momentum of ``spec.momentum``."""
    return Momentum(spec.momentum)


def refined_adam(spec: RunSpec) -> Adam:
    """R-AdaZO's Adam by the options ``beta1``, ``beta2`` and ``zeta``."""
    beta1, beta2, zeta = _moments(spec, "R-AdaZO's program uses beta1=0.9, beta2=0.99, zeta=1e-8")
    return Adam(beta1, beta2, zeta, is_refined=True)


def recent_moments(spec: RunSpec) -> RecentMoments:
    """AdaMeZO's update by the options ``beta1``, ``beta2`` and ``zeta``."""
    return RecentMoments(*_moments(spec, "AdaMeZO's program uses beta1=0.7, beta2=0.9"))


def _moments(spec: RunSpec, usual: str) -> tuple[float, float, float]:
    """The options ``beta1``, ``beta2`` and ``zeta``, what is added to a second moment.

    Raises ``ValueError``, which ends in ``usual``, if the betas are not in [0, 1) or zeta is not above 0.
    """
    beta1, beta2, zeta = (float(spec.option(name)) for name in ("beta1", "beta2", "zeta"))
    if not (0 <= beta1 < 1 and 0 <= beta2 < 1 and zeta > 0):
        raise ValueError(
            "`0 <= options.beta1 < 1`, `0 <= options.beta2 < 1` and `options.zeta > 0` must hold, but got "
            f"beta1={beta1}, beta2={beta2}, zeta={zeta}; {usual}"
        )
    return beta1, beta2, zeta


def diagonal_hessian(spec: RunSpec) -> DiagonalHessian:
    """HiZOO's directions and updates by the diagonal Hessian, smoothed by the option ``smooth``, alpha in the paper.

    Raises ``ValueError`` if that is not from 0 to 1.
    """
    smooth = float(spec.option("smooth"))
    if not 0 <= smooth <= 1:
        raise ValueError(f"`0 <= options.smooth <= 1` must hold, but got {smooth}; HiZOO's program uses 1e-8")
    return DiagonalHessian(smooth, narrow=spec.definition == "as-shipped")


def cone(spec: RunSpec) -> Cone:
    """ConMeZO's cone of the options ``theta``, in radians, and ``beta``.

    Raises ``ValueError`` if they are not in (0, pi / 2] and [0, 1).
    """
    theta, beta = float(spec.option("theta")), float(spec.option("beta"))
    if not (0 < theta <= math.pi / 2 and 0 <= beta < 1):
        raise ValueError(
            "`0 < options.theta <= pi / 2` and `0 <= options.beta < 1` must hold, but got "
            f"theta={theta}, beta={beta}; ConMeZO's program uses theta=1.35, beta=0.99"
        )
    shipped = spec.definition == "as-shipped"
    return Cone(theta, warmed_up(beta) if shipped else lambda step: beta, narrow=shipped)


def least_scale(spec: RunSpec) -> AtLeast:
    """QZO's update of scales, which end at 0, or in the program a little above."""
    return AtLeast(LEAST_SCALE if spec.definition == "as-shipped" else 0.0)


def whole_steps(spec: RunSpec) -> WholeSteps:
    """QES's whole steps, with a residual that fades by the option ``decay``.

    Raises ``ValueError`` if that is not from 0 to 1.
    """
    decay = float(spec.option("decay"))
    if not 0 <= decay <= 1:
        raise ValueError(f"`0 <= options.decay <= 1` must hold, but got {decay}; QES's program uses options.decay=0.9")
    return WholeSteps(spec.eps, int(spec.option("bits")), decay, narrow=spec.definition == "as-shipped")
