"""What a method is: a training step on an engine, and what a run needs to go on with it later."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from zobench.engine import Batch, Engine


@dataclass(frozen=True, kw_only=True, slots=True)
class StepResult:
    """One step: the mean of its losses; per direction its seed and g = (L+ - L-) / (2 eps); was all of it applied.

    Of a first-order step ``gradients`` holds the norm of the gradient and ``seeds`` is empty.
    """

    loss: float
    seeds: tuple[int, ...]
    gradients: tuple[float, ...]
    applied: bool

    @property
    def seed(self) -> int:
        """The seed of the first direction."""
        return self.seeds[0]

    @property
    def projected_grad(self) -> float:
        """The mean of g over the directions, not finite where one of them is not."""
        return sum(self.gradients) / len(self.gradients)


class Method(Protocol):
    """One way to fine-tune. ``lr`` may be changed between steps; ``skipped`` counts steps whose g is not finite."""

    lr: float
    skipped: int

    def step(self, engine: Engine, batch: Batch) -> StepResult:
        """One step on ``batch``."""

    def state(self) -> dict[str, Any]:
        """JSON types: with the engine's weights and state tensors, all that a resumed run needs to go on."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """The inverse of :meth:`state`."""
