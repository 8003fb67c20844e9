"""ZO-SGD-Sign: only the sign of the estimate counts (ZO-Bench, equation 2; its program takes the sign of g)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zobench.methods.zo_sgd import ZOSGD
from zobench.runspec.kinds import Definition, MethodKind, UpdateSize

if TYPE_CHECKING:
    from zobench.engine.rules import UpdateRule
    from zobench.runspec import RunSpec


class ZOSGDSignOfG(ZOSGD):
    """ZO-SGD-Sign as its program has it, and as appendix A prints it: ``W -= lr * sign(g) z``; the mean over queries.

    ZO-Bench's equation 2 takes the sign of each element of ghat instead: :class:`zobench.engine.rules.Sign`.
    """

    def _coefficient(self, g: float) -> float:
        return float((g > 0) - (g < 0))


def rule(spec: RunSpec) -> UpdateRule:
    """The paper's: the sign of each element of ghat."""
    from zobench.engine.rules import Sign

    return Sign()


KIND = MethodKind(
    name="zo-sgd-sign",
    as_written=Definition(
        formula="w -= lr * sign(ghat), elementwise, as ZO-Bench's equation 2 has it",
        make="zobench.methods.zo_sgd:make",
        rule="zobench.methods.zo_sgd_sign:rule",
        copies=1,
        piece_copies=3,
        update=UpdateSize.SIGN,
    ),
    as_shipped=Definition(
        formula="w -= lr * sign(g) z, as ZO-Bench's program and its appendix A have it",
        make="zobench.methods.zo_sgd_sign:ZOSGDSignOfG.of",
        update=UpdateSize.SIGN,
    ),
)
