"""The sheets of a protocol's table: accuracies with what they can show, costs, and the papers' claims."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from zobench.report import frames
from zobench.report.claims import FAILS, HOLDS, OPEN, UNSHOWN, CheckedClaim, ClaimRatio, limits
from zobench.report.contest import (
    BUSY,
    EDGE,
    ContestTable,
    MethodRanking,
    MethodStanding,
    average,
    is_disturbed,
    standing_of,
)
from zobench.report.paired import NO_CLAIM, accuracies, baseline, is_whole, judged, losses, mcnemar, reached, shown
from zobench.report.sheet import NO_VALUE, CellText, Sheet, of_lines, rounded
from zobench.report.table import Claim
from zobench.result import Result
from zobench.stats import LEVEL, significance
from zobench.stats.significance import Difference

if TYPE_CHECKING:
    import pandas as pd

NONE = "—"
MEBIBYTE = 2**20

Column = tuple[str, Callable[[MethodStanding], CellText]]


def sheets(table: ContestTable, ranked: Sequence[MethodRanking]) -> list[Sheet]:
    """Returns the sheets of each ranking: accuracies, costs, claims; without any one sheet that says so."""
    if not ranked:
        remarks = [_how(table), f"`zobench sweep {table.runner}` measures it."]
        unmeasured = [standing_of(table, contender, []) for contender in table.protocol.contenders]
        return [_of_methods(table, "", "none", "nothing measured yet", unmeasured, [("Test (%) ↑", _test)], remarks)]
    return [sheet for ranking in ranked for sheet in _of(table, ranking)]


def _of(table: ContestTable, ranking: MethodRanking) -> Iterator[Sheet]:
    spec = ranking.spec
    source = f"measured on {ranking.machine}" + (f" ({ranking.description})" if ranking.description else "")
    about = f"{spec.model} on {spec.task_name}, batch {spec.batch_size}"
    key = f"{spec.model}-{spec.task_name}-{ranking.machine}"
    remarks = [_how(table), about, *_shown(table, ranking), table.caption]
    yield _of_methods(table, "accuracy", key, source, ranking.standings, _accuracy(table, ranking), remarks)
    local = [method for method in ranking.standings if not method.elsewhere]
    yield _of_methods(table, "costs", key, source, local, _costs(table), [about, *_cost_remarks(table, ranking)])
    if table.claims:
        remark = (
            "Holds here: the whole interval is within the bounds; does not: none of it is; not shown: neither; no "
            "claim: the best point of one of the two is an end of what was tried. A claim was made of other models and "
            f"tasks; this is {spec.model} on {spec.task_name}."
        )
        lines = [(claim.text, _claim_line(table, claim, ranking)) for claim in table.claims]
        yield of_lines(
            "Claim", ("Checked on", "Claimed", "Here (95 %)", "Verdict"), lines, source=source,
            remarks=[remark, _elsewhere(table, ranking)], **_names(table, "the papers' claims", key),
        )  # fmt: skip


def _how(table: ContestTable) -> str:
    protocol = table.protocol
    unit = {
        "forwards": "forwards of a batch (a backward pass is two, of frozen weights one)",
        "gigabytes": "GB of weights moved",
    }
    tuning, seeds = (", ".join(map(str, numbers)) for numbers in (protocol.tuning_seeds, protocol.seeds))
    return (
        f"Every run has {protocol.amount:g} {unit.get(protocol.unit, protocol.unit)}, its evaluations on dev among "
        f"them. {protocol.points} points a grid and up to {protocol.extra} more beside its best, compared by the mean "
        f"loss on dev with seeds {tuning}; the best one runs with seeds {seeds}, and its best weights on dev see the "
        "test set once."
    )


def _of_methods(
    table: ContestTable, what: str, key: str, source: str, methods: Iterable[MethodStanding],
    columns: Sequence[Column], remarks: Sequence[str],
) -> Sheet:  # fmt: skip
    """A row for each method."""
    lines = [(method.header, [of(method) for _, of in columns]) for method in methods]
    headers = [header for header, _ in columns]
    return of_lines("Method", headers, lines, source=source, remarks=remarks, **_names(table, what, key))


def _names(table: ContestTable, what: str, key: str) -> dict[str, str]:
    """The label and the title of a sheet; ``what``: what it says; ``key``: of which runs."""
    label, title = "-".join(filter(None, (table.name, what, key))), ": ".join(filter(None, (table.title, what)))
    return {"label": label, "title": title}


def _accuracy(table: ContestTable, ranking: MethodRanking) -> list[Column]:
    base, adjusted = baseline(table, ranking), judged(table, ranking)
    return [
        ("Chosen", _chosen),
        ("Test loss ↓", lambda method: _number(method.loss, 1, ".4f", NONE if method.runs else "")),
        (f"Less {table.baseline}", lambda method: _against(method, base, losses, 1, "+.4f")),
        ("p (Holm)", lambda method: _text(_p(adjusted.get(method.header)))),
        ("Shown", lambda method: _text(shown(table, method, base, adjusted))),
        ("Test (%) ↑", _test),
        (f"Less {table.baseline} (points)", lambda method: _against(method, base, accuracies, 0.01, "+.1f")),
        ("p (McNemar)", lambda method: _text(_p(mcnemar(method, base)))),
        ("Dev at its best (%) ↑", lambda method: _number(method.dev, 0.01, ".1f")),
    ]


def _chosen(method: MethodStanding) -> CellText:
    if not method.runs:
        return _waiting(method)
    count = len(method.search.points)
    mixed = (
        f"Chosen of {count} points, more than the {method.most} that a method may have: the store has runs of "
        "other grids too, as of another base value, that cannot be told apart. Sweep each into a folder of its own."
    )
    notes = (mixed,) * (count > method.most) + (EDGE,) * method.is_edge
    return CellText(text=method.chosen + " (edge)" * method.is_edge, notes=notes)


def _waiting(method: MethodStanding) -> CellText:
    count = len(method.search.points) - len(method.search.waiting)
    text = f"{count} of at most {method.most} points tuned" if method.tuned else NO_VALUE
    note = "Its best point has not run with the protocol's seeds, or has neighbours yet to try."
    return CellText(text=text, tone="blank", notes=(note,) if method.search.best else ())


def _test(method: MethodStanding) -> CellText:
    if method.scores is None:
        return _text("")
    mean, low, high = method.scores
    return CellText(text=f"{100 * mean:.1f}", detail=f"({100 * low:.1f} to {100 * high:.1f})")


def _p(value: float | None) -> str:
    return "" if value is None else "< 0.0001" if value < 1e-4 else f"{value:.4f}"


def _against(
    method: MethodStanding, base: MethodStanding | None,
    of: Callable[[MethodStanding, MethodStanding], Difference | None], unit: float, form: str,
) -> CellText:  # fmt: skip
    if not method.runs or base is None:
        return _text("")
    difference = None if method is base else of(method, base)
    if difference is None:
        return CellText(text=NONE)
    value, low, high = (format(number / unit, form) for number in (difference.value, difference.low, difference.high))
    if math.isinf(difference.high):
        return CellText(text=value, notes=("One seed, or equal ones, have no spread: no interval is known.",))
    return CellText(text=value, detail=f"({low} to {high})")


def _shown(table: ContestTable, ranking: MethodRanking) -> list[str]:
    """Returns notes on what the columns mean, and which differences could be shown at all."""
    remarks = [
        f"Less {table.baseline}: paired by seed, in parentheses 95 % by Student's t for the loss, the primary outcome, "
        "and for accuracies by an analysis of variance by seed and example; p of the loss by Holm over all methods. A "
        "method whose best point is an end of what was tried has no claim.",
        _elsewhere(table, ranking),
    ]
    if least := reached(table, ranking):
        loss, points, count = least
        remarks.append(
            f"Reached: {loss:.2g} in loss and {100 * points:.1f} points between seeds can be shown, with power "
            f"{significance.POWER:.0%} at {LEVEL:.0%} after Holm over {count} methods, by the spread of these "
            "differences."
        )
    return remarks


def _elsewhere(table: ContestTable, ranking: MethodRanking) -> str:
    """A remark on a baseline that ran on another machine; "" of one that did not."""
    base = baseline(table, ranking)
    remark = "ran on {}: seeds, batches and directions are the same there, but not how products are rounded."
    return f"{base.header} {remark.format(base.elsewhere)}" if base and base.elsewhere else ""


def _costs(table: ContestTable) -> list[Column]:
    target = f"to {table.target:.0%} on dev"
    return [
        ("Forwards a step", lambda method: _number(method.forwards, 1, "g")),
        ("Steps", lambda method: _text(str(method.spec.steps) if method.spec else "")),
        ("Step (s) ↓", lambda method: _number(average(method.step_times), 1, ".3f")),
        ("Memory (MB) ↓", lambda method: _number(average(method.memories), MEBIBYTE, ".0f", NONE)),
        ("Weights moved (GB) ↓", lambda method: _number(method.moved, 1e9, ".0f", tone="predicted")),
        (f"Forwards {target} ↓", lambda method: _to_target(method, method.forwards_to_target, ".0f")),
        ("Seconds ↓", lambda method: _to_target(method, method.seconds_to_target, ".1f")),
        ("Joules ↓", lambda method: _to_target(method, method.joules_to_target, ".0f")),
    ]


def _cost_remarks(table: ContestTable, ranking: MethodRanking) -> list[str]:
    where = "the process's resident memory above its baseline" if ranking.spec.device == "cpu" else "the allocator's"
    remarks = [
        f"Means over seeds. Memory: {where}. Weights moved: of a whole run, calculated. To the target: up to the "
        f"first of {table.protocol.evaluations} evaluations on dev that reaches it, of the seeds that do; {NONE}: none "
        "did, or no power was measured."
    ]
    if any(run.evaluation["curve"][0][2] >= table.target for method in ranking.standings for run in method.runs):
        remarks.append("A run that is at the target at its start does not reach it: choose a higher target.")
    return [*remarks, BUSY * is_disturbed(ranking)]


def _to_target(method: MethodStanding, values: Sequence[float], form: str) -> CellText:
    if not method.runs:
        return _text("")
    if not values:
        return CellText(text=NONE)
    partly = f"({len(values)} of {len(method.runs)})" if len(values) < len(method.runs) else ""
    return CellText(text=rounded(statistics.fmean(values), form), detail=partly)


def _number(value: float | None, scale: float, form: str, absent: str = "", tone: str = "value") -> CellText:
    return _text(absent) if value is None else CellText(text=rounded(value / scale, form), tone=tone)


def _text(text: str) -> CellText:
    return CellText(text=text) if text else CellText(text=NO_VALUE, tone="blank")


def checked(claim: Claim, sides: Sequence[MethodStanding]) -> ClaimRatio | None:
    """The claim's difference (of accuracies) or ratio (of costs) with its 95 % interval; None where a side is lacking,
    or some of its seeds have not reached the target."""
    if claim.metric == "accuracy":
        difference = accuracies(*sides)
        if difference is None:
            return None
        return ClaimRatio(header=claim.ratio[0], value=difference.value, low=difference.low, high=difference.high)
    values = [(method.runs, _COSTS[claim.metric](method)) for method in sides]
    if any(len(costs) < len(runs) for runs, costs in values):
        return None
    over, under = (
        {run.spec.seed: math.log(cost) for run, cost in zip(runs, costs, strict=True)} for runs, costs in values
    )
    shared = [over[seed] - under[seed] for seed in over if seed in under]
    if not shared:
        return None
    mean = significance.paired(shared)
    if len(shared) > 1 and len(set(shared)) == 1:  # memory, and forwards by whole evaluations, need have no spread
        mean = replace(mean, low=mean.value, high=mean.value)
    earlier = [_earlier(method) if claim.metric == "forwards" else 0.0 for method in sides]
    low, high = mean.low - earlier[0], mean.high + earlier[1]
    return ClaimRatio(header=claim.ratio[0], value=math.exp(mean.value), low=_exp(low), high=_exp(high))


def _earlier(method: MethodStanding) -> float:
    """Returns by how much less log forwards to the target may be: it was reached after the evaluation before."""
    pairs = zip(method.forwards_to_target, method.forwards_before_target, strict=True)
    return statistics.fmean(math.log(value / before) if before else math.inf for value, before in pairs)


def _sides(claim: Claim, ranking: MethodRanking) -> list[MethodStanding]:
    return [next(method for method in ranking.standings if method.header == header) for header in claim.ratio]


def _lacking(claim: Claim, sides: Sequence[MethodStanding]) -> str:
    """Returns, for a claim on what the target took, the sides of which some seeds have run and not reached it."""
    if claim.metric != "forwards" or any(method.scores is None for method in sides):
        return ""
    short = [method for method in sides if len(method.reached) < len(method.runs)]
    return "; ".join(
        f"{method.header} reached the target with {len(method.reached)} of {len(method.runs)} seeds" for method in short
    )


_COSTS: dict[str, Callable[[MethodStanding], list[float]]] = {
    "forwards": lambda method: method.forwards_to_target,
    "step_time": lambda method: method.step_times,
    "memory": lambda method: method.memories,
}


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf


def _claim_line(table: ContestTable, claim: Claim, ranking: MethodRanking) -> list[CellText]:
    sides = _sides(claim, ranking)
    ratio, lacks = checked(claim, sides), _lacking(claim, sides)
    judged_claim = CheckedClaim(claim=claim, ratios=(ratio,) if ratio else (), expected=1)
    outcome = UNSHOWN if lacks else judged_claim.verdict
    outcome = outcome if is_whole(table, *sides) else OPEN
    edge = claim.metric in _TUNED and any(method.runs and method.is_edge for method in sides)
    claimed = limits(claim, 100 if claim.metric == "accuracy" else 1)
    evidence = lacks or _ratio_text(claim, ratio, sides)
    return [_text(text) for text in (_NAMES[claim.metric], claimed, evidence, NO_CLAIM if edge else WORDS[outcome])]


WORDS = {HOLDS: "holds here", FAILS: "does not", UNSHOWN: UNSHOWN, OPEN: OPEN}
"""A verdict as this table says it."""
_TUNED = ("accuracy", "forwards")
"""The metrics that depend on the constants that were tuned."""
_NAMES = {
    "accuracy": "test accuracy (points more)",
    "forwards": "forwards to the target (ratio)",
    "step_time": "seconds a step (ratio)",
    "memory": "memory (ratio)",
}


def _ratio_text(claim: Claim, ratio: ClaimRatio | None, sides: Sequence[MethodStanding]) -> str:
    """The claim's number with its interval, or with the reason why an end of that is not known."""
    if ratio is None:
        return ""
    scale, form = (100, "+.1f") if claim.metric == "accuracy" else (1, ".3g")
    value, low, high = (format(scale * number, form) for number in (ratio.value, ratio.low, ratio.high))
    if not math.isinf(ratio.high):
        return f"{value} ({low} to {high})"
    # the second reached the target at its first evaluation, at some time since its first step; or there is one seed
    if ratio.low > 0:
        return f"{value} ({low} or more)"
    if claim.metric == "forwards" and all(math.isinf(_earlier(method)) for method in sides):
        return f"{value} (no interval: some seeds of both were there by the first evaluation)"
    return f"{value} (too few seeds for an interval)"


