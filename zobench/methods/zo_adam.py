"""ZO-Adam: Adam on the estimate (ZO-Bench, appendix A). Its step is ZO-SGD's, its update the engine's rule."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zobench.methods.base import TRAVELLING_STATE
from zobench.runspec.kinds import Definition, MethodKind

if TYPE_CHECKING:
    from zobench.engine.rules import UpdateRule
    from zobench.runspec import RunSpec


def rule_as_written(spec: RunSpec) -> UpdateRule:
    """The paper's Adam."""
    from zobench.engine.rules import Adam

    return Adam()


def rule_as_shipped(spec: RunSpec) -> UpdateRule:
    """The published program's, which is torch's."""
    from zobench.engine.rules import TorchAdam

    return TorchAdam()


KIND = MethodKind(
    name="zo-adam",
    as_written=Definition(
        formula="w -= lr * m / sqrt(max(v_t, v_(t-1)) + 1e-8), without bias correction; m and v in float32",
        make="zobench.methods.zo_sgd:make",
        rule="zobench.methods.zo_adam:rule_as_written",
        copies=3,
        piece_copies=5,
    ),
    as_shipped=Definition(
        formula="torch's Adam on ghat, with bias correction; m and v in the weights' dtype",
        make="zobench.methods.zo_sgd:make",
        rule="zobench.methods.zo_adam:rule_as_shipped",
        state_width=None,
        copies=5,
        piece_copies=7,
    ),
    states=2,
    needs=TRAVELLING_STATE,
)
