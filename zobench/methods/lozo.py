"""LOZO: ZO-SGD along directions U V^T whose V stays for a while (Chen et al., 2024, "Enhancing Zeroth-order Fine-tuning
for Language Models with Low-rank Structures")."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from zobench.engine.base import Entry, PassRecord, Point
from zobench.methods.base import LOW_RANK, Direction, Taken
from zobench.methods.zo_sgd import ZOSGD
from zobench.runspec.kinds import Definition, MethodKind, SpecFields, Structure

if TYPE_CHECKING:
    from collections.abc import Mapping

    from zobench.engine.factors import LowRank
    from zobench.engine.interface import SteppingEngine
    from zobench.runspec import RunSpec

REDRAWN = 10**9
"""Added to a direction's seed for another direction; seeds that are drawn are below it."""


class LOZO(ZOSGD):
    """ZO-SGD whose directions share V, in every matrix, for ``interval`` steps; then V is drawn anew.

    The subspace's seed is that of the first direction in it. ``share``: what an update is multiplied by, 1 / rank as
    the paper writes it. ``mismatched``: in the first step of an interval the update goes along another direction than
    the loss was measured along, as in the published program (docs/design/METHODS.md, "LOZO").
    """

    def __init__(self, *, interval: int = 50, share: float = 1.0, mismatched: bool = False, **constants: Any) -> None:
        super().__init__(**constants)
        self.interval, self.share, self.mismatched = interval, share, mismatched
        self._subspace: int | None = None

    def state(self) -> dict[str, Any]:
        """As of ZO-SGD, with the seed of the subspace."""
        return {**super().state(), "subspace": self._subspace}

    def restore(self, state: Mapping[str, Any]) -> None:
        """The inverse of :meth:`state`."""
        super().restore(state)
        self._subspace = state["subspace"]

    def retrace(self, engine: SteppingEngine, taken: Taken) -> list[PassRecord]:
        """See :class:`zobench.methods.Method`."""
        self._enter(taken.directions)
        return super().retrace(engine, taken)

    def _directions(self, engine: SteppingEngine) -> list[Direction]:
        directions = super()._directions(engine)
        self._enter(directions)
        return directions

    def _enter(self, directions: Sequence[Direction]) -> None:
        """Draws V anew where an interval begins."""
        if self._begins:
            self._subspace = directions[0][0]

    @property
    def _begins(self) -> bool:
        return self._step % self.interval == 0

    def _points(self, directions: Sequence[Direction]) -> tuple[Point, ...]:
        return tuple(replace(point, subspace=self._subspace) for point in super()._points(directions))

    def _coefficient(self, g: float) -> float:
        return g * self.share

    def _entry(self, seed: int, g: float, weight_decay: float, part: int | None = None) -> Entry:
        own = seed + REDRAWN if self.mismatched and self._begins else seed
        return replace(super()._entry(own, g, weight_decay, part), subspace=self._subspace)


def make(spec: RunSpec) -> LOZO:
    """The method of ``spec``."""
    shipped = spec.definition == "as-shipped"
    return LOZO(
        lr=spec.lr, eps=spec.eps, seed=spec.seed, weight_decay=spec.weight_decay, queries=spec.queries,
        interval=_interval(spec), share=1.0 if shipped else 1.0 / _rank(spec), mismatched=shipped,
    )  # fmt: skip


def directions(spec: RunSpec) -> LowRank:
    """Those of ``spec``."""
    from zobench.engine.factors import LowRank

    return LowRank(_rank(spec))


def _rank(spec: SpecFields) -> int:
    rank: int = spec.option("rank")
    if rank < 1:
        raise ValueError(f"`options.rank >= 1` must hold, but got options.rank={rank}; LOZO uses options.rank=2")
    return rank


def _interval(spec: SpecFields) -> int:
    interval: int = spec.option("interval")
    if interval < 1:
        raise ValueError(
            f"`options.interval >= 1` must hold, but got options.interval={interval}; LOZO uses options.interval=50"
        )
    return interval


KIND = MethodKind(
    name="lozo",
    as_written=Definition(
        formula="w -= lr * ghat / r, z = U V^T of rank r in every matrix, V drawn every `interval` steps",
        make="zobench.methods.lozo:make",
    ),
    as_shipped=Definition(
        formula="w -= lr * ghat, z = U V^T of rank r in every matrix, V drawn every `interval` steps, in the first of "
        "which the update has another U",
        make="zobench.methods.lozo:make",
    ),
    structure=Structure(make="zobench.methods.lozo:directions", rank=_rank, lasts=_interval),
    needs=LOW_RANK,
    options={"rank": 2, "interval": 50},
)
