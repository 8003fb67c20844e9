"""Plans and runs a matrix of cells on this machine: its rounds, its budget, the later stages of a protocol."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from zobench import recipes
from zobench.execute import rounds, together
from zobench.execute.campaign import whole_round
from zobench.execute.plan import Plan, Step, is_settled
from zobench.execute.rounds import MOST, Repeats
from zobench.execute.sweep import Summary, sweep, sweep_in_turns
from zobench.machine.memory import available_host_bytes
from zobench.machine.processes import torchrun_ranks
from zobench.recipes.matrix import Matrix
from zobench.recipes.protocol import Contest, is_done
from zobench.report import Table, artifacts, power
from zobench.result import Outcome, Result
from zobench.runspec import RunSpec
from zobench.session import submitted
from zobench.session.inputs import check_price, check_words, parse_outcomes, parse_percent, parse_seconds
from zobench.session.machine import LocalMachine, keeping, matrix_cells, selftest_first
from zobench.stats.intervals import FEW
from zobench.store.evidence import settled


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepOptions:
    """How a matrix is swept.

    ``changes``: field to value, for all cells, as ``{"steps": 5}``. ``budget`` of all cells (None: the matrix's) and
    ``timeout`` of one: seconds, or text as ``2h30m``. ``retry``: outcomes to run again, as ``oom,failed``, or none.
    ``repeats`` and ``until`` (as ``2%``): how often each cell runs, in rounds of all cells, and until which width of
    its median's interval; None: as the matrix says. ``turns``: the cells of a round run side by side, in turns of a
    step. ``detect_warm_up`` and ``price`` (of an hour): what is made of each new result.
    ``wanted``: which of the cells to run. ``part``: what of the matrix is otherwise in a part of a campaign, whose
    rounds have numbers from ``first_round`` on.

    Raises ``ValueError``, one line, for what can be seen to be wrong without the matrix.
    """

    changes: Mapping[str, Any] = field(default_factory=dict)
    budget: str | float | None = None
    timeout: str | float | None = None
    retry: str = "failed,contaminated"
    repeats: int | None = None
    until: str | None = None
    turns: bool = False
    detect_warm_up: bool = False
    price: float | None = None
    wanted: Callable[[RunSpec], bool] | None = None
    part: Mapping[str, Any] | None = None
    first_round: int = 0

    def __post_init__(self) -> None:
        parse_seconds("timeout", self.timeout)
        parse_outcomes(self.retry)
        if "device" in self.changes:
            raise ValueError(f"`changes` must not hold device, but got {self.changes['device']!r}; give it as device=")
        check_words(self.changes)
        check_price(self.price)


@dataclass(frozen=True, kw_only=True, slots=True)
class Stages:
    """The later stages of a protocol's sweep. ``results``: the machine's by their hash; ``plan`` plans cells, ``show``
    shows a plan under a heading, ``run`` runs one within so many seconds (None: as many as it takes)."""

    contest: Contest
    results: Callable[[], Mapping[str, Result]]
    plan: Callable[[Sequence[RunSpec]], Plan]
    show: Callable[[str, Sequence[Step], float | None], None]
    run: Callable[[Plan, float | None], Summary]

    def foresee(self) -> None:
        """Shows the plan of the winners' runs, for which the first point of a grid stands until it is tuned."""
        results, protocol = self.results(), self.contest.protocol
        waiting = self._untuned(results)
        later = self.contest.foreseen(results)[len(self.contest.cells) :]
        if not later:
            return
        stand = f" (of {len(waiting)} methods it is not known yet: the first stands in)" if waiting else ""
        self.show(
            f"Then points beyond a grid whose best one is its end (at most {protocol.extra} each, not in this plan), "
            f"and each method's best point with {len(protocol.seeds)} seeds, scored on the test set{stand}",
            self.plan(later).steps, None,
        )  # fmt: skip

    def follow(self, first: Summary, budget: float | None, begin: float) -> tuple[Summary, list[Step], int]:
        """Runs the later stages in what is left of the ``budget`` of seconds since ``begin`` (``time.monotonic()``):
        what all stages came to, the steps of the later ones, and how many runs are not among these but still to come,
        of methods that are not tuned yet, or of a stage that did not begin."""
        steps: list[Step] = []
        measured = {**self.results(), **{result.spec.hash: result for result in first.results}}
        tried: set[str] = set()
        while True:
            added = [run for run in self.contest.added(measured) if not is_done(measured.get(run.hash))]
            added = [run for run in added if run.hash not in tried]
            stage = added or [run for run in self.contest.finals(measured) if run.hash not in tried]
            left = None if budget is None else budget - (time.monotonic() - begin)
            if first.interrupted or not stage or (left is not None and left <= 0):
                lacking = sum(not is_done(measured.get(run.hash)) for run in stage)
                return first, steps, lacking + len(self._untuned(measured)) * len(self.contest.protocol.seeds)
            planned = self.plan(stage)
            self.show(
                "Beside the best point of each grid" if added else "The best point of each method", planned.steps, left
            )
            summary = self.run(planned, left)
            steps += planned.steps
            tried |= {run.hash for run in stage}
            measured |= {result.spec.hash: result for result in summary.results}
            first.results += summary.results
            first.unsaved += summary.unsaved
            first.lost_repeats += summary.lost_repeats
            first.interrupted = summary.interrupted

    def _untuned(self, results: Mapping[str, Result]) -> list[str]:
        """The methods whose grids have not run whole; one that is tuned and has no finite loss has no last stage."""
        return [header for header in self.contest.tuning if self.contest.search(header, results).waiting]


def refuse_torchrun() -> None:
    if torchrun_ranks():
        raise ValueError("a sweep starts the ranks of its cells, but torchrun has started it; leave torchrun out")


class MatrixSweep:
    """The sweep of a matrix, by name or file, in a ``session``. Raises ``ValueError`` before anything is measured."""

    def __init__(self, session: LocalMachine, name: str, options: SweepOptions) -> None:
        refuse_torchrun()
        self._session, self._options, self._store = session, options, session.store
        self._timeout = parse_seconds("timeout", options.timeout)
        self._retry = parse_outcomes(options.retry)
        path = recipes.find("runners", name)
        with session.monitor.waiting(f"making the cells of {path.name}"):
            self.matrix, cells, self._note = matrix_cells(
                path, session.device, dict(options.changes), lambda: session.narrow, session.priced_rates,
                options.part,
            )  # fmt: skip
        for note in self.matrix.notes:
            session.say(f"warning: {note}", "yellow")
        self.cells: tuple[RunSpec, ...] = tuple(filter(options.wanted or (lambda spec: True), cells))
        if not self.cells:
            raise ValueError(
                f"the matrix {name} must make a run that is shown, but makes none here; name another runner"
            )
        submitted.refuse_twice(self._store.root, self.cells)
        if options.turns:
            _check_turns(options, self.matrix, self.cells)
        budget = self.matrix.budget if options.budget is None else options.budget
        self._budget = None if options.turns else parse_seconds("budget", budget)
        if options.turns and budget is not None and options.part is None:
            session.say(
                f"budget: {budget}, as {path.name} says, does not hold for turns, which are ended with all cells"
            )
        self._selftest = parse_seconds(f"{path.name}: selftest", self.matrix.selftest)
        items = [artifacts.load(item) for item in self.matrix.tables]  # a mistake should not wait for the sweep's end
        if pictures := [item.name for item in items if item.is_figure]:
            raise ValueError(f"{path.name}: `tables` must be tables, but {pictures[0]} is a figure; leave it out")
        self.tables = [item for item in items if isinstance(item, Table)]
        self._repeats = _repeats(options, self.matrix)
        contest = self.matrix.contest
        self._stages = None if contest is None else Stages(
            contest=contest, results=session.results, plan=lambda specs: session.plan(specs, self._retry),
            show=session.monitor.show_plan, run=self._run,
        )  # fmt: skip

    def go(self) -> Summary:
        return self.run(self.plan())

    def plan(self) -> Plan:
        """The plan of the first round, which is shown, with the repeats and what follows the grids of a protocol."""
        session = self._session
        planned = session.plan(self.cells, self._retry, self._note)
        planned = self._whole(planned) if self._options.turns else planned
        session.monitor.show_plan(self.matrix.title, planned.steps, self._budget)
        session.say(self._repeats.description)
        session.say(self._repeats.caution, "yellow")
        if self._stages:
            self._stages.foresee()
            session.monitor.show_power(power.of_contest(self._stages.contest, session.results().values()))
        return planned

    def run(self, planned: Plan) -> Summary:
        """Runs it as ``planned``, after the selftest, and stores each result; a KeyboardInterrupt ends it."""
        self._session.refuse_dry()
        if self._selftest is not None:
            with keeping(self._store, lambda *_: None):  # another sweep's cells must not be disturbed by it
                selftest_first(self._session, self._selftest)
        return self._run_stages(planned, self._budget, self._stages, whole=self._options.turns)

    def _run_stages(self, planned: Plan, budget: float | None, stages: Stages | None, *, whole: bool) -> Summary:
        """Runs the plan and, of a protocol, the later ``stages`` in ``budget`` seconds; see :meth:`_run`."""
        begin = time.monotonic()
        summary, steps, unknown = self._run(planned, budget, whole=whole), planned.steps, 0
        if stages is not None:
            summary, more, unknown = stages.follow(summary, budget, begin)
            steps = [*steps, *more]
        cells = zip(steps, summary.results, strict=False)  # those that need more time: skipped, or cut off
        cut_off = (run.outcome is Outcome.SKIPPED or run.partial for step, run in cells if step.action == "run")
        summary.waiting += sum(cut_off) + unknown
        return summary

    def run_part(self, budget: float | None) -> Summary:
        """Runs those whole rounds of a campaign's part that ``budget`` seconds hold, and shows no plan."""
        first = self._session.plan(self.cells, self._retry, self._note, self._options.first_round)
        if self._stages:
            return self._run_stages(first, budget, replace(self._stages, show=lambda *_: None), whole=False)
        return self._run_stages(self._whole(first), budget, None, whole=True)

    def _whole(self, planned: Plan) -> Plan:
        return replace(planned, steps=whole_round(planned.steps, self._retry))

    def _run(self, planned: Plan, budget: float | None, *, whole: bool = False) -> Summary:
        """Runs the plan in ``budget`` seconds, while no other sweep writes into the store. ``whole``: a round that has
        begun is not cut short, one that is not stored whole is run anew, and one alone is a round too."""
        session = self._session

        def once(planned: Plan, budget: float | None) -> Summary:
            with session.monitor.cells(planned.steps, budget):
                if self._options.turns:
                    return sweep_in_turns(
                        planned.steps, self._store, free_bytes=available_host_bytes(),
                        timeout=self._timeout, disk_dir=session.disk_dir, calibration=planned.rates,
                        finished=self._finished, monitor=session.monitor,
                    )  # fmt: skip
                return sweep(
                    planned.steps, self._store, budget=budget, timeout=self._timeout, disk_dir=session.disk_dir,
                    calibration=planned.rates, learned=planned.learned, finished=self._finished,
                    monitor=session.monitor,
                )  # fmt: skip

        def again(cells: Sequence[RunSpec], number: int) -> Plan:
            count = number - self._repeats.first + 1
            session.say(f"round {count} of {'at most ' if self._repeats.until else ''}{self._repeats.count}")
            planned = session.plan(cells, self._retry, "", number)
            return self._whole(planned) if whole else planned

        with keeping(self._store, session.say):
            # again: nothing kept a sweep from being submitted before this one had the lock
            submitted.refuse_twice(self._store.root, [step.spec for step in planned.steps])
            planned = planned if whole else self._without_ended(planned)
            if self._repeats.count == 1 and not whole:
                return once(planned, budget)
            perform = (lambda planned, _: once(planned, None)) if whole else once
            return rounds.run(planned, self._repeats, again, perform, budget)

    def _without_ended(self, planned: Plan) -> Plan:
        """The plan, made before this sweep had the lock, with the cells kept that another sweep has ended since."""
        steps, machine = [], self._session.machine
        for step in planned.steps:
            stored = self._store.find(step.spec, machine, self._repeats.first) if step.action == "run" else None
            if stored is not None and is_settled(stored, self._retry):
                step = replace(step, action="keep", reason="done since", earlier=stored)
                self._session.say(f"kept, as another sweep has run it since the plan: {step.spec.label}")
            steps.append(step)
        return replace(planned, steps=steps)

    def _finished(self, result: Result) -> Result:
        price = self._options.price
        if price is not None:
            result = result.with_facts(price_per_hour=price)
        return settled(result) if self._options.detect_warm_up else result


def _check_turns(options: SweepOptions, matrix: Matrix, cells: Sequence[RunSpec]) -> None:
    """Raises ``ValueError`` for what does not go with cells that take turns, and for a cell that cannot."""
    others = {"a budget": options.budget is not None, "a protocol": matrix.contest is not None}
    for option, is_asked in others.items():
        if is_asked:
            raise ValueError(f"`turns` runs the cells of a round at the same time, but got {option}; leave it out")
    together.check(cells)


def _repeats(options: SweepOptions, matrix: Matrix) -> Repeats:
    """How often the cells run: as the options say, else the matrix. Raises ``ValueError`` for what cannot be."""
    wanted = options.until
    if wanted is None and options.part is None:  # a campaign's part says how many rounds itself
        wanted = matrix.until
    until = None if wanted is None else parse_percent("until", wanted)
    stated = matrix.repeats if options.repeats is None else options.repeats
    count = stated if stated is not None else MOST if until is not None else 1
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise ValueError(f"`repeats >= 1` must hold, but got {stated}; use 1 to run each cell once")
    if until == 0:
        raise ValueError("`until` must be above 0%, but got 0%; leave it out and say how many repeats")
    if until is not None and count < FEW:
        raise ValueError(
            f"`until` needs at least {FEW} repeats, as fewer cannot tell how narrow an interval is, but got "
            f"{count}; leave repeats out, or use {MOST}"
        )
    if count > 1 and matrix.contest is not None:
        raise ValueError(f"a protocol repeats by seeds of its own, but got repeats={count}; leave it out")
    return Repeats(count=count, until=until, first=options.first_round)
