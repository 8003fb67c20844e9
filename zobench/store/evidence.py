"""The evidence of a cell's repeats: ratios from pairs within rounds, and how steady its processes were."""

from __future__ import annotations

from dataclasses import replace

from zobench.result import Result
from zobench.result.quantity import Quantity
from zobench.result.repeats import differ_in_threads, pairs, seconds_of_pair, took_turns
from zobench.runspec.kinds import ENGINES
from zobench.stats import intervals, ranks
from zobench.stats.intervals import FEW, Ratio, ratio_of_pairs
from zobench.store.measured import STEP_TIME

DRIFT = 0.02
"""The least drift that is told: a share of the median."""
_STEPS = 200
"""Steps whose drift is looked for, the first ones; a run that has more has reached its level long before."""


def ratio(numerator: Result | None, denominator: Result | None, quantity: Quantity) -> Ratio | None:
    """``quantity`` of ``numerator`` over that of ``denominator`` from their pairs of runs; None where they were in no
    round together, or if it is nothing that each process has its own of."""
    if numerator is None or denominator is None or not (quantity.timed or quantity.per_run):
        return None
    values = (
        (quantity.of(_paired(first, second)), quantity.of(second)) for first, second in pairs(numerator, denominator)
    )
    complete = [(first, second) for first, second in values if first and second]
    return ratio_of_pairs(complete) if complete else None


def _paired(run: Result, partner: Result) -> Result:
    """``run`` with the step time that its ratio to ``partner`` is of, where they took turns."""
    if not took_turns(run, partner):
        return run
    seconds, _ = seconds_of_pair(run, partner)
    return replace(run, samples={**run.samples, "step_seconds": [seconds] * len(run.measured_seconds)})


def are_alone(first: Result, second: Result) -> bool:
    """Whether each of the two is one process, so that there are only steps to compare."""
    return len(first.runs) == len(second.runs) == 1


def times_ratio(numerator: Result, denominator: Result) -> Ratio | None:
    """The step time of ``numerator`` over that of ``denominator``: from the rounds that both were in, else, of 0 pairs,
    that of their medians, with the interval of their processes, and of two processes alone from their steps. None where
    a side has no times; no interval where they computed with different numbers of threads.
    """
    if (paired := ratio(numerator, denominator, STEP_TIME)) is not None:
        return paired
    if not numerator.step_seconds or not denominator.step_seconds:
        return None
    alone = are_alone(numerator, denominator)
    sides = [side.measured_seconds if alone else side.run_seconds for side in (denominator, numerator)]
    differ = any(differ_in_threads(run, partner) for run in numerator.runs for partner in denominator.runs)
    interval = ranks.ratio_interval(*sides) if not differ and all(min(side) > 0 for side in sides) else None
    return Ratio(value=numerator.step_seconds / denominator.step_seconds, interval=interval, pairs=0)


def in_turns(result: Result) -> str:
    """How a cell's steps were in turns with those of others, if they were: what makes them longer than alone; or ""."""
    if not any(run.environment.turns is not None for run in result.runs):
        return ""
    waits = ", each until its transfers were done" if ENGINES[result.spec.engine].is_streamed else ""
    return f"steps in turns with those of other cells{waits}"


def remarks(result: Result) -> list[str]:
    """Whether a cell's steps were in turns; of one with repeats how many processes its times are from, and in what they
    were unsteady."""
    runs, seconds = [run for run in result.runs if run.measured_seconds], result.run_seconds
    lines = [turns] if (turns := in_turns(result)) else []
    if len(seconds) < 2:
        return lines
    lines.append(f"the median of {len(seconds)} processes")
    lines += [f"{item} from the first round to the last" for item in _drift(seconds)]
    if inside := sum(bool(_drift(run.measured_seconds[:_STEPS])) for run in runs):
        lines.append(f"steps became slower or faster within {inside} of them")
    if far := [runs[outlier].round for outlier in intervals.outliers(seconds)]:
        rounds = ", ".join(str(item.number + 1) for item in far if item is not None)
        lines.append(f"far from the others: {'round' if len(far) == 1 else 'rounds'} {rounds}")
    return lines


def settled(result: Result) -> Result:
    """``result`` with those of its first steps as warm-up that were, by :func:`zobench.stats.intervals.warm_up`;
    ``environment.warm_up_detected`` says how many. Training, and what did not end well, stays as it is."""
    if not result.is_ok or result.spec.task != "none" or len(result.measured_seconds) < FEW:
        return result
    count = intervals.warm_up(result.measured_seconds)
    return replace(
        result,
        samples={name: values[count:] for name, values in result.samples.items()},
        warmup={name: [*result.warmup.get(name, []), *values[:count]] for name, values in result.samples.items()},
    ).with_facts(warm_up_detected=count)


def _drift(values: list[float]) -> list[str]:
    """``became 3.1 % slower``, if ``values`` seconds did, by more than chance and more than DRIFT."""
    share = intervals.drift(values)
    if share is None or abs(share) < DRIFT:
        return []
    return [f"became {100 * abs(share):.1f} % {'slower' if share > 0 else 'faster'}"]
