"""AdaMeZO: Adam whose moments are made anew of the last steps' seeds and g (Cai et al., ICML 2026, arXiv 2605.00650).

Its program: shawnnn3di/AdaMeZO.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from zobench.methods.base import Direction, StepResult
from zobench.methods.zo_sgd import ONE_DIRECTION, ZOSGD
from zobench.runspec.kinds import Definition, MethodKind, Need
from zobench.runspec.options import Option

if TYPE_CHECKING:
    from zobench.engine.base import Entry

HORIZON = 10
"""The steps that a moment is made of, as the program's example has it."""


class AdaMeZO(ZOSGD):
    """``W -= lr * m / sqrt(v + zeta)``, m and v of the last ``horizon`` steps: :class:`zobench.engine.directions.shapes
    .RecentMoments` has the formulas.

    A step's entries are its own direction and g, then those of the steps before it, the newest first. A step with a g
    that is not finite changes nothing and is in no moment.
    """

    fields = ONE_DIRECTION
    spec_options = MappingProxyType({"horizon": int})

    def __init__(self, *, horizon: int = HORIZON, **constants: Any) -> None:
        super().__init__(**constants)
        self.horizon = horizon
        self._recent: list[tuple[int, float]] = []

    def state(self) -> dict[str, Any]:
        """As ZO-SGD's, and (seed, g) of the last steps, the newest first: JSON types."""
        return {**super().state(), "recent": [list(pair) for pair in self._recent]}

    def restore(self, state: Mapping[str, Any]) -> None:
        """The inverse of :meth:`state`."""
        super().restore(state)
        self._recent = [(int(seed), float(g)) for seed, g in state["recent"]]

    def _with(self, directions: Sequence[Direction], gradients: Sequence[float]) -> list[tuple[int, float]]:
        """(seed, g) of a step and of those before it."""
        return [(directions[0][0], gradients[0]), *self._recent][: self.horizon]

    def _entries(self, directions: Sequence[Direction], gradients: Sequence[float]) -> Iterator[Entry]:
        if self._applies(gradients):
            for age, (seed, g) in enumerate(self._with(directions, gradients)):
                yield self._entry(seed, g, 0.0 if age else self.weight_decay)

    def _finish(self, loss: float, directions: Sequence[Direction], gradients: tuple[float, ...]) -> StepResult:
        if self._applies(gradients):
            self._recent = self._with(directions, gradients)
        return super()._finish(loss, directions, gradients)


KIND = MethodKind(
    name="adamezo",
    as_written=Definition(
        formula="w -= lr * m / sqrt(v + zeta), m = (1 - beta1) sum of beta1^k g_k z_k, v = (1 - beta2) sum of "
        "beta2^k (g_k z_k)^2 over the last steps, k their age",
        make="zobench.methods.adamezo:AdaMeZO.of",
        rule="zobench.methods.rules:recent_moments",
        copies=4,
        piece_copies=5,
    ),
    updates=lambda spec: int(spec.option("horizon")),
    needs=(Need("queries", 1, "its moments are of one direction a step; use queries=1"),),
    options={
        "horizon": Option(HORIZON, lowest=1),
        "beta1": Option(0.7, lowest=0, below=1),
        "beta2": Option(0.9, lowest=0, below=1),
        "zeta": Option(1e-8, above=0),
    },
)
