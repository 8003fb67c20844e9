"""A protocol's methods held against its baseline, by the seeds and the test examples that their runs share."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping
from typing import Any

from zobench.report.claims import UNSHOWN
from zobench.report.contest import ContestTable, Ranking, Standing
from zobench.result import Result
from zobench.result.examples import KEY, unpacked
from zobench.stats import LEVEL, significance
from zobench.stats.significance import Difference

NO_CLAIM = "no claim (edge)"
"""Of a method whose best point is an end of what was tried."""


def baseline(table: ContestTable, ranking: Ranking) -> Standing | None:
    """The method that others are held against; None before any run of its best point."""
    return next((one for one in ranking.finished if one.header == table.baseline), None)


def _shared(one: Standing, other: Standing) -> list[tuple[Result, Result]]:
    """The runs of both with each seed that both have."""
    known = {run.spec.seed: run for run in other.runs}
    return [(run, known[run.spec.seed]) for run in one.runs if run.spec.seed in known]


def losses(one: Standing, other: Standing) -> Difference | None:
    """The difference of two methods' losses on test, paired by seed: the primary outcome. None where one diverged."""
    pairs = [[run.evaluation["test"]["loss"] for run in pair] for pair in _shared(one, other)]
    return significance.paired([a - b for a, b in pairs]) if pairs and None not in itertools.chain(*pairs) else None


def accuracies(one: Standing, other: Standing) -> Difference | None:
    """The difference of two methods' accuracies, a share: of seeds and examples where runs have stored these, else
    paired by seed alone."""
    pairs = _shared(one, other)
    each = [(unpacked(a.evaluation), unpacked(b.evaluation)) for a, b in pairs]
    if each and all(a and b and len(a.right) == len(b.right) for a, b in each):
        import numpy as np

        return significance.joint(np.array([1.0 * a.right - b.right for a, b in each if a and b]))
    return significance.paired([_score(a) - _score(b) for a, b in pairs]) if pairs else None


def mcnemar(one: Standing, base: Standing | None) -> float | None:
    """The p-value of the difference in accuracy, of runs that have stored their examples alone."""
    if base is None or one is base or one.is_edge or base.is_edge:
        return None
    if not all(KEY in run.evaluation for pair in _shared(one, base) for run in pair):
        return None
    known = accuracies(one, base)
    return None if known is None else known.p


def judged(table: ContestTable, ranking: Ranking) -> dict[str, float]:
    """Header -> the p-value of its loss on test not being the baseline's, of methods that have run with every seed and
    whose optimum is interior; by Holm over all methods of the protocol, those that have not run yet too."""
    base = baseline(table, ranking)
    if base is None or base.is_edge:
        return {}
    others = [one for one in ranking.finished if one is not base and not one.is_edge and is_whole(table, one, base)]
    return significance.holm(
        {one.header: known.p for one in others if (known := losses(one, base))}, len(table.protocol.contenders) - 1
    )


def is_whole(table: ContestTable, one: Standing, other: Standing) -> bool:
    """Whether both have run with every seed of the protocol: before that nothing is claimed of them."""
    return {pair[0].spec.seed for pair in _shared(one, other)} == set(table.protocol.seeds)


def shown(table: ContestTable, one: Standing, base: Standing | None, adjusted: Mapping[str, float]) -> str:
    """What the losses on test show of a method against the baseline, ``adjusted``: see :func:`judged`."""
    if not one.runs or base is None:
        return ""
    if one.is_edge or base.is_edge:
        return NO_CLAIM
    if one is base:
        return "—"
    if not is_whole(table, one, base):
        return f"{len(_shared(one, base))} of {len(table.protocol.seeds)} seeds"
    known = losses(one, base)
    if known is None or adjusted.get(one.header, 1.0) >= LEVEL:
        return UNSHOWN
    return "better" if known.value < 0 else "worse"


def reached(table: ContestTable, ranking: Ranking) -> tuple[float, float, int] | None:
    """The least differences in loss, and in accuracy but for the test examples, that these runs could show, and of how
    many methods against the baseline; None where none has two seeds in common with it."""
    base = baseline(table, ranking)
    pairs = [_shared(one, base) for one in ranking.finished if base is not None and one is not base]
    several = [own for own in pairs if len(own) > 1 and all(_loss(run) is not None for pair in own for run in pair)]
    if not several:
        return None
    loss, accuracy = (
        math.sqrt(statistics.fmean(statistics.variance(of(a) - of(b) for a, b in own) for own in several))
        for of in (_loss, _score)
    )
    seeds, count = min(map(len, several)), len(several)
    return significance.detectable(loss, seeds, count), significance.detectable(accuracy, seeds, count), count


def _score(run: Result) -> float:
    return float(run.evaluation["test"][run.scores[0]])


def _loss(run: Result) -> Any:
    return run.evaluation["test"]["loss"]
