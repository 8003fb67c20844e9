"""Methods whose directions or steps follow from the steps before: HiZOO, ConMeZO, MEAZO and AdaMeZO.

HiZOO scales directions by an estimate of the Hessian's diagonal, which a third loss gives (Zhao et al., ICLR 2025,
arXiv 2402.15173; its program: Yanjun-Zhao/HiZOO). ConMeZO's are in a cone around the momentum of the estimates (Behric
et al., 2025, arXiv 2511.02757; LejsDeen/ConMeZO). MEAZO divides the step by the root of a running mean of g squared
(Dbouk et al., arXiv 2605.03869). AdaMeZO is Adam whose moments are made anew of the last steps' seeds and g (Cai et
al., ICML 2026, arXiv 2605.00650; shawnnn3di/AdaMeZO).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from zobench.engine.base import BASE, Point
from zobench.methods.base import TRAVELLING_STATE, Direction, StepResult
from zobench.methods.zo_sgd import ONE_DIRECTION, ZOSGD, projected_gradient
from zobench.runspec.kinds import Definition, MethodKind, Need
from zobench.runspec.options import Option
from zobench.runspec.registry import resolve

if TYPE_CHECKING:
    from zobench.data.batch import Batch
    from zobench.engine.base import Entry
    from zobench.engine.directions.shapes import Cone
    from zobench.engine.interface import SteppingEngine
    from zobench.runspec import RunSpec


class HiZOO(ZOSGD):
    """``W -= lr * g u / sqrt(H)`` from the points W and W +- eps u / sqrt(H), all three in one pass.

    H and its update: :class:`zobench.engine.directions.shapes.DiagonalHessian`. Where the curvature is not finite,
    neither is g.
    """

    fields = ONE_DIRECTION

    def _points(self, directions: Sequence[Direction]) -> tuple[Point, ...]:
        return (BASE, *super()._points(directions))

    def _probe(
        self, engine: SteppingEngine, batch: Batch, directions: Sequence[Direction]
    ) -> tuple[float, tuple[float, ...]]:
        """The loss at the weights, and g; the curvature along z is kept for the step's entry."""
        base, plus, minus = engine.probe(batch, self._points(directions))
        self.extra = abs(plus + minus - 2 * base) / (2 * self.eps**2)
        g = projected_gradient(plus, minus, self.eps, engine.config.device)
        return base, (g if math.isfinite(self.extra) else math.nan,)


_HIZOO = Definition(
    formula="H = (1 - a) H + a |L+ + L- - 2 L| / (2 eps^2) H u^2; w -= lr * g u / sqrt(H); H in float32",
    make="zobench.methods.adaptive:HiZOO.of",
    rule="zobench.methods.rules:diagonal_hessian",
    copies=3,
    piece_copies=5,
)
HIZOO_KIND = MethodKind(
    name="hizoo",
    as_written=_HIZOO,
    as_shipped=replace(
        _HIZOO,
        formula="H = (1 - a) H + a |L+ + L- - 2 L| / (2 eps^2) H u^2; w -= lr * g u / sqrt(H); H in the weights' dtype",
        state_width=None,
        copies=4,
        piece_copies=6,
    ),
    singles=lambda spec: 1,
    states=1,
    needs=(
        *TRAVELLING_STATE,
        Need("queries", 1, "its curvature is of one direction; use queries=1"),
        Need("law", "normal", "its curvature is of the squares of z, which are all 1 for signs; use law=normal"),
    ),
    options={"smooth": Option(1e-8, lowest=0, below=1)},
)


RULE = "zobench.methods.rules:cone"
WARM_BETA, WARM_STEPS, RAMP_STEPS = 0.1, 200, 1800
"""The program's beta at first, for how many steps, and in how many more it rises to the value of the option."""


class ConMeZO(ZOSGD):
    """``W -= lr * g z``, z in a cone around the momentum: :class:`zobench.engine.directions.shapes.Cone` has the
    formulas.

    Before the first applied step there is no momentum, and z is u. The cone makes ``sin(theta) u`` of that, so points
    and entries are scaled by ``1 / sin(theta)`` then.
    """

    fields = ONE_DIRECTION
    remembered = MappingProxyType({"norm": "extra"})  # the length of the momentum

    def __init__(self, *, cone: Cone, **constants: Any) -> None:
        super().__init__(**constants)
        self.cone = cone

    def _alone(self) -> float:
        """The factor of points and entries: 1 once there is a momentum, before that 1 / sin(theta)."""
        return 1.0 if self.extra else 1 / math.sin(self.cone.theta)

    def _points(self, directions: Sequence[Direction]) -> tuple[Point, ...]:
        scale = self.eps * self._alone()
        return tuple(Point(seed, c, part) for seed, part in directions for c in (scale, -scale))

    def _coefficient(self, g: float) -> float:
        return g * self._alone()

    def _finish(self, loss: float, directions: Sequence[Direction], gradients: tuple[float, ...]) -> StepResult:
        if self._applies(gradients):
            self.extra = self.cone.norm_after(self.extra, self._coefficient(gradients[0]), self._step)
        return super()._finish(loss, directions, gradients)


