"""Methods that differentiate: FO-SGD and FO-Adam, the first-order baselines (ZO-Bench, section 4); its hybrid (section
5), ZO-SGD for the first layers and FO-SGD for the rest, without a backward pass below them; and Forward-Grad, the
derivative along a direction by forward-mode differentiation (Baydin et al., 2022)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from zobench.engine.base import PassRecord
from zobench.engine.interface import TangentEngine, lacks
from zobench.methods.base import Direction, StepResult, Taken
from zobench.methods.zo_sgd import ZOSGD
from zobench.runspec import suggestion
from zobench.runspec.kinds import FO_STEPS, Definition, MethodKind, Need, SpecFields, UpdateSize
from zobench.runspec.registries import scheme_of

if TYPE_CHECKING:
    from zobench.data.batch import Batch
    from zobench.engine.interface import GradientEngine, SteppingEngine
    from zobench.runspec import RunSpec


_RESIDENT = Need("engine", "resident", "backpropagation needs every layer at once; use engine=resident")
_WITHOUT_COMPILE = Need("compile", False, "only forwards are compiled; use compile=false")

FIRST_SCALE, GROWTH_STEPS = 2.0**16, 2000
"""The first loss scale, and the steps after which it grows: torch's own defaults (``torch.amp.GradScaler``)."""
LEAST_SCALE = 2.0**-126
"""The smallest loss scale, float32's smallest normal number: 0, to which a thousand lost steps lead, has no inverse."""


