"""What a protocol can show, before it runs: from the spread of seeds in runs of the same model, or an assumed one."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from zobench.recipes.protocol import Protocol
from zobench.report.spread import LEVEL, POWER, detectable
from zobench.result import Result
from zobench.runspec import RunSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class Spread:
    """Standard deviations of the difference of two methods with a seed: of the ``loss`` on test, in nats, and of the
    ``accuracy``, a share; ``examples``: of the test set, 0 if not known. ``source``: where they are from."""

    loss: float
    accuracy: float
    examples: int
    source: str


ASSUMED = Spread(
    loss=0.03, accuracy=0.03, examples=0,
    source="assumed, 0.03 in loss and 3 points, because no runs of this model with several seeds are stored",
)  # fmt: skip
DISCORDANT = 0.15
"""The share of the test examples that two methods are assumed to answer differently."""


def spread_of(spec: RunSpec, results: Iterable[Result]) -> Spread:
    """That of stored runs of the model and task of ``spec`` that differ in their seed alone; without any,
    :data:`ASSUMED`. Two methods' errors are taken as independent, so that pairing can only make them less."""
    groups: dict[str, dict[int, Result]] = {}
    for run in results:
        alike = (run.spec.model, run.spec.task) == (spec.model, spec.task)
        if alike and run.is_ok and run.evaluation.get("test", {}).get("loss") is not None:
            groups.setdefault(run.spec.replace(seed=0).hash, {})[run.spec.seed] = run
    several = [list(own.values()) for own in groups.values() if len(own) > 1]
    if not several:
        return ASSUMED
    name, count = several[0][0].scores[0], sum(map(len, several))
    loss, score = (
        math.sqrt(
            2 * statistics.fmean(statistics.variance(run.evaluation["test"][key] for run in own) for own in several)
        )
        for key in ("loss", name)
    )
    return Spread(
        loss=loss, accuracy=score, examples=several[0][0].evaluation["test"]["count"],
        source=f"of {count} stored runs of {spec.model} on {spec.task_name}, {len(several)} methods and settings with "
        "several seeds, errors of two methods taken as independent",
    )  # fmt: skip


def planned(protocol: Protocol, spread: Spread, wanted: int) -> str:
    """What the protocol can show of its methods against one; ``wanted``: test examples that are asked for."""
    seeds, others = len(protocol.seeds), len(protocol.contenders) - 1
    examples = min(wanted, spread.examples or wanted)
    loss = detectable(spread.loss, seeds, others)
    points = 100 * detectable(spread.accuracy, seeds, others, math.sqrt(DISCORDANT / examples))
    return (
        f"This protocol can show {loss:.2g} in loss, {points:.1f} points: with {seeds} seeds, {examples} test examples "
        f"and {others} methods against one, power {POWER:.0%} at {LEVEL:.0%} after Holm. Spread of seeds: "
        f"{spread.source}; two methods answer {DISCORDANT:.0%} of the examples differently (assumed)."
    )
