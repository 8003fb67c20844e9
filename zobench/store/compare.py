"""Compares two sets of runs cell by cell: what became faster or slower, by how much, and whether that is shown."""

from __future__ import annotations

import itertools
import json
import operator
import os
import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from zobench import models
from zobench.result import Outcome, Result
from zobench.result.repeats import differ_in_threads, pairs
from zobench.runspec import FIELDS, METHODS, RunSpec, suggestion
from zobench.stats import LEVEL
from zobench.stats.intervals import FEW
from zobench.store import Store, evidence, first_sweep, machine_of, opened, printable, query
from zobench.store.judging import STEP, Judgement, Verdict, judge, judge_pairs
from zobench.store.measured import ALLOCATED_MEMORY, STEP_TIME

SHOWN, MANY = 3, 200
"""Where the sides share no cell: values of a field that are named, and cells among which the nearest are looked for."""
CHANCE = 10
"""Tests from which chance alone is worth a line."""
_COMMIT = re.compile(r"[0-9a-f]{7,40}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    """One cell that both sides have."""

    a: Result
    b: Result
    judgement: Judgement

    @property
    def memory_ratio(self) -> float | None:
        """B's peak of allocated device memory over A's; None unless both ended ok and measured it."""
        before, after = (ALLOCATED_MEMORY.of(side) for side in (self.a, self.b))
        return after / before if before and after is not None else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """Cells of both sides, in A's order, and the results whose cell the other side does not have."""

    pairs: list[Pair]
    only_a: list[Result]
    only_b: list[Result]


def side(word: str, root: Path) -> tuple[list[Result], list[str]]:
    """The runs that ``word`` names, and the problems of reading them: a results folder (or one machine's folder in
    it), or a machine or commit (7 digits or more) of the store in ``root``, or its runs that fulfil conditions
    (``engine=offload,tier=disk``).

    Raises ``ValueError`` if it names nothing, nothing that was measured, or more than one thing.
    """
    named: dict[str, list[Result]] = {}
    problems: list[str] = []
    if "=" in word and not os.path.exists(word):  # which also takes a text that is too long for a path
        return _conditioned(word, root)
    if os.path.isdir(word):
        store, only = opened(Path(word))
        named[f"the folder {word}"], problems = store.load(only), store.problems
    machines: dict[str, list[Result]] = {}
    commits: dict[str, list[Result]] = {}
    if os.sep not in word and word not in (".", ".."):
        store = Store(root)
        for result in store.load():
            machines.setdefault(machine_of(result), []).append(result)
            if commit := commit_of(result):
                commits.setdefault(commit, []).append(result)
        problems += store.problems
        named |= {f"the machine {name}": results for name, results in machines.items() if name == word}
        if _COMMIT.fullmatch(word):
            named |= {f"the commit {name}": results for name, results in commits.items() if name.startswith(word)}
    kept = list(named.values())
    if not kept:
        near = [*machines, *(name[:12] for name in commits)]
        remedy = suggestion(word, near) if machines else f"{root} has no results: {first_sweep(root)}"
        raise ValueError(
            f"A and B must be results folders, or machines or commits (7 digits or more) in {root}, but got {word!r}; "
            f"{remedy}"
        )
    if any(results != kept[0] for results in kept):
        raise ValueError(f"{word!r} must name one thing, but got {', '.join(named)}; write ./{word} or more digits")
    if not kept[0]:
        raise ValueError(
            f"{word!r} must hold results, but has none that can be read; see `zobench results {shlex.quote(word)}`"
        )
    return kept[0], problems


def _conditioned(word: str, root: Path) -> tuple[list[Result], list[str]]:
    store = Store(root)
    chosen = query.select(store.load(), query.conditions(word.split(",")))
    if not chosen:
        raise ValueError(f"{word!r} must name results, but none in {root} fulfils it; see `zobench results {root}`")
    return chosen, store.problems


def differing_fields(words: Iterable[str]) -> frozenset[str]:
    """The fields in which two sides differ that are named by conditions, and so may differ in a pair of cells."""
    texts = [text for word in words if not os.path.exists(word) for text in word.split(",") if "=" in text]
    named = {text.partition("=")[0].strip() for text in texts}
    return frozenset(name for name in named if name.partition(".")[0] in FIELDS)


def commit_of(result: Result) -> str | None:
    """The commit of zobench that measured ``result``, if it ran from a checkout."""
    commit = (result.environment.source or {}).get("commit")
    return commit if isinstance(commit, str) and _COMMIT.fullmatch(commit) else None


def host_of(result: Result) -> str:
    """Returns a name that results of the same hardware share; software may differ, which is often what is compared."""
    hardware = result.environment.hardware
    return json.dumps(hardware, sort_keys=True) if hardware else machine_of(result)


def compare(
    a: Sequence[Result], b: Sequence[Result], *, tolerance: float = 0.02, across_machines: bool = False,
    may_differ: Collection[str] = (),
) -> Comparison:  # fmt: skip
    """Pairs cells of equal resolved specs; only the device's index (cuda:0, cuda:1) and fields ``may_differ`` may
    differ.

    Results of different hardware are only compared ``across_machines``. Raises ``ValueError`` if the sides share no
    hardware or no cell, or if one of them has several results of a cell.
    """
    hosts = {host_of(result) for result in a}, {host_of(result) for result in b}
    if across_machines:
        if any(len(hosts_of_side) > 1 for hosts_of_side in hosts):
            raise ValueError(
                f"`--across-machines` needs one machine on each side, but got {_machines(a)} and {_machines(b)}; "
                "name a machine with --results"
            )
    elif not hosts[0] & hosts[1]:
        raise ValueError(
            f"A and B must be of the same hardware, but got {_machines(a)} and {_machines(b)}; "
            "add --across-machines to compare them all the same"
        )
    cells_a, cells_b = _cells("A", a, across_machines, may_differ), _cells("B", b, across_machines, may_differ)
    pairs = [
        Pair(a=cells_a[key], b=cells_b[key], judgement=_judged(cells_a[key], cells_b[key], tolerance))
        for key in cells_a
        if key in cells_b
    ]
    if not pairs:
        words, differences = _differences(list(cells_a.values()), list(cells_b.values()), may_differ)
        raise ValueError(
            f"A and B must share a cell, but none of {len(cells_a)} and {len(cells_b)} cells is in both; "
            f"{_equal_sides(differences) if may_differ else 'run the same matrix on both sides'}"
            f"{_said(words, differences)}"
        )
    return Comparison(
        pairs=pairs,
        only_a=[result for key, result in cells_a.items() if key not in cells_b],
        only_b=[result for key, result in cells_b.items() if key not in cells_a],
    )


def _differences(
    a: Sequence[Result], b: Sequence[Result], may_differ: Collection[str]
) -> tuple[str, list[tuple[str, list[Any], list[Any]]]]:
    """("they" or "the nearest two", the fields in which they differ, each with its values in A and in B).

    Named are the fields of which no value is on both sides; if there is none, those in which the two nearest cells
    differ; none where only the machine does.
    """
    options = sorted({f"options.{name}" for result in (*a, *b) for name in result.spec.options})
    fields = [field for field in (*FIELDS, *options) if field not in (*may_differ, "options")]
    specs = [[result.spec.replace(device=_kind(result)) for result in side] for side in (a, b)]
    rows_a, rows_b = ([tuple(map(spec.value, fields)) for spec in side] for side in specs)

    def differing(a: Iterable[tuple[Any, ...]], b: Iterable[tuple[Any, ...]]) -> list[tuple[str, list[Any], list[Any]]]:
        columns = zip(fields, zip(*a, strict=True), zip(*b, strict=True), strict=True)
        return [(field, list(dict.fromkeys(x)), list(dict.fromkeys(y))) for field, x, y in columns if not {*x} & {*y}]

    if differences := differing(rows_a, rows_b):
        return "they", differences
    nearest = min(itertools.product(rows_a[:MANY], rows_b[:MANY]), key=lambda pair: sum(map(operator.ne, *pair)))
    return "the nearest two", differing(nearest[:1], nearest[1:])


def _said(words: str, differences: Sequence[tuple[str, list[Any], list[Any]]]) -> str:
    """``: they differ in seq_len (2048 in A, 64 in B)``; "" where nothing differs."""
    listed = [f"{field} ({_few(values_a)} in A, {_few(values_b)} in B)" for field, values_a, values_b in differences]
    return printable(f": {words} differ in {', '.join(listed)}") if listed else ""


def _equal_sides(differences: Sequence[tuple[str, list[Any], list[Any]]]) -> str:
    """``add tier=device to A and tier=disk to B``: sides that name what differs may differ in it. None is an option
    that a side's method does not have, and cannot name."""
    sides = [
        (",".join(f"{name}={values[side][0]}" for name, *values in differences if values[side][0] is not None), side)
        for side in (0, 1)
    ]
    added = " and ".join(f"{text} to {'AB'[side]}" for text, side in sides if text)
    return printable(f"add {added}") if added else "run the same matrix on both sides"


def _few(values: Sequence[Any]) -> str:
    return ", ".join(map(str, values[:SHOWN])) + (", ..." if len(values) > SHOWN else "")


def _machines(results: Sequence[Result]) -> str:
    return ", ".join(sorted({machine_of(result) for result in results}))


def _cells(
    name: str, results: Sequence[Result], across: bool, may_differ: Collection[str]
) -> dict[tuple[str, tuple[Any, ...]], Result]:
    cells: dict[tuple[str, tuple[Any, ...]], Result] = {}
    for result in results:
        other = cells.setdefault(("" if across else host_of(result), cell_of(result, may_differ)), result)
        if other is not result:
            machines = "; ".join(f"{machine_of(run)} on {run.spec.device}" for run in (other, result))
            raise ValueError(
                f"{name} must have one result of each cell, but has two of {printable(result.spec.label)}: {machines}; "
                "name one machine with --results"
            )
    return cells


def _kind(result: Result) -> str:
    """The device without its index."""
    return result.spec.device.partition(":")[0]


def cell_of(result: Result, may_differ: Collection[str] = ()) -> tuple[Any, ...]:
    """Returns what two results of one cell have in common: all fields but the device's index and ``may_differ``."""
    spec = result.spec.replace(device=_kind(result))
    options = tuple(item for item in spec.options.items() if f"options.{item[0]}" not in may_differ)
    values = {**{field: getattr(spec, field) for field in FIELDS}, "options": options}
    return tuple(value for field, value in values.items() if field not in may_differ)


def _judged(a: Result, b: Result, tolerance: float) -> Judgement:
    if a.outcome is not Outcome.OK or b.outcome is not Outcome.OK:
        return Judgement(verdict=Verdict.AMBIGUOUS, reason=f"A ended {a.outcome} and B {b.outcome}")
    if (work := work_of_steps(a.spec, b.spec)) is None:
        reason = "steps of different tasks, or of methods whose passes are not known here, have no work in common"
        return Judgement(verdict=Verdict.AMBIGUOUS, reason=reason)
    unit, share = work
    if evidence.are_alone(a, b):
        judgement = judge(a.measured_seconds, [seconds * share for seconds in b.measured_seconds], tolerance)
    elif (ratio := evidence.ratio(b, a, STEP_TIME)) is None:
        judgement = judge(a.run_seconds, [seconds * share for seconds in b.run_seconds], tolerance, "processes")
    else:
        ends = ratio.interval and (ratio.interval[0] * share, ratio.interval[1] * share)
        judgement = judge_pairs(replace(ratio, value=ratio.value * share, interval=ends), tolerance)
    return replace(judgement, unit=unit)


def work_of_steps(a: RunSpec, b: RunSpec) -> tuple[str, float] | None:
    """(what the times of steps of ``a`` and ``b`` are compared per, the work of a step of ``a`` over that of ``b``).

    (:data:`STEP`, 1) where a step computes as much on both sides; else per token, with a task per example, of each
    forward pass. Where a side has a backward pass or forward derivatives, whose passes are of another kind, per
    token of its batch. None where neither means anything: different tasks, or a method whose number of forward passes
    depends on a model that is not known here.
    """
    if a.task != b.task:
        return None
    unit, counts = "token", [float(spec.tokens_per_step) for spec in (a, b)]
    if a.task != "none":
        unit, counts = "example", [float(spec.batch_size) for spec in (a, b)]
    if not any(kind.backpropagates or kind.tangents for kind in map(METHODS.get, (a.method, b.method))):
        looks = [_looks(a), _looks(b)]
        if looks[0] != looks[1]:
            if any(passes is None for passes, _ in looks):
                return None
            unit += " and forward pass"
            counts = [count * (passes or 1) for count, (passes, _) in zip(counts, looks, strict=True)]
    return (STEP, 1.0) if counts[0] == counts[1] else (unit, counts[0] / counts[1])


def _looks(spec: RunSpec) -> tuple[float | None, tuple[object, ...]]:
    """(forward passes over its batch in a step, ()). Where these depend on the layers of a model that is not known
    here, (None, what they depend on)."""
    kind = METHODS.get(spec.method)
    few, many = kind.looks(spec, 1), kind.looks(spec, 9)
    if few == many:
        return few, ()
    if models.is_known(spec):
        return kind.looks(spec, models.of(spec).layers), ()
    return None, (spec.model, spec.config_hash, few, many)


def regressions(comparison: Comparison, limit: float) -> list[str]:
    """Returns a line for each thing that is worse in B by more than ``limit`` (a share): steps shown to be slower,
    memory, cells that end ok no more. A cell that B does not have is no regression: B may have run a part of what A
    did."""
    worse = []
    for pair in comparison.pairs:
        label, ratio, memory = pair.a.spec.label, pair.judgement.ratio, pair.memory_ratio
        if pair.a.outcome is Outcome.OK and pair.b.outcome is not Outcome.OK:
            worse.append(f"{label}: ended ok in A and {pair.b.outcome} in B: {pair.b.reason}")
        if pair.judgement.verdict is Verdict.SLOWER and ratio is not None and ratio > 1 + limit:
            worse.append(f"{label}: a {pair.judgement.unit} takes {ratio:.3f} times as long")
        if memory is not None and memory > 1 + limit:
            worse.append(f"{label}: {memory:.3f} times the device memory")
    return worse


def cautions(comparison: Comparison) -> list[str]:
    """Returns cautions for readers of the verdicts about how the runs were measured."""
    lines = []
    for name, results in (("A", [pair.a for pair in comparison.pairs]), ("B", [pair.b for pair in comparison.pairs])):
        disturbed = [result.spec.label for result in results if result.disturbances]
        if disturbed:
            lines.append(
                f"{_count(len(disturbed), 'cell')} of {name} ran while others used the machine: " + "; ".join(disturbed)
            )
        dirty = sum(bool((result.environment.source or {}).get("dirty")) for result in results if commit_of(result))
        if dirty:
            lines.append(f"{_count(dirty, 'cell')} of {name} ran with uncommitted changes")
    for differ, what in (
        (_differ_in_writing, "wrote pending updates after another number of steps in B than in A, as rates made it"),
        (differ_in_threads, "computed with another number of threads in B than in A"),
    ):
        labels = [pair.a.spec.label for pair in comparison.pairs if any(differ(*runs) for runs in _compared(pair))]
        if labels:
            lines.append(f"{_count(len(labels), 'cell')} {what}: {'; '.join(labels)}")
    return lines


def _compared(pair: Pair) -> Iterator[tuple[Result, Result]]:
    """The two cells, and those of their runs whose times are compared: of the same rounds, else each with each."""
    yield pair.a, pair.b
    yield from pairs(pair.a, pair.b) or itertools.product(pair.a.runs, pair.b.runs)


def _differ_in_writing(a: Result, b: Result) -> bool:
    """Whether their pending updates were written after other numbers of steps, where rates of a machine chose that."""
    steps = {plan["steps"] for side in (a, b) if (plan := side.environment.writeback_plan) is not None}
    return len(steps) > 1


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def remarks(comparison: Comparison, reasons: Sequence[str]) -> Iterator[str]:
    """Yields remarks for readers of the verdicts: the tests, chance, the numbered ``reasons`` of AMBIGUOUS, and the
    cells of one side only."""
    yield (
        "A s, B s: the median step. B is: by the two-sided Mann-Whitney test at 5 %; SAME also needs the interval "
        "within the tolerance. memory: peak device memory, B / A."
    )
    if units := sorted({pair.judgement.unit for pair in comparison.pairs} - {STEP}):
        yield f"B / A is of the time per {' or per '.join(units)}, as the work of a step differs between A and B."
    if all(pair.judgement.values == "steps" for pair in comparison.pairs):
        yield "Each side is one process, and another could be faster or slower by more: see `zobench sweep --repeats`."
    values = [pair.judgement.values for pair in comparison.pairs]
    rounds = [int(text.partition(" ")[0]) for text in values if "round" in text]
    pairs = "of pairs of processes that ran in the same round of a sweep"
    if any(count >= FEW for count in rounds):
        yield f"From rounds: the signed-rank test {pairs}."
    if any(1 < count < FEW for count in rounds):
        yield f"From fewer than {FEW} rounds: Student's t test of the log ratios {pairs}, whose spread is a guess."
    judged = sum(pair.judgement.interval is not None for pair in comparison.pairs)
    if judged >= CHANCE:
        yield f"Of {judged} tests at 5 %, about {judged * LEVEL:.0f} call equal cells different by chance."
    for number, reason in enumerate(reasons, 1):
        yield f"AMBIGUOUS {number}: {reason}."
    for name, results in (("A", comparison.only_a), ("B", comparison.only_b)):
        if results:
            cells = "; ".join(f"{result.spec.label} ({result.spec.hash[:7]})" for result in results)
            yield f"Only in {name}, {len(results)}: {cells}"
