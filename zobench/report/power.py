"""The power of a protocol before it runs: from the spread of seeds in runs of the same model, or an assumed one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from zobench import recipes
from zobench.cost import sizes
from zobench.recipes.protocol import Contest
from zobench.result import Result
from zobench.runspec import RunSpec
from zobench.stats import LEVEL
from zobench.stats.significance import POWER, detectable
from zobench.store import Store


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
    """The spread in stored runs of the model and task of ``spec`` that differ in their seed alone; without any,
    :data:`ASSUMED`. What a seed does to all settings that ran with the same seeds is no part of it, as methods are
    paired by seed: it is of the residuals of an analysis of variance by setting and seed."""
    groups: dict[str, dict[int, Result]] = {}
    for run in results:
        alike = (run.spec.model, run.spec.task) == (spec.model, spec.task)
        if alike and run.is_ok and run.evaluation.get("test", {}).get("loss") is not None:
            groups.setdefault(run.spec.replace(seed=0).hash, {})[run.spec.seed] = run
    sets: dict[tuple[int, ...], list[list[Result]]] = {}
    for seeded in (seeded for seeded in groups.values() if len(seeded) > 1):
        sets.setdefault(tuple(sorted(seeded)), []).append([seeded[seed] for seed in sorted(seeded)])
    if not sets:
        return ASSUMED
    first = next(iter(sets.values()))[0][0]
    count = sum(len(rows) * len(seeds) for seeds, rows in sets.items())
    loss, score = (_of_differences(list(sets.values()), key) for key in ("loss", first.scores[0]))
    return Spread(
        loss=loss, accuracy=score, examples=first.evaluation["test"]["count"],
        source=f"of {count} stored runs of {spec.model} on {spec.task_name}, {sum(map(len, sets.values()))} settings "
        "with several seeds, paired where they share them",
    )  # fmt: skip


def _of_differences(sets: Sequence[Sequence[Sequence[Result]]], key: str) -> float:
    """The standard deviation of a difference of two settings with a seed; each of ``sets`` has a row for each setting,
    of the same seeds. A setting alone has no partner, and its seeds' variance is taken whole."""
    import numpy as np

    squares, freedom = 0.0, 0
    for rows in sets:
        values = np.array([[run.evaluation["test"][key] for run in row] for row in rows], dtype=float)
        values -= values.mean(axis=1, keepdims=True)
        values -= values.mean(axis=0) if len(rows) > 1 else 0.0
        squares += float((values**2).sum())
        freedom += max(len(rows) - 1, 1) * (values.shape[1] - 1)
    return math.sqrt(2 * squares / freedom)


def lines(contests: Iterable[Contest], results: Sequence[Result]) -> list[str]:
    """Returns the power of each of ``contests``, one line for each model and task."""
    by_cell = {contest.cells[0]: contest for contest in contests}
    by_model = {f"{spec.model}, {spec.task_name}": contest for spec, contest in by_cell.items()}
    return [f"{which}: {of_contest(contest, results)}" for which, contest in by_model.items()]


def of_contest(contest: Contest, results: Iterable[Result]) -> str:
    """Returns a line on the differences that the protocol of ``contest`` can show of its methods against the baseline,
    from the spread of seeds in ``results`` and in the published runs."""
    spec, published = contest.cells[0], Store(recipes.folder("published"))
    paths = [path for path in published.paths() if path.name.startswith(spec.model)]
    spread = spread_of(spec, [*results, *filter(None, map(published.read, paths))])
    protocol, tested = contest.protocol, sizes.test_examples(spec.replace(test_size=contest.test_size))
    examples = min(tested, spread.examples or tested)
    seeds, rivals = len(protocol.seeds), len(protocol.contenders) - 1
    loss = detectable(spread.loss, seeds, rivals)
    points = 100 * detectable(spread.accuracy, seeds, rivals, math.sqrt(DISCORDANT / examples))
    return (
        f"This protocol can show {loss:.2g} in loss, {points:.1f} points: with {seeds} seeds, {examples} test examples "
        f"and {rivals} method{'s' * (rivals > 1)} against one, power {POWER:.0%} at {LEVEL:.0%} after Holm. Spread of "
        f"seeds: {spread.source}; two methods answer {DISCORDANT:.0%} of the examples differently (assumed)."
    )
