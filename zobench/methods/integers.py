"""Methods that tune integer weights themselves: QZO their scales, QES their codes.

QZO: ZO-SGD of the scales, with a directional derivative that is clipped (Shang et al., 2025, arXiv 2505.13430; its
program: maifoundations/QZO). QES: codes move by whole steps, with what rounding loses kept for the next step (Xu et
al., 2026, arXiv 2602.03120, "Quantized Evolution Strategies"; dibbla/Quantized-Evolution-Strategies).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from zobench.engine.base import Entry, Point
from zobench.methods.base import TRAVELLING_STATE, Direction, at_least_two
from zobench.methods.populations import mean_and_deviation
from zobench.methods.zo_sgd import ZOSGD
from zobench.runspec.kinds import Definition, MethodKind, Need, SchemeKind
from zobench.runspec.options import Option

_NEEDS = (
    Need("scheme", "full", "it tunes a part of the integer weights themselves; use scheme=full"),
    Need("wire", "none", "its integers travel as they are; use wire=none"),
    Need("granularity", "block", "a layer's codes and scales travel together; use granularity=block"),
    Need("device_memory", 0, "its blocks cannot be cut; leave device_memory out"),
    Need(
        "tier",
        ("auto", "device", "pinned", "pageable", "disk"),
        "its integers are made of a checkpoint's weights, and what it tunes is written; use tier=disk",
    ),
    Need("compile", False, "its products are made of integers, a few at a time; use compile=false"),
    Need("weight_decay", 0.0, "nothing decays; use weight_decay=0"),
)
_FORM = {"bits": Option(4, choices=(4, 8)), "group": Option(128, choices=(32, 64, 128))}
"""Options: the bits of a weight, and the weights of a row that share a scale."""


class QZO(ZOSGD):
    """ZO-SGD of the scales, with each g cut at +-``clip``. A g that is not finite is skipped, not cut."""

    spec_options = MappingProxyType({"clip": float})

    def __init__(self, *, clip: float = 100.0, **constants: Any) -> None:
        super().__init__(**constants)
        self.clip = clip

    def _coefficient(self, g: float) -> float:
        return min(max(g, -self.clip), self.clip)


_QZO = Definition(
    formula="s = max(s - lr * clip(ghat), 0), w = s q: of integer weights the scales s; the codes q stay",
    make="zobench.methods.integers:QZO.of",
    rule="zobench.methods.rules:least_scale",
    copies=2,
    piece_copies=3,
)
QZO_KIND = MethodKind(
    name="qzo",
    as_written=_QZO,
    as_shipped=replace(
        _QZO,
        formula="s = max(s - lr * clip(ghat), 1e-7), w = s q: of integer weights the scales s; the codes q stay",
    ),
    scheme=SchemeKind(
        name="scales",
        make="zobench.schemes.integers:scales",
        adapter=lambda widths, spec: (-(-widths.matrices // int(spec.option("group"))), 0),
        base=lambda spec: int(spec.option("bits")) / 8,
    ),
    needs=(*_NEEDS, Need("survival", False, "its updates end at 0; use survival=false")),
    options={**_FORM, "clip": Option(100.0, above=0)},
    grid="qzo",
)


MOST = 3.0
"""The value at which a standardised difference is cut."""
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


_QES = Definition(
    formula="x = decay e - lr ghat / sigma; d = round(x), 0 out of range; q += d; e = x - d: codes q of integer "
    "weights; z is sigma u rounded at random; e in float32",
    make="zobench.methods.integers:QES.of",
    rule="zobench.methods.rules:whole_steps",
    copies=5,
    piece_copies=7,
)
QES_KIND = MethodKind(
    name="qes",
    as_written=_QES,
    as_shipped=replace(_QES, formula=_QES.formula.replace("float32", "float16"), state_width=2),
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
        *_NEEDS,
        *TRAVELLING_STATE,
        Need("noise", "counter", "at a bound one of two opposite points stays; use noise=counter"),
        Need(
            "queries",
            at_least_two(PAIRS),
            "differences are standardised over a population: use queries=25, or 2 and more",
        ),
        Need("survival", False, "its updates are whole steps; use survival=false"),
    ),
    options={**_FORM, "decay": Option(0.9, lowest=0, highest=1)},
    grid="qes",
)
