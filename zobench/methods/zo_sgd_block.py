"""ZO-SGD-Block: each part of the model is estimated by directions of its own (ZO-Bench, section 5)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from zobench.methods.zo_sgd import ZOSGD
from zobench.runspec.kinds import Definition, MethodKind, SpecFields

if TYPE_CHECKING:
    from zobench.engine.interface import SteppingEngine


class ZOSGDBlock(ZOSGD):
    """ZO-SGD-Block (ZO-Bench, section 5): each part of the model is estimated by directions of its own.

    All parts are estimated at the same weights and then updated together: section 5 as written. OPT-1.3B has 26 parts:
    its blocks, what is before and what is after them (``Engine.parts``). All pairs of a step share one pass over the
    model, as those of ZO-SGD with as many queries do (table 6): a pass for each part would upload every block as many
    times as there are parts. Device memory holds the hidden states of twice as many copies of the batch as parts.
    """

    def _parts(self, engine: SteppingEngine) -> Sequence[int | None]:
        return [part for part in range(engine.parts) for _ in range(self.queries)]


def _pairs(spec: SpecFields, layers: int) -> int:
    """Those of every block, of what is before and of what is after them."""
    return spec.queries * (layers + 2)


KIND = MethodKind(
    name="zo-sgd-block",
    as_written=Definition(
        formula="w -= lr * ghat, ghat of each part along directions of its own; all estimated before any is updated",
        make="zobench.methods.zo_sgd_block:ZOSGDBlock.of",
    ),
    pairs=_pairs,
)
