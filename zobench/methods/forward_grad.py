"""Forward-Grad: the derivative along a direction, by forward-mode differentiation (Baydin et al., 2022)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from zobench.engine.base import PassRecord
from zobench.engine.interface import TangentEngine, lacks
from zobench.methods.base import WITHOUT_COMPILE, Direction, Taken
from zobench.methods.zo_sgd import ZOSGD
from zobench.runspec.kinds import Definition, MethodKind, Need, UpdateSize

if TYPE_CHECKING:
    from zobench.data.batch import Batch
    from zobench.engine.interface import SteppingEngine


class ForwardGrad(ZOSGD):
    """``W -= lr * ((grad . z) z + weight_decay * W)``, the mean over ``queries`` directions (ZO-Bench, section 3).

    It is ZO-SGD with g computed, not estimated: one pass over the model per direction, and no eps.
    """

    fields = ("lr", "seed", "weight_decay", "queries")

    def _probe(
        self, engine: SteppingEngine, batch: Batch, directions: Sequence[Direction]
    ) -> tuple[float, tuple[float, ...]]:
        """The loss at the weights, and the derivative along each direction."""
        if not isinstance(engine, TangentEngine):
            raise lacks(engine, "a forward derivative")
        pairs = [engine.tangent(batch, seed) for seed, _ in directions]
        return sum(loss for loss, _ in pairs) / len(pairs), tuple(jvp for _, jvp in pairs)

    def _moments(self, taken: Taken) -> list[PassRecord]:
        """A pass for each direction and micro-batch; none of them moves the weights."""
        return [*[PassRecord()] * (taken.passes - 1), PassRecord(entries=taken.entries)]


KIND = MethodKind(
    name="forward-grad",
    as_written=Definition(
        formula="w -= lr * (grad . z) z, grad . z by forward-mode differentiation",
        make="zobench.methods.forward_grad:ForwardGrad.of",
        update=UpdateSize.SCALED,
    ),
    pairs=lambda spec, layers: 0,
    tangents=True,
    draws=2,
    needs=(WITHOUT_COMPILE, Need("granularity", "block", "it needs whole blocks; use granularity=block")),
    unused=("eps",),
)