class FirstOrder:
    """torch's SGD or AdamW ("adam", decoupled decay) on the gradient of the batch's mean loss.

    Weight decay skips what MeZO's does. ``foreach``: many tensors per kernel. A gradient that is not finite is not
    applied; ``skipped`` counts those steps. With autocast=fp16 the loss is scaled on its way down.
    """

    def __init__(self, *, optimizer: str = "sgd", lr: float, weight_decay: float = 0.0, foreach: bool = True) -> None:
        from zobench.engine.backprop import OPTIMIZERS

        if optimizer not in OPTIMIZERS:
            raise ValueError(
                f"`optimizer` must be one of {', '.join(OPTIMIZERS)}, but got {optimizer!r}; "
                f"{suggestion(optimizer, OPTIMIZERS)}"
            )
        if not (lr >= 0 and weight_decay >= 0):
            raise ValueError(
                f"`lr >= 0` and `weight_decay >= 0` must hold, but got lr={lr}, weight_decay={weight_decay}; "
                "MeZO uses weight_decay=0"
            )
        self.optimizer, self.lr, self.weight_decay, self.foreach = optimizer, lr, weight_decay, foreach
        self.skipped = 0
        self._scale = LossScale()

    def step(self, engine: SteppingEngine, batch: Batch) -> StepResult:
        """One step on ``batch``; ``lr`` may be changed between steps."""
        backprop = with_gradients(engine)
        loss, norm = self._scale.backward(backprop, batch)
        applied = math.isfinite(norm)
        if applied:
            backprop.update(self.optimizer, lr=self.lr, weight_decay=self.weight_decay, foreach=self.foreach)
        self.skipped += not applied
        return StepResult(loss=loss, seeds=(), gradients=(norm,), applied=applied)

    def state(self) -> dict[str, Any]:
        """The steps skipped, and the loss scale: JSON types."""
        return {"skipped": self.skipped, "scale": self._scale.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """The inverse of :meth:`state`."""
        self.skipped = state["skipped"]
        self._scale.restore(state["scale"])

    def retrace(self, engine: SteppingEngine, taken: Taken) -> list[PassRecord]:
        """Raises ``ValueError``: see :func:`not_in_updates`."""
        return not_in_updates(taken)


class LossScale:
    """A factor on the loss that keeps small gradients within fp16's range: halved at each overflow, doubled after
    2,000 steps without one, as ``torch.amp.GradScaler`` does. Without autocast=fp16 it is 1."""

    def __init__(self) -> None:
        self._factor, self._good = FIRST_SCALE, 0

    def backward(self, engine: GradientEngine, batch: Batch) -> tuple[float, float]:
        """The batch's loss and its gradient's norm, which is NaN if the loss is not finite: then torch's gradients may
        be zero. They stay with the engine if that norm is finite."""
        scaled = engine.config.autocast == "fp16"
        loss = engine.backward(batch, self._factor if scaled else 1.0)
        norm = engine.gradient_norm() if math.isfinite(loss) else math.nan
        if not math.isfinite(norm):
            engine.discard()
        if scaled:
            self._adjust(math.isfinite(norm))
        return loss, norm

    def state(self) -> list[float]:
        """Returns the numbers that :meth:`restore` takes."""
        return [self._factor, self._good]

    def restore(self, state: list[float]) -> None:
        """The inverse of :meth:`state`."""
        self._factor, self._good = float(state[0]), int(state[1])

    def _adjust(self, finite: bool) -> None:
        self._good = self._good + 1 if finite else 0
        if not finite:
            self._factor = max(self._factor / 2, LEAST_SCALE)
        elif self._good == GROWTH_STEPS:
            self._factor, self._good = self._factor * 2, 0


def with_gradients(engine: SteppingEngine) -> GradientEngine:
    """``engine`` if it has gradients; ``ValueError`` if it has none."""
    backprop = engine.gradients
    if backprop is None:
        raise ValueError(f"a first-order method needs a Backprop engine, but got {type(engine).__name__}; build that")
    return backprop


def not_in_updates(taken: Taken) -> list[PassRecord]:
    """Raises ``ValueError``: a step that backpropagates cannot be made again from the updates that a journal tells."""
    raise ValueError(
        f"a step must be told by its updates to be made again, but step {taken.step} used gradients; go on from a "
        "snapshot of its tensors"
    )


def make(spec: RunSpec) -> FirstOrder:
    """FO-SGD or FO-Adam of ``spec``."""
    optimizer = spec.method.removeprefix("fo-")
    return FirstOrder(optimizer=optimizer, lr=spec.lr, weight_decay=spec.weight_decay, foreach=spec.foreach)


def _kind(
    name: str, definition: Definition, states: int, optimizer: Callable[[SpecFields], tuple[int, int]],
    takes: tuple[str, ...],
) -> MethodKind:  # fmt: skip
    return MethodKind(
        name=name,
        as_written=definition,
        engine="zobench.methods.engines:backpropagating",
        pairs=lambda spec, layers: 0,
        gradients=lambda spec, layers: 1,
        draws=0,
        counter_draws=0,
        states=states,
        optimizer=optimizer,
        needs=(
            _RESIDENT,
            Need("queries", 1, "it has one direction, or none; use queries=1"),
            Need("noise", "torch", "it draws no noise; leave noise out"),
            _WITHOUT_COMPILE,
        ),
        takes=takes,
        grid=name,
        steps=FO_STEPS,
    )


SGD = _kind(
    "fo-sgd",
    Definition(formula="w -= lr * grad, by backpropagation", make="zobench.methods.first_order:make"),
    states=0,
    # torch's without momentum: W - lr grad; with weight decay grad + weight_decay W before it
    optimizer=lambda spec: (6, 2) if spec.value("weight_decay") else (3, 1),
    takes=("checkpointing",),
)
ADAM = _kind(
    "fo-adam",
    Definition(
        formula="torch's AdamW on grad, by backpropagation",
        make="zobench.methods.first_order:make",
        state_width=None,
    ),
    states=2,
    # torch's AdamW, operator by operator: lerp of m 3; v scaled 2, plus grad^2 3; its square root 2, scaled 2, plus eps
    # 2; W + m / that 4; with weight decay W scaled 2
    optimizer=lambda spec: (20, 8) if spec.value("weight_decay") else (18, 7),
    takes=("checkpointing", "foreach"),
)


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


def _single_half(spec: SpecFields) -> str | None:
    """The tensors of virtual tokens come before every layer."""
    if not spec.zo_layers:
        return "zo_layers=0 leaves nothing to directions: this is fo-sgd"
    scheme = scheme_of(spec)
    text = f"scheme={scheme.name} tunes what comes before the layers, nothing by gradients"
    return text if scheme.virtual_tokens else None


HYBRID_KIND = MethodKind(
    name="hybrid",
    as_written=Definition(
        formula="w -= lr * ghat up to layer zo_layers, w -= lr * grad after it",
        make="zobench.methods.first_order:Hybrid.of",
    ),
    engine="zobench.methods.engines:backpropagating",
    gradients=lambda spec, layers: 1 - spec.zo_layers / layers,
    needs=(
        _RESIDENT,
        Need("noise", "torch", "its lower layers move as MeZO moves them; leave noise out"),
        _WITHOUT_COMPILE,
    ),
    takes=("zo_layers", "checkpointing"),
    nothing=_single_half,
)


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


FORWARD_GRAD_KIND = MethodKind(
    name="forward-grad",
    as_written=Definition(
        formula="w -= lr * (grad . z) z, grad . z by forward-mode differentiation",
        make="zobench.methods.first_order:ForwardGrad.of",
        update=UpdateSize.SCALED,
    ),
    pairs=lambda spec, layers: 0,
    tangents=True,
    draws=2,
    needs=(_WITHOUT_COMPILE, Need("granularity", "block", "it needs whole blocks; use granularity=block")),
    unused=("eps",),
)
