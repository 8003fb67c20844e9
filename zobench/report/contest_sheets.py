"""The sheets of a protocol's table: accuracies with what they can show, costs, and the papers' claims."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from zobench.report import frames
from zobench.report.claims import FAILS, HOLDS, OPEN, UNSHOWN, Ratio, verdict
from zobench.report.contest import ContestTable, Ranking, Standing, rankings, unmeasured
from zobench.report.paired import NO_CLAIM, accuracies, baseline, is_whole, judged, losses, mcnemar, reached, shown
from zobench.report.quantity import rounded
from zobench.report.sheet import CellText, Sheet, of_frame
from zobench.report.table import Claim
from zobench.result import Result
from zobench.stats import LEVEL, significance
from zobench.stats.significance import Difference

if TYPE_CHECKING:
    import pandas as pd

NONE, BLANK = "—", "·"
MEBIBYTE = 2**20

Column = tuple[str, Callable[[Standing], CellText]]


def sheets(table: ContestTable, results: Sequence[Result]) -> list[Sheet]:
    """Per machine and model: accuracies, costs, claims; without any run one sheet that says so."""
    found = rankings(table, results)
    if not found:
        remarks = [_how(table), f"`zobench sweep {table.runner}` measures it."]
        return [_sheet(table, "", "none", "nothing measured yet", unmeasured(table), [("Test (%) ↑", _test)], remarks)]
    return list(itertools.chain.from_iterable(_of(table, ranking) for ranking in found))


def _of(table: ContestTable, ranking: Ranking) -> Iterator[Sheet]:
    spec = ranking.spec
    source = f"measured on {ranking.machine}" + (f" ({ranking.description})" if ranking.description else "")
    about = f"{spec.model} on {spec.task_name}, batch {spec.batch_size}"
    rows = ranking.standings
    accuracy = [_how(table), about, *_shown(table, ranking), *([table.caption] if table.caption else [])]
    yield _sheet(table, "accuracy", _key(ranking), source, rows, _accuracy(table, ranking), accuracy)
    yield _sheet(table, "costs", _key(ranking), source, rows, _costs(table), [about, *_cost_remarks(table, ranking)])
    if table.claims:
        yield _claims(table, ranking, source)


def _key(ranking: Ranking) -> str:
    return f"{ranking.spec.model}-{ranking.spec.task_name}-{ranking.machine}"


def _how(table: ContestTable) -> str:
    protocol = table.protocol
    unit = {"forwards": "forwards of a batch (a backward pass is two)", "gigabytes": "GB of weights moved"}
    tuning, seeds = (", ".join(map(str, own)) for own in (protocol.tuning_seeds, protocol.seeds))
    return (
        f"Every run has {protocol.amount:g} {unit.get(protocol.unit, protocol.unit)}, its evaluations on dev among "
        f"them. {protocol.points} points a grid and up to {protocol.extra} more beside its best, compared by the mean "
        f"loss on dev with seeds {tuning}; the best one runs with seeds {seeds}, and its best weights on dev see the "
        "test set once."
    )


def _sheet(
    table: ContestTable, what: str, key: str, source: str, rows: Sequence[Standing], columns: Sequence[Column],
    remarks: Sequence[str],
) -> Sheet:  # fmt: skip
    body = [[of(one) for _, of in columns] for one in rows]
    headers = [header for header, _ in columns]
    return _made(table, (what, key), source, ("Method", [one.header for one in rows]), headers, body, remarks)


def _made(
    table: ContestTable, about: tuple[str, str], source: str, rows: tuple[str, Sequence[str]], headers: Sequence[str],
    body: Sequence[Sequence[CellText]], remarks: Sequence[str],
) -> Sheet:  # fmt: skip
    """``about``: what the sheet says, and of which runs; ``rows``: their common heading, and their own."""
    import pandas as pd

    what, key = about
    frame = pd.DataFrame(body, index=pd.Index(rows[1], name=rows[0]), columns=list(headers))
    label, title = "-".join(filter(None, (table.name, what, key))), ": ".join(filter(None, (table.title, what)))
    return of_frame(frame, label=label, title=title, source=source, remarks=remarks)


def _accuracy(table: ContestTable, ranking: Ranking) -> list[Column]:
    base, adjusted = baseline(table, ranking), judged(table, ranking)
    return [
        ("Chosen", _chosen),
        ("Test loss ↓", lambda one: _number(one.loss, 1, ".4f", NONE if one.runs else "")),
        (f"Less {table.baseline}", lambda one: _against(one, base, losses, 1, "+.4f")),
        ("p (Holm)", lambda one: _text(_p(adjusted.get(one.header)))),
        ("Shown", lambda one: _text(shown(table, one, base, adjusted))),
        ("Test (%) ↑", _test),
        (f"Less {table.baseline} (points)", lambda one: _against(one, base, accuracies, 0.01, "+.1f")),
        ("p (McNemar)", lambda one: _text(_p(mcnemar(one, base)))),
        ("Dev at its best (%) ↑", lambda one: _number(one.dev, 0.01, ".1f")),
    ]


def _chosen(one: Standing) -> CellText:
    if not one.runs:
        return _waiting(one)
    count = len(one.search.points)
    notes = []
    if count > one.most:
        notes.append(
            f"Chosen of {count} points, more than the {one.most} that a method may have: the store has runs of other "
            "grids too, as of another base value, that cannot be told apart. Sweep each into a folder of its own."
        )
    if one.is_edge:
        notes.append("Edge: its best point is an end of what was tried, so nothing is claimed of this method.")
    return CellText(text=one.chosen + " (edge)" * one.is_edge, own=tuple(notes))


def _waiting(one: Standing) -> CellText:
    count = len(one.search.points) - len(one.search.waiting)
    told = f"{count} of at most {one.most} points tuned" if one.tuned else BLANK
    own = (
        ()
        if one.search.best is None
        else ("Its best point has not run with the protocol's seeds, or has neighbours yet to try.",)
    )
    return CellText(text=told, tone="blank", own=own)


def _test(one: Standing) -> CellText:
    if one.scores is None:
        return _text("")
    low, high = one.scores.interval
    return CellText(text=f"{100 * one.scores.mean:.1f}", detail=f"({100 * low:.1f} to {100 * high:.1f})")


def _p(value: float | None) -> str:
    return "" if value is None else "< 0.0001" if value < 1e-4 else f"{value:.4f}"


def _against(
    one: Standing, base: Standing | None, of: Callable[[Standing, Standing], Difference | None], unit: float, form: str
) -> CellText:
    if not one.runs or base is None:
        return _text("")
    known = None if one is base else of(one, base)
    if known is None:
        return CellText(text=NONE)
    value, low, high = (format(number / unit, form) for number in (known.value, known.low, known.high))
    if math.isinf(known.high):
        return CellText(text=value, own=("One seed has no spread, so that no interval is known.",))
    return CellText(text=value, detail=f"({low} to {high})")


def _shown(table: ContestTable, ranking: Ranking) -> list[str]:
    """What the columns mean, and which differences could be shown at all."""
    told = [
        f"Less {table.baseline}: paired by seed, in parentheses 95 % by Student's t for the loss, the primary outcome, "
        "and for accuracies by a bootstrap of seeds and test examples; p of the loss by Holm over all methods. A "
        "method whose best point is an end of what was tried has no claim."
    ]
    known = reached(table, ranking)
    if known is not None:
        loss, points, count = known
        told.append(
            f"Reached: {loss:.2g} in loss and {100 * points:.1f} points between seeds can be shown, with power "
            f"{significance.POWER:.0%} at {LEVEL:.0%} after Holm over {count} methods, by the spread of these "
            "differences."
        )
    return told


def _costs(table: ContestTable) -> list[Column]:
    target = f"to {table.target:.0%} on dev"
    return [
        ("Forwards a step", lambda one: _number(one.forwards, 1, "g")),
        ("Steps", lambda one: _text(str(one.spec.steps) if one.spec else "")),
        ("Step (s) ↓", lambda one: _number(_mean(one.step_times), 1, ".3f")),
        ("Memory (MB) ↓", lambda one: _number(_mean(one.memories), MEBIBYTE, ".0f", NONE)),
        ("Weights moved (GB) ↓", lambda one: _predicted(one.moved)),
        (f"Forwards {target} ↓", lambda one: _to_target(one, one.forwards_to_target, ".0f")),
        ("Seconds ↓", lambda one: _to_target(one, one.seconds_to_target, ".1f")),
        ("Joules ↓", lambda one: _to_target(one, one.joules_to_target, ".0f")),
    ]


def _cost_remarks(table: ContestTable, ranking: Ranking) -> list[str]:
    where = "the process's resident memory above its baseline" if ranking.spec.device == "cpu" else "the allocator's"
    told = [
        f"Means over seeds. Memory: {where}. Weights moved: of a whole run, calculated. To the target: up to the "
        f"first of {table.protocol.evaluations} evaluations on dev that reaches it, of the seeds that do; {NONE}: none "
        "did, or no power was measured."
    ]
    busy = any(run.disturbances for one in ranking.standings for run in one.runs)
    return told + (["Other processes kept the machine busy during some of the runs: their times may not count."] * busy)


def _to_target(one: Standing, values: Sequence[float], form: str) -> CellText:
    if not one.runs:
        return _text("")
    if not values:
        return CellText(text=NONE)
    partly = f"({len(values)} of {len(one.runs)})" if len(values) < len(one.runs) else ""
    return CellText(text=rounded(statistics.fmean(values), form), detail=partly)


def _predicted(value: float | None) -> CellText:
    return _text("") if value is None else CellText(text=rounded(value / 1e9, ".0f"), tone="predicted")


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None


def _number(value: float | None, scale: float, form: str, absent: str = "") -> CellText:
    if value is None:
        return _text(absent)
    return CellText(text=f"{value / scale:g}" if form == "g" else rounded(value / scale, form))


def _text(text: str) -> CellText:
    return CellText(text=text) if text else CellText(text=BLANK, tone="blank")


def checked(claim: Claim, ranking: Ranking) -> Ratio | None:
    """The claim's difference (of accuracies) or ratio (of costs) with its 95 % interval; None where a side is lacking,
    or some of its seeds have not reached the target."""
    sides = _sides(claim, ranking)
    if any(one.scores is None for one in sides):
        return None
    first, second = sides
    if claim.metric == "accuracy":
        known = accuracies(first, second)
        if known is None:
            return None
        return Ratio(header=claim.ratio[0], value=known.value, low=known.low, high=known.high)
    values = [_COSTS[claim.metric](one) for one in sides]
    if any(len(own) < len(one.runs) for own, one in zip(values, sides, strict=True)):
        return None
    logs = [
        dict(zip([run.spec.seed for run in one.runs], map(math.log, own), strict=True))
        for own, one in zip(values, sides, strict=True)
    ]
    shared = [logs[0][seed] - logs[1][seed] for seed in logs[0] if seed in logs[1]]
    if not shared:
        return None
    told = significance.paired(shared)
    earlier = [_earlier(one) if claim.metric == "forwards" else 0.0 for one in sides]
    low, high = told.low - earlier[0], told.high + earlier[1]
    return Ratio(header=claim.ratio[0], value=math.exp(told.value), low=_exp(low), high=_exp(high))


def _earlier(one: Standing) -> float:
    """By how much the logarithm of a method's forwards to the target may be less, as it reached that at some time after
    the evaluation before."""
    pairs = zip(one.forwards_to_target, one.forwards_before_target, strict=True)
    return statistics.fmean(math.log(value / before) if before else math.inf for value, before in pairs)


def _sides(claim: Claim, ranking: Ranking) -> list[Standing]:
    return [next(one for one in ranking.standings if one.header == header) for header in claim.ratio]


def _lacking(claim: Claim, ranking: Ranking) -> str:
    """Of a claim on what the target took: the sides of which some seeds have run and not reached it."""
    sides = _sides(claim, ranking)
    if claim.metric != "forwards" or any(one.scores is None for one in sides):
        return ""
    short = [one for one in sides if len(one.reached) < len(one.runs)]
    return "; ".join(
        f"{one.header} reached the target with {len(one.reached)} of {len(one.runs)} seeds" for one in short
    )


_COSTS: dict[str, Callable[[Standing], list[float]]] = {
    "forwards": lambda one: one.forwards_to_target,
    "step_time": lambda one: one.step_times,
    "memory": lambda one: one.memories,
}


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf


def _claims(table: ContestTable, ranking: Ranking, source: str) -> Sheet:
    body = []
    for claim in table.claims:
        found, lacks = checked(claim, ranking), _lacking(claim, ranking)
        told = verdict(claim, (found,)) if found else (UNSHOWN if lacks else OPEN)
        sides = _sides(claim, ranking)
        edge = claim.metric in _TUNED and any(one.runs and one.is_edge for one in sides)
        told = told if is_whole(table, *sides) else OPEN
        texts = _NAMES[claim.metric], _bounds(claim), lacks or _held(claim, found), NO_CLAIM if edge else WORDS[told]
        body.append([_text(text) for text in texts])
    remark = (
        "Holds here: the whole interval is within the bounds; does not: none of it is; not shown: neither; no claim: "
        "the best point of one of the two is an end of what was tried. A claim was made of other models and tasks; "
        f"this is {ranking.spec.model} on {ranking.spec.task_name}."
    )
    return _made(
        table, ("the papers' claims", _key(ranking)), source, ("Claim", [claim.text for claim in table.claims]),
        ["Checked on", "Claimed", "Here (95 %)", "Verdict"], body, [remark],
    )  # fmt: skip


WORDS = {HOLDS: "holds here", FAILS: "does not", UNSHOWN: UNSHOWN, OPEN: OPEN}
"""A verdict as this table says it."""
_TUNED = ("accuracy", "forwards")
"""What depends on the constants that were tuned."""
_NAMES = {
    "accuracy": "test accuracy (points more)",
    "forwards": "forwards to the target (ratio)",
    "step_time": "seconds a step (ratio)",
    "memory": "memory (ratio)",
}


def _bounds(claim: Claim) -> str:
    scale = 100 if claim.metric == "accuracy" else 1
    pairs = (("at least", claim.at_least), ("at most", claim.at_most))
    return " and ".join(f"{word} {bound * scale:g}" for word, bound in pairs if bound is not None)


def _held(claim: Claim, found: Ratio | None) -> str:
    if found is None:
        return ""
    scale, form = (100, "+.1f") if claim.metric == "accuracy" else (1, ".3g")
    value, low, high = (format(scale * number, form) for number in (found.value, found.low, found.high))
    return f"{value} (too few seeds for an interval)" if math.isinf(found.high) else f"{value} ({low} to {high})"


COLUMNS = ("table", "machine", "model", "task", "method", "stage", "seed", "point", "spec_hash", "quantity", "value")


def numbers(table: ContestTable, results: Sequence[Result]) -> pd.DataFrame:
    """A line for each number of each run, of both stages, in base units."""
    lines = (
        (table.name, ranking.machine, run.spec.model, run.spec.task_name, one.header, stage, run.spec.seed,
         " ".join(f"{key}={run.spec.value(key)}" for key in one.contender.fields), run.spec.hash, quantity, value)
        for ranking in rankings(table, results) for one in ranking.standings
        for stage, runs in (("tuning", one.tuned), ("final", one.runs)) for run in runs
        for quantity, value in _values(one, run)
    )  # fmt: skip
    return frames.made((dict(zip(COLUMNS, line, strict=True)) for line in lines), COLUMNS)


def _values(one: Standing, run: Result) -> Iterator[tuple[str, float]]:
    first, best = run.scores[0], run.evaluation.get("best", {})
    known = {
        f"dev_{first}": best.get(first), "dev_loss": best.get("loss"), "steps": float(run.spec.steps),
        f"test_{first}": run.evaluation.get("test", {}).get(first), "step_seconds": run.step_seconds,
        "test_loss": run.evaluation.get("test", {}).get("loss"),
        "device_peak_bytes": run.memory.get("device_peak_bytes"),
        "steps_to_target": next((step for own, step in one.reached if own is run), None),
    }  # fmt: skip
    yield from ((name, value) for name, value in known.items() if value is not None)
