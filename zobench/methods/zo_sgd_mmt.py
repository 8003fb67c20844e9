"""ZO-SGD-MMT: ZO-SGD with momentum (ZO-Bench, appendix A). Its step is ZO-SGD's, its update the engine's rule."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zobench.methods.base import TRAVELLING_STATE
from zobench.runspec.kinds import Definition, MethodKind

if TYPE_CHECKING:
    from zobench.engine.rules import UpdateRule
    from zobench.runspec import RunSpec


def rule(spec: RunSpec) -> UpdateRule:
    """Momentum of ``spec.momentum``."""
    from zobench.engine.rules import Momentum

    return Momentum(spec.momentum)


KIND = MethodKind(
    name="zo-sgd-mmt",
    as_written=Definition(
        formula="m = beta * m + ghat; w -= lr * m; m in float32",
        make="zobench.methods.zo_sgd:make",
        rule="zobench.methods.zo_sgd_mmt:rule",
        copies=1,
        piece_copies=3,
    ),
    states=1,
    needs=TRAVELLING_STATE,
    takes=("momentum",),
)
