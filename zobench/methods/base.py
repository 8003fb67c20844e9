"""A method: a training step on an engine, and the state that a run needs to resume it; learning-rate schedules."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from zobench.runspec.kinds import Need, SpecFields

if TYPE_CHECKING:
    from zobench.data.batch import Batch
    from zobench.engine.base import Entry, PassRecord
    from zobench.engine.interface import SteppingEngine
    from zobench.runspec import RunSpec

Direction = tuple[int, int | None]
"""The seed of a direction, and the part of the model that it moves, or None for all of it."""

TRAVELLING_STATE = (
    Need("writeback_every", 1, "its state changes with every update; use writeback_every=1"),
    Need("wire", "none", "its state travels as it is; use wire=none"),
)
LOW_RANK = (
    Need("noise", "counter", "U and V are drawn one by one; use noise=counter"),
    Need("compile", False, "its products are not the blocks' own; use compile=false"),
    Need("survival", False, "its z is made of two factors; use survival=false"),
)


def at_least_two(usual: int) -> Callable[[SpecFields], int]:
    """Returns the rule for ``queries`` of a method that needs the spread of several directions: the spec's own number,
    or ``usual`` in place of 1."""
    return lambda spec: spec.queries if spec.queries > 1 else usual


def rank(spec: SpecFields) -> int:
    """The option ``rank``."""
    return int(spec.option("rank"))


def learning_rate(spec: RunSpec, step: int, total: int) -> float:
    """The learning rate of step ``step``, counted from 0, of ``total``: ``spec.lr`` times what is left of it.

    constant: 1; linear: 1 - step / total; cosine: (1 + cos(pi step / total)) / 2. Step ``total`` would have rate 0.
    """
    assert 0 <= step <= total, f"step {step} of {total}"
    if spec.lr_schedule == "linear":
        return spec.lr * (1 - step / total)
    if spec.lr_schedule == "cosine":
        return spec.lr * (1 + math.cos(math.pi * step / total)) / 2
    return spec.lr


@dataclass(frozen=True, kw_only=True, slots=True)
class StepResult:
    """One step: the mean of its losses; per direction its seed and g = (L+ - L-) / (2 eps); was all of it applied.

    Of a first-order step ``gradients`` holds the norm of the gradient and ``seeds`` is empty. ``parts``: of the
    directions, where they move parts of the model.
    """

    loss: float
    seeds: tuple[int, ...]
    gradients: tuple[float, ...]
    applied: bool
    parts: tuple[int | None, ...] = ()

    @property
    def seed(self) -> int:
        """The seed of the first direction."""
        return self.seeds[0]

    @property
    def projected_grad(self) -> float:
        """The mean of g over the directions, not finite where one of them is not."""
        return sum(self.gradients) / len(self.gradients)


@dataclass(frozen=True, kw_only=True, slots=True)
class Taken:
    """A step that was taken, as a journal tells it: which one, from 0 on; its learning rate, its seconds, and in how
    many passes over the model; ``directions`` and the g measured along each, also where it is not finite; and the
    updates ``entries``."""

    step: int
    loss: float
    lr: float
    seconds: float
    applied: bool
    passes: int
    directions: tuple[Direction, ...]
    gradients: tuple[float, ...]
    entries: tuple[Entry, ...]

    @property
    def projected_grad(self) -> float:
        """As :attr:`StepResult.projected_grad`."""
        return sum(self.gradients) / len(self.gradients)

    def retrace(self, engine: SteppingEngine, method: Method) -> list[PassRecord]:
        """Returns what the step did to the weights, pass by pass; ``method`` is then as after it (see
        :meth:`Method.retrace`)."""
        return method.retrace(engine, self)


class Method(Protocol):
    """One way to fine-tune. ``lr`` may be changed between steps; ``skipped`` counts steps whose g is not finite."""

    lr: float
    skipped: int

    def step(self, engine: SteppingEngine, batch: Batch) -> StepResult:
        """One step on ``batch``."""

    def state(self) -> dict[str, Any]:
        """JSON types: with the engine's weights and state tensors, all that a resumed run needs to go on."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """The inverse of :meth:`state`."""

    def retrace(self, engine: SteppingEngine, taken: Taken) -> list[PassRecord]:
        """Goes over a step without looking at the model: the method is then as after it, and what the step did to the
        weights is returned. ``engine`` only says how many parts there are.

        Raises ``ValueError`` if this method's next step has other directions, as the step is of another run, or if its
        steps are more than their updates, as where it backpropagates.
        """
