"""QES: integer weights whose codes move by whole steps, with what rounding loses kept for the next step.

Xu et al., 2026 (arXiv 2602.03120, "Quantized Evolution Strategies"), and its program,
dibbla/Quantized-Evolution-Strategies.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from zobench.engine.base import Entry, Point
from zobench.methods.base import FORM, INTEGERS, TRAVELLING_STATE, Direction, at_least_two
from zobench.methods.shaping import mean_and_deviation
from zobench.methods.zo_sgd import ZOSGD
from zobench.runspec.kinds import Definition, MethodKind, Need, SchemeKind
from zobench.runspec.options import Option

MOST = 3.0
"""Where a standardised difference is cut."""
SMALL = 1e-8
PAIRS = 25
"""The pairs of its scripts' populations of 50."""


class QES(ZOSGD):
    """A population of ``queries`` directions, each with its mirror image, in one pass over the model.

    Of each pair the difference of the losses counts, standardised over the population and cut at +-3. ``eps`` is
    sigma, in steps of the grid. A step one of whose losses is not finite changes nothing and is counted as skipped.
    """

    def _points(self, directions: Sequence[Direction]) -> tuple[Point, ...]:
        return tuple(Point(seed, sign, part) for seed, part in directions for sign in (1.0, -1.0))

    def _entries(self, directions: Sequence[Direction], gradients: Sequence[float]) -> Iterator[Entry]:
        if self._applies(gradients):
            for (seed, part), g in zip(directions, standardised(gradients), strict=True):
                yield self._entry(seed, g, 0.0, part)


def standardised(values: Sequence[float]) -> list[float]:
    """``values`` minus their mean over their standard deviation (N in its denominator), cut at +-3."""
    mean, deviation = mean_and_deviation(values)
    return [min(max((value - mean) / (deviation + SMALL), -MOST), MOST) for value in values]


WRITTEN = Definition(
    formula="x = decay e - lr ghat / sigma; d = round(x), 0 out of range; q += d; e = x - d: codes q of integer "
    "weights; z is sigma u rounded at random; e in float32",
    make="zobench.methods.qes:QES.of",
    rule="zobench.methods.rules:whole_steps",
    copies=5,
    piece_copies=7,
)
KIND = MethodKind(
    name="qes",
    as_written=WRITTEN,
    as_shipped=replace(WRITTEN, formula=WRITTEN.formula.replace("float32", "float16"), state_width=2),
    scheme=SchemeKind(
        name="codes",
        make="zobench.schemes.integers:codes",
        adapter=lambda widths, spec: (widths.matrices, 0),
        base=lambda spec: 2 / int(spec.option("group")),
        tuned_width=1,
    ),
    counter_draws=2,  # opposite points are no mirror images
    states=1,
    needs=(
        *INTEGERS,
        *TRAVELLING_STATE,
        Need("noise", "counter", "at a bound one of two opposite points stays; use noise=counter"),
        Need(
            "queries",
            at_least_two(PAIRS),
            "differences are standardised over a population: use queries=25, or 2 and more",
        ),
        Need("survival", False, "its updates are whole steps; use survival=false"),
    ),
    options={**FORM, "decay": Option(0.9, lowest=0, highest=1)},
    grid="qes",
)
