"""R-AdaZO: Adam on the estimate, its second moment made of the first (Shu et al., ICML 2025, arXiv 2502.01014).

Its program: shuyao95/R-AdaZO.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zobench.methods.base import TRAVELLING_STATE
from zobench.runspec.kinds import Definition, MethodKind

if TYPE_CHECKING:
    from zobench.engine.rules import UpdateRule
    from zobench.runspec import RunSpec


def rule(spec: RunSpec) -> UpdateRule:
    """The update by the options ``beta1``, ``beta2`` and ``zeta``."""
    from zobench.engine.rules import RefinedAdam

    return RefinedAdam(*moments(spec, "R-AdaZO's program uses beta1=0.9, beta2=0.99, zeta=1e-8"))


def moments(spec: RunSpec, usual: str) -> tuple[float, float, float]:
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


KIND = MethodKind(
    name="r-adazo",
    as_written=Definition(
        formula="m = beta1 m + (1 - beta1) ghat; v = beta2 v + (1 - beta2) m^2; w -= lr * m / sqrt(v + zeta); ghat is "
        "one-sided, m and v in float32",
        make="zobench.methods.one_sided:OneSided.of",
        rule="zobench.methods.r_adazo:rule",
        copies=1,
        piece_copies=3,
    ),
    pairs=lambda spec, layers: 0,
    singles=lambda spec: spec.queries + 1,
    draws=3,
    states=2,
    needs=TRAVELLING_STATE,
    options={"beta1": 0.9, "beta2": 0.99, "zeta": 1e-8},
)