COLUMNS = ("table", "machine", "model", "task", "method", "stage", "seed", "point", "spec_hash", "quantity", "value")


def numbers(table: ContestTable, ranked: Sequence[MethodRanking]) -> pd.DataFrame:
    """A line for each number of each run, of both stages, in base units."""
    lines = (
        (table.name, ranking.machine, run.spec.model, run.spec.task_name, method.header, stage, run.spec.seed,
         " ".join(f"{key}={run.spec.value(key)}" for key in method.contender.fields), run.spec.hash, quantity, value)
        for ranking in ranked for method in ranking.standings if not method.elsewhere
        for stage, runs in (("tuning", method.tuned), ("final", method.runs)) for run in runs
        for quantity, value in _values(method, run)
    )  # fmt: skip
    return frames.made((dict(zip(COLUMNS, line, strict=True)) for line in lines), COLUMNS)


def _values(method: MethodStanding, run: Result) -> Iterator[tuple[str, float]]:
    first, best = run.scores[0], run.evaluation.get("best", {})
    numbers = {
        f"dev_{first}": best.get(first), "dev_loss": best.get("loss"), "steps": float(run.spec.steps),
        f"test_{first}": run.evaluation.get("test", {}).get(first), "step_seconds": run.step_seconds,
        "test_loss": run.evaluation.get("test", {}).get("loss"),
        "device_peak_bytes": run.memory.get("device_peak_bytes"),
        "steps_to_target": next((step for run_reached, step in method.reached if run_reached is run), None),
    }  # fmt: skip
    yield from ((name, value) for name, value in numbers.items() if value is not None)
