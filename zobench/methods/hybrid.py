"""The hybrid of ZO-Bench (section 5): ZO-SGD for the first layers, FO-SGD for the rest; no backward pass below them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from zobench.methods.base import RESIDENT, WITHOUT_COMPILE, StepResult, Taken
from zobench.methods.first_order import LossScale, not_in_updates, with_gradients
from zobench.methods.zo_sgd import ZOSGD
from zobench.runspec.kinds import Definition, MethodKind, Need

if TYPE_CHECKING:
    from zobench.data.batch import Batch
    from zobench.engine.base import PassRecord
    from zobench.engine.interface import SteppingEngine


class Hybrid(ZOSGD):
    """Both halves are estimated on the same batch, the gradients at the unperturbed weights, and then both are updated.

    ``Backprop(zo_layers=k)`` says where they meet. With k = 0 it is FO-SGD. With all layers only what follows the
    blocks has gradients: a last norm, and a head that is not tied; the paper's "24 (ZO-SGD)" is ZO-SGD there too. What
    is not finite, a g or the gradient, is not applied; ``skipped`` counts steps with any.
    """

    def __init__(self, **constants: Any) -> None:
        super().__init__(**constants)
        self._scale = LossScale()

    def step(self, engine: SteppingEngine, batch: Batch) -> StepResult:
        """One step on ``batch``; its loss is that at the unperturbed weights. ``lr`` may be changed between steps."""
        backprop = with_gradients(engine)
        loss, norm = self._scale.backward(backprop, batch)
        directions = self._directions(backprop) if backprop.moves else []
        gradients = self._probe(backprop, batch, directions)[1] if directions else ()
        backprop.commit(list(self._entries(directions, gradients)))
        backprop.update("sgd", lr=self.lr, weight_decay=self.weight_decay)  # without gradients it moves nothing
        result = self._finish(loss, directions, (*gradients, norm))
        return replace(result, gradients=gradients or (norm,))

    def state(self) -> dict[str, Any]:
        """The state of ZO-SGD, and the loss scale."""
        return {**super().state(), "scale": self._scale.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """The inverse of :meth:`state`."""
        super().restore(state)
        self._scale.restore(state["scale"])

    def retrace(self, engine: SteppingEngine, taken: Taken) -> list[PassRecord]:
        """Raises ``ValueError``: see :func:`~zobench.methods.first_order.not_in_updates`."""
        return not_in_updates(taken)


KIND = MethodKind(
    name="hybrid",
    as_written=Definition(
        formula="w -= lr * ghat up to layer zo_layers, w -= lr * grad after it",
        make="zobench.methods.hybrid:Hybrid.of",
    ),
    engine="zobench.methods.engines:backpropagating",
    gradients=lambda spec, layers: 1 - spec.zo_layers / layers,
    needs=(
        RESIDENT,
        Need("noise", "torch", "its lower layers move as MeZO moves them; leave noise out"),
        WITHOUT_COMPILE,
    ),
    takes=("zo_layers", "checkpointing"),
    nothing=lambda spec: None if spec.zo_layers else "zo_layers=0 leaves nothing to directions: this is fo-sgd",
)
