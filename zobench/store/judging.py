"""Judges step times: which of two sides is faster, by how much, and whether that is shown."""

from __future__ import annotations

import enum
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from zobench.stats import LEVEL, ranks
from zobench.stats.intervals import Ratio

STEP = "step"
"""The unit of work of a time where the steps of both sides do the same; else it is a token, or an example of a task."""


class Verdict(enum.StrEnum):
    """How B's step times compare with A's. FASTER and SLOWER: the rank test tells them apart at 5 %. SAME: it does not,
    and the 95 % interval of the ratio lies within the tolerance. Everything else is AMBIGUOUS, with a reason.

    Of cells with repeats a value is a process. Where both sides were in the same rounds, the test is the signed-rank
    test of their pairs, of fewer than six Student's (:func:`zobench.stats.intervals.ratio_of_pairs`); else, and for
    steps, Mann and Whitney's.
    """

    SAME = "SAME"
    FASTER = "FASTER"
    SLOWER = "SLOWER"
    AMBIGUOUS = "AMBIGUOUS"


@dataclass(frozen=True, kw_only=True, slots=True)
class Judgement:
    """``ratio``: B's median step time over A's, or the time of a ``unit`` where the work of their steps differs;
    ``interval``: see :func:`zobench.stats.ranks.ratio_interval`. ``values``: what was compared."""

    verdict: Verdict
    ratio: float | None = None
    interval: tuple[float, float] | None = None
    reason: str = ""
    values: str = "steps"
    unit: str = STEP


def judge_pairs(ratio: Ratio, tolerance: float) -> Judgement:
    """The verdict on a ratio from pairs of runs in the same rounds, B's step times over A's."""
    values = f"{ratio.pairs} round{'' if ratio.pairs == 1 else 's'}"
    unjudged = Judgement(verdict=Verdict.AMBIGUOUS, ratio=ratio.value, interval=ratio.interval, values=values)
    if ratio.interval is None:
        return replace(unjudged, reason="one round tells nothing of chance; repeat them (--repeats 6)")
    if ratio.differs:
        return replace(unjudged, verdict=Verdict.FASTER if ratio.value < 1 else Verdict.SLOWER)
    return _within(unjudged, ratio.interval, tolerance, "rounds")


_MORE = {"steps": ("step times", "--set steps={}"), "processes": ("processes", "--repeats {}")}
"""Of what two sides have several of: the words for them in a reason, and the option that gives more."""


def judge(a: Sequence[float], b: Sequence[float], tolerance: float, values: str = "steps") -> Judgement:
    """The verdict on step times ``b``, seen from ``a``: of steps, or the medians of processes. ``tolerance``: SAME
    needs an interval between 1 / (1 + tolerance) and 1 + tolerance, so that exchanging the sides changes nothing."""
    if not a or not b or min(*a, *b) <= 0:
        return Judgement(verdict=Verdict.AMBIGUOUS, reason="a side has no step times above 0")
    ratio, interval = statistics.median(b) / statistics.median(a), ranks.ratio_interval(a, b)
    unjudged = Judgement(verdict=Verdict.AMBIGUOUS, ratio=ratio, interval=interval, values=values)
    if interval is None:
        words, more = _MORE[values]
        reason = (
            f"{len(a)} against {len(b)} {words} cannot reach 5 %, whatever they are; measure at least "
            f"{ranks.LEAST} on each side ({more.format(ranks.LEAST)})"
        )
        return replace(unjudged, reason=reason)
    probability, larger = ranks.rank_test(a, b)
    if probability <= LEVEL and larger < 0.5 and ratio < 1:
        return replace(unjudged, verdict=Verdict.FASTER)
    if probability <= LEVEL and larger > 0.5 and ratio > 1:
        return replace(unjudged, verdict=Verdict.SLOWER)
    if probability <= LEVEL:
        return replace(unjudged, reason="the ranks differ, but the medians do not agree; look at the step times")
    return _within(unjudged, interval, tolerance, values)


def _within(unjudged: Judgement, interval: tuple[float, float], tolerance: float, values: str) -> Judgement:
    """The verdict where no difference is shown: SAME if the ``interval`` is within the ``tolerance``."""
    if 1 / (1 + tolerance) <= interval[0] and interval[1] <= 1 + tolerance:
        return replace(unjudged, verdict=Verdict.SAME)
    reason = f"no difference is shown, nor that it is within {100 * tolerance:.3g} %; measure more {values}"
    return replace(unjudged, reason=reason)
