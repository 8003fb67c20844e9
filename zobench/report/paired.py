"""A protocol's methods held against its baseline, by the seeds and the test examples that their runs share."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from zobench.report.claims import UNSHOWN
from zobench.report.contest import ContestTable, MethodRanking, MethodStanding
from zobench.result import Result
from zobench.result.examples import KEY, unpacked
from zobench.runspec.registries import METRICS
from zobench.stats import LEVEL, significance
from zobench.stats.significance import Difference

NO_CLAIM = "no claim (edge)"
"""The verdict on a method whose best point is an end of what was tried."""


def baseline(table: ContestTable, ranking: MethodRanking) -> MethodStanding | None:
    """The method that others are held against; None before any run of its best point."""
    return next((method for method in ranking.finished if method.header == table.baseline), None)


def _shared(method: MethodStanding, base: MethodStanding) -> list[tuple[Result, Result]]:
    """Pairs of runs of ``method`` and ``base`` with the same seed."""
    by_seed = {run.spec.seed: run for run in base.runs}
    return [(run, by_seed[run.spec.seed]) for run in method.runs if run.spec.seed in by_seed]


def losses(method: MethodStanding, base: MethodStanding) -> Difference | None:
    """The difference of two methods' losses on test, paired by seed: the primary outcome. None where one diverged."""
    pairs = [[run.evaluation["test"]["loss"] for run in pair] for pair in _shared(method, base)]
    return significance.paired([a - b for a, b in pairs]) if pairs and None not in itertools.chain(*pairs) else None


def accuracies(method: MethodStanding, base: MethodStanding) -> Difference | None:
    """The difference of two methods' accuracies, a share: of seeds, and of examples where runs have stored them."""
    pairs = _shared(method, base)
    each = [(unpacked(a.evaluation), unpacked(b.evaluation)) for a, b in pairs]
    if each and all(a and b and len(a.right) == len(b.right) for a, b in each):
        import numpy as np

        return significance.joint(np.array([1.0 * a.right - b.right for a, b in each if a and b]))
    return significance.paired([_score(a) - _score(b) for a, b in pairs]) if pairs else None


def mcnemar(method: MethodStanding, base: MethodStanding | None) -> float | None:
    """The p-value of the difference in accuracy, of runs that have stored their examples alone."""
    if base is None or method is base or method.is_edge or base.is_edge:
        return None
    if not all(KEY in run.evaluation for pair in _shared(method, base) for run in pair):
        return None
    difference = accuracies(method, base)
    return None if difference is None else difference.p


def judged(table: ContestTable, ranking: MethodRanking) -> dict[str, float]:
    """Header -> the p-value of its loss on test not being the baseline's, of methods that have run with every seed and
    whose optimum is interior; by Holm over all methods of the protocol, those that have not run yet too."""
    base = baseline(table, ranking)
    if base is None or base.is_edge:
        return {}
    others = [method for method in ranking.finished if method is not base and not method.is_edge]
    differences = {method.header: losses(method, base) for method in others if is_whole(table, method, base)}
    values = {header: difference.p for header, difference in differences.items() if difference}
    return significance.holm(values, len(table.protocol.contenders) - 1)


def is_whole(table: ContestTable, method: MethodStanding, base: MethodStanding) -> bool:
    """Whether both have run with every seed of the protocol: before that nothing is claimed of them."""
    return {pair[0].spec.seed for pair in _shared(method, base)} == set(table.protocol.seeds)


def shown(
    table: ContestTable, method: MethodStanding, base: MethodStanding | None, adjusted: Mapping[str, float]
) -> str:
    """Returns the verdict of the losses on test about a method, by the ``adjusted`` p-values of :func:`judged`."""
    if not method.runs or base is None:
        return ""
    if method.is_edge or base.is_edge:
        return NO_CLAIM
    if method is base:
        return "—"
    if not is_whole(table, method, base):
        return f"{len(_shared(method, base))} of {len(table.protocol.seeds)} seeds"
    difference = losses(method, base)
    if difference is None or adjusted.get(method.header, 1.0) >= LEVEL:
        return UNSHOWN
    return "better" if difference.value < 0 else "worse"


def reached(table: ContestTable, ranking: MethodRanking) -> tuple[float, float, int] | None:
    """The least differences in loss, and in accuracy but for the test examples, that these runs could show, and over
    how many methods Holm corrects, those that have not run too (:func:`judged`); None where none has two seeds in
    common with the baseline."""
    base = baseline(table, ranking)
    pairs = [_shared(method, base) for method in ranking.finished if base is not None and method is not base]
    repeated = [
        runs for runs in pairs if len(runs) > 1 and all(_loss(run) is not None for pair in runs for run in pair)
    ]
    if not repeated:
        return None
    loss, accuracy = (
        math.sqrt(statistics.fmean(statistics.variance(of(a) - of(b) for a, b in runs) for runs in repeated))
        for of in (_loss, _score)
    )
    seeds, count = min(map(len, repeated)), len(table.protocol.contenders) - 1
    return significance.detectable(loss, seeds, count), significance.detectable(accuracy, seeds, count), count


def _score(run: Result) -> float:
    return float(run.evaluation["test"][run.scores[0]])


def _loss(run: Result) -> Any:
    return run.evaluation["test"]["loss"]


def over_seeds(results: Sequence[Result]) -> dict[str, Difference]:
    """Each score on test, its mean over ``results`` that differ in their seed alone, with the 95 % interval: of an
    accuracy that of seeds and examples, both of which could have been others, else Student's of the seeds; of a share
    it ends at 0 and 1. Empty where a run did not look at the test set or has a score that is not finite."""
    means, each = {}, [unpacked(result.evaluation) for result in results]
    for name in results[0].scores:
        values = [result.evaluation.get("test", {}).get(name) for result in results]
        finite = [float(value) for value in values if value is not None and math.isfinite(value)]
        if len(finite) < len(values):
            continue
        if name == "accuracy" and all(each) and len({len(examples.right) for examples in each if examples}) == 1:
            import numpy as np

            means[name] = significance.joint(np.array([1.0 * examples.right for examples in each if examples]))
        else:
            means[name] = significance.paired(finite)
        if "%" in METRICS.get(name).units:
            means[name] = replace(means[name], low=max(means[name].low, 0.0), high=min(means[name].high, 1.0))
    return means