def warmed_up(beta: float) -> Callable[[int], float]:
    """The program's beta by step, counted from 0: 0.1 up to step 200, rising up to step 2000, ``beta`` after that."""

    def at(step: int) -> float:
        if step > WARM_STEPS + RAMP_STEPS:
            return beta
        done: float = (max(step - WARM_STEPS, 0) / RAMP_STEPS) ** 1.8
        return beta - (beta - WARM_BETA) / (1 + 8 * done) ** 3

    return at


def conmezo(spec: RunSpec) -> ConMeZO:
    """The method of ``spec``."""
    return ConMeZO.of(spec, cone=resolve(RULE)(spec))


_CONMEZO = Definition(
    formula="z = sqrt(d) cos(theta) m / |m| + sin(theta) u; w -= lr * g z; m = beta m + (1 - beta) g z, float32",
    make="zobench.methods.adaptive:conmezo",
    rule=RULE,
    copies=3,
    piece_copies=6,
)
CONMEZO_KIND = MethodKind(
    name="conmezo",
    as_written=_CONMEZO,
    as_shipped=replace(
        _CONMEZO,
        formula="z = sqrt(d) cos(theta) m / |m| + sin(theta) u; w -= lr * g z; beta warms up from 0.1 in 2000 steps",
        state_width=None,
        copies=4,
        piece_copies=7,
    ),
    states=1,
    needs=(*TRAVELLING_STATE, Need("queries", 1, "its momentum is of one direction; use queries=1")),
    options={"theta": Option(1.35, above=0, highest=math.pi / 2), "beta": Option(0.99, lowest=0, below=1)},
)


class MEAZO(ZOSGD):
    """``v = beta v + (1 - beta) g^2``; ``W -= lr / (sqrt(v / (1 - beta^t)) + zeta) * ghat``: one number of state.

    g is the mean over the ``queries``, t the number of steps that were applied, this one included. A step with a g that
    is not finite changes neither W nor v.
    """

    spec_options = MappingProxyType({"beta": float, "zeta": float})
    remembered = MappingProxyType({"v": "_v", "count": "_count"})  # v, and the number of steps that are in it

    def __init__(self, *, beta: float = 0.99, zeta: float = 1e-8, **constants: Any) -> None:
        super().__init__(**constants)
        self.beta, self.zeta = beta, zeta
        self._v, self._count = 0.0, 0

    def _next(self, gradients: Sequence[float]) -> float:
        """v after a step."""
        g = sum(gradients) / len(gradients)
        return self.beta * self._v + (1 - self.beta) * g * g

    def _entries(self, directions: Sequence[Direction], gradients: Sequence[float]) -> Iterator[Entry]:
        if self._applies(gradients):
            unbiased = self._next(gradients) / (1 - self.beta ** (self._count + 1))
            size = math.sqrt(unbiased) + self.zeta
            yield from super()._entries(directions, [g / size for g in gradients])

    def _finish(self, loss: float, directions: Sequence[Direction], gradients: tuple[float, ...]) -> StepResult:
        if self._applies(gradients):
            self._v, self._count = self._next(gradients), self._count + 1
        return super()._finish(loss, directions, gradients)


MEAZO_KIND = MethodKind(
    name="meazo",
    as_written=Definition(
        formula="v = beta v + (1 - beta) g^2, one number; w -= lr / (sqrt(v / (1 - beta^t)) + zeta) * ghat",
        make="zobench.methods.adaptive:MEAZO.of",
    ),
    options={"beta": Option(0.99, lowest=0, below=1), "zeta": Option(1e-8, above=0)},
    grid="meazo",
)


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


ADAMEZO_KIND = MethodKind(
    name="adamezo",
    as_written=Definition(
        formula="w -= lr * m / sqrt(v + zeta), m = (1 - beta1) sum of beta1^k g_k z_k, v = (1 - beta2) sum of "
        "beta2^k (g_k z_k)^2 over the last steps, k their age",
        make="zobench.methods.adaptive:AdaMeZO.of",
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
