"""LOZO: ZO-SGD along directions U V^T whose V stays for a while (Chen et al., 2024, "Enhancing Zeroth-order Fine-tuning
for Language Models with Low-rank Structures")."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from zobench.engine.base import Entry
from zobench.methods.base import LOW_RANK
from zobench.methods.subspaces import InSubspaces, at_least_one
from zobench.runspec.kinds import Definition, MethodKind, SpecFields, Structure

if TYPE_CHECKING:
    from zobench.engine.factors import LowRank
    from zobench.runspec import RunSpec

REDRAWN = 10**9
"""Added to a direction's seed for another direction; seeds that are drawn are below it."""


class LOZO(InSubspaces):
    """ZO-SGD whose directions share V, in every matrix, for ``interval`` steps; then V is drawn anew.

    ``share``: what an update is multiplied by, 1 / rank as the paper writes it. ``mismatched``: in the first step of an
    interval the update goes along another direction than the loss was measured along, as in the published program
    (docs/design/METHODS.md, "LOZO").
    """

    def __init__(self, *, interval: int = 50, share: float = 1.0, mismatched: bool = False, **constants: Any) -> None:
        super().__init__(interval=interval, **constants)
        self.share, self.mismatched = share, mismatched

    @classmethod
    def defined(cls, spec: RunSpec) -> LOZO:
        """The method of ``spec``, in the definition that it asks for."""
        shipped = spec.definition == "as-shipped"
        share = 1.0 if shipped else 1.0 / rank(spec)
        return cls.of(spec, interval=interval(spec), share=share, mismatched=shipped)

    def _coefficient(self, g: float) -> float:
        return g * self.share

    def _entry(self, seed: int, g: float, weight_decay: float, part: int | None = None) -> Entry:
        return super()._entry(seed + REDRAWN if self.mismatched and self._begins else seed, g, weight_decay, part)


def directions(spec: RunSpec) -> LowRank:
    """Those of ``spec``."""
    from zobench.engine.factors import LowRank

    return LowRank(rank(spec))


def rank(spec: SpecFields) -> int:
    """That of U and V."""
    return at_least_one(spec, "rank", "LOZO uses options.rank=2")


def interval(spec: SpecFields) -> int:
    """The steps that share V."""
    return at_least_one(spec, "interval", "LOZO uses options.interval=50")


STRUCTURE = Structure(make="zobench.methods.lozo:directions", rank=rank, lasts=interval)
WRITTEN = Definition(
    formula="w -= lr * ghat / r, z = U V^T of rank r in every matrix, V drawn every `interval` steps",
    make="zobench.methods.lozo:LOZO.defined",
)
KIND = MethodKind(
    name="lozo",
    as_written=WRITTEN,
    as_shipped=replace(
        WRITTEN,
        formula="w -= lr * ghat, z = U V^T of rank r in every matrix, V drawn every `interval` steps, in the first of "
        "which the update has another U",
    ),
    structure=STRUCTURE,
    needs=LOW_RANK,
    options={"rank": 2, "interval": 50},
)
