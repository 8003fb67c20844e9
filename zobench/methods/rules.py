"""The engine's update rules with the constants that a spec gives them, each a function of the spec.

Methods name these functions by strings, so that torch, which the rules are written in, is imported when a run begins; a
rule that needs nothing of the spec they name itself (:meth:`zobench.engine.updates.rules.UpdateRule.of`).
"""

from __future__ import annotations

from zobench.engine.directions.shapes import Cone, DiagonalHessian, RecentMoments
from zobench.engine.updates.rules import Adam, Momentum
from zobench.engine.updates.steps import AtLeast, WholeSteps
from zobench.methods.adaptive import warmed_up
from zobench.runspec import RunSpec

LEAST_SCALE = 1e-7
"""The smallest scale in QZO's program."""


def momentum(spec: RunSpec) -> Momentum:
    """ZO-SGD-MMT's momentum of ``spec.momentum``."""
    return Momentum(spec.momentum)


def refined_adam(spec: RunSpec) -> Adam:
    """R-AdaZO's Adam by the options ``beta1``, ``beta2`` and ``zeta``."""
    return Adam(*_moments(spec), is_refined=True)


def recent_moments(spec: RunSpec) -> RecentMoments:
    """AdaMeZO's update by the options ``beta1``, ``beta2`` and ``zeta``."""
    return RecentMoments(*_moments(spec))


def _moments(spec: RunSpec) -> tuple[float, float, float]:
    """The options ``beta1``, ``beta2`` and ``zeta``, what is added to a second moment."""
    return float(spec.option("beta1")), float(spec.option("beta2")), float(spec.option("zeta"))


def diagonal_hessian(spec: RunSpec) -> DiagonalHessian:
    """HiZOO's directions and updates by the diagonal Hessian, smoothed by the option ``smooth``, alpha in the paper."""
    return DiagonalHessian(float(spec.option("smooth")), narrow=spec.definition == "as-shipped")


def cone(spec: RunSpec) -> Cone:
    """ConMeZO's cone of the options ``theta``, in radians, and ``beta``."""
    theta, beta = float(spec.option("theta")), float(spec.option("beta"))
    shipped = spec.definition == "as-shipped"
    return Cone(theta, warmed_up(beta) if shipped else lambda step: beta, narrow=shipped)


def least_scale(spec: RunSpec) -> AtLeast:
    """QZO's update of scales, which end at 0, or in the program a little above."""
    return AtLeast(LEAST_SCALE if spec.definition == "as-shipped" else 0.0)


def whole_steps(spec: RunSpec) -> WholeSteps:
    """QES's whole steps, with a residual that fades by the option ``decay``."""
    bits, decay = int(spec.option("bits")), float(spec.option("decay"))
    return WholeSteps(spec.eps, bits, decay, narrow=spec.definition == "as-shipped")
