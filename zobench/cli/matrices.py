"""Runs a matrix of cells here, as `sweep`, `ablate` and `reproduce` do: plan, measure, store, print its tables."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import typer

from zobench.cli.cells import matrix_cells
from zobench.cli.checks import check_folder, check_results, check_words
from zobench.cli.common import changed, parse_outcomes, parse_percent, parse_seconds
from zobench.cli.here import Here, keeping
from zobench.cli.show import table_text

if TYPE_CHECKING:
    from zobench.cli.contest import Stages
    from zobench.execute.plan import Plan, Step
    from zobench.execute.rounds import Repeats
    from zobench.execute.sweep import Summary
    from zobench.recipes.matrix import Matrix
    from zobench.report.table import Table
    from zobench.result import Result
    from zobench.runspec import RunSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """What a command says of the sweep of the matrix ``name``, in its own words. ``tables``: those to print in place of
    the matrix's own; ``wanted``: which of its cells to run; ``verbose``: a row of the plan for each cell is
    shown, as in a dry run. ``part``: what of the matrix is otherwise in a part of a campaign, whose rounds have
    numbers from ``first_round`` on. ``repeats``, ``until`` and ``interleave``: how often each cell runs, and in
    which order; None: as the matrix says. ``turns``: the cells of a round run side by side, in turns of a step.
    ``detect_warm_up`` and ``price`` (of an hour): what is made of each new result."""

    name: str
    changes: list[str] | None
    device: str
    results: Path
    budget: str | None
    timeout: str | None
    retry: str
    disk_dir: Path | None
    dry_run: bool
    verbose: bool = False
    part: Mapping[str, Any] | None = None
    first_round: int = 0
    repeats: int | None = None
    until: str | None = None
    interleave: bool | None = None
    turns: bool = False
    detect_warm_up: bool = False
    price: float | None = None
    tables: Sequence[str] | None = None
    wanted: Callable[[RunSpec], bool] | None = None


def run_matrix(asked: Asked) -> None:
    """Plans and runs a matrix, stores each result, and prints its tables. Ends in ``typer.Exit``, but for a dry run."""
    refuse_torchrun()
    _Sweep(asked).go()


def refuse_torchrun() -> None:
    """Raises ``ValueError`` in a process that torchrun has started."""
    from zobench.execute.process import torchrun_ranks

    if torchrun_ranks():
        raise ValueError("a sweep starts the ranks of its cells, but torchrun has started it; leave torchrun out")


def measure_part(asked: Asked, here: Here, budget: float | None) -> Summary:
    """Runs those rounds of a campaign's part that ``budget`` seconds hold, each whole, and shows neither a plan nor
    tables. Each run tells when it was taken. ``here``: this machine."""
    return _Sweep(asked, here).measure(budget)


class _Sweep:
    """The sweep of one matrix. Raises ``ValueError``, one line, for what cannot be, before anything is measured.
    ``here``: this machine, where another sweep has found it already."""

    def __init__(self, asked: Asked, here: Here | None = None) -> None:
        from zobench import recipes
        from zobench.cli import console
        from zobench.cli.jobs import refuse_twice
        from zobench.machine.device import choose_device
        from zobench.recipes.reference import PAPERS
        from zobench.store import Store

        values = changed(asked.changes)
        self._timeout, self._retry = parse_seconds("--timeout", asked.timeout), parse_outcomes(asked.retry)
        path = recipes.find("runners", asked.name)
        check_folder("--disk-dir", asked.disk_dir)
        check_results(asked.results)
        check_words(values)
        self._device, why = choose_device(str(values.pop("device", asked.device)))
        self._asked, self._errors, self._store = asked, console.error_console(), Store(asked.results)
        self._here = here = here or Here(
            self._store, self._device, why, asked.disk_dir, self._errors, dry=asked.dry_run
        )
        with console.waiting(self._errors, f"making the cells of {path.name}"):
            found = matrix_cells(path, self._device, values, lambda: here.narrow, lambda: here.own_rates, asked.part)
        self._matrix, self._cells, self._note = found
        for told in self._matrix.notes:
            here.say(f"warning: {told}", "yellow")
        self._cells = self._cells if asked.wanted is None else tuple(filter(asked.wanted, self._cells))
        if not self._cells:
            raise ValueError(
                f"the matrix {asked.name} must make a run that is shown, but makes none here; name another runner"
            )
        refuse_twice(asked.results, self._cells)
        if asked.turns:
            _check_turns(asked, self._matrix, self._cells)
        self._budget = None if asked.turns else parse_seconds("--budget", asked.budget or self._matrix.budget)
        self._selftest = parse_seconds(f"{path.name}: selftest", self._matrix.selftest)
        self._tables = self._matrix.tables if asked.tables is None else asked.tables
        shown = _tables(self._tables or self._matrix.tables)
        self._foretold = bool(self._tables) and any(table.paper in PAPERS for table in shown)
        self._repeats = _repeats(asked, self._matrix, with_ratios=any(table.baseline for table in shown))

    def go(self) -> None:
        """See :func:`run_matrix`."""
        from zobench.cli import console
        from zobench.cli.found import waiting
        from zobench.cli.selftest_first import selftest_first
        from zobench.execute.campaign import anew

        asked, here = self._asked, self._here
        planned = here.plan(self._cells, self._retry, self._note)
        planned = anew(planned, self._retry) if asked.turns else planned
        self._show(self._matrix.title, planned.steps, self._budget)
        here.say(self._repeats.told)
        stages = self._stages()
        if stages:
            stages.foresee()
            screen = console.answer_console() if asked.dry_run else self._errors
            screen.print(stages.power(), markup=False, highlight=False, soft_wrap=True)
        if asked.dry_run:
            return
        if self._selftest is not None:
            selftest_first(asked.results, here.machine, self._device, self._selftest, asked.disk_dir, here.say)
        begin = time.monotonic()
        summary, steps, unknown = self._run(planned, self._budget, whole=asked.turns), planned.steps, 0
        if stages:
            summary, more, unknown = stages.follow(summary, self._budget, begin)
            steps = [*steps, *more]
        self._finish(summary, waiting(steps, summary.results) + unknown)

    def measure(self, budget: float | None) -> Summary:
        """See :func:`measure_part`."""
        from zobench.execute.campaign import anew

        begin, first = time.monotonic(), self._here.plan(self._cells, self._retry, self._note, self._asked.first_round)
        if stages := self._stages():
            return replace(stages, show=lambda *_: None).follow(self._run(first, budget), budget, begin)[0]
        return self._run(anew(first, self._retry), budget, whole=True)

    def _stages(self) -> Stages | None:
        """What comes after the grids of a protocol; None of any other matrix."""
        from zobench.cli.contest import Stages

        contest = self._matrix.contest
        return None if contest is None else Stages(
            contest=contest, known=self._here.known, plan=lambda specs: self._here.plan(specs, self._retry, ""),
            show=self._show, run=self._run,
        )  # fmt: skip

    def _show(self, title: str, steps: Sequence[Step], budget: float | None) -> None:
        """Shows a plan of ``budget`` seconds; a row for each cell where that was asked for."""
        from zobench.cli import console, plan_view

        if self._asked.dry_run or self._asked.verbose:
            plan_view.show_plan(console.answer_console() if self._asked.dry_run else self._errors, title, steps, budget)
        else:
            plan_view.show_short_plan(self._errors, title, steps, budget, foretold=self._foretold)

    def _run(self, planned: Plan, budget: float | None, *, whole: bool = False) -> Summary:
        """Runs the plan in ``budget`` seconds, while no other sweep writes into the store. ``whole``: a round that has
        begun is not cut short, one that is not stored whole is run anew, and one alone is a round too."""
        from zobench.cli import console
        from zobench.cli.jobs import refuse_twice
        from zobench.execute import rounds
        from zobench.execute.campaign import anew
        from zobench.execute.sweep import SweepHooks, sweep, sweep_in_turns
        from zobench.machine.memory import available_host_bytes

        def once(planned: Plan, budget: float | None) -> Summary:
            with console.SweepProgress(self._errors, planned.steps, budget) as bar:
                hooks = SweepHooks(begin=bar.begin, tick=bar.tick, end=bar.end)
                if self._asked.turns:
                    return sweep_in_turns(
                        planned.steps, self._store, free_bytes=available_host_bytes(),
                        timeout=self._timeout, disk_dir=self._asked.disk_dir, calibration=planned.rates, progress=hooks,
                        finished=self._finished,
                    )  # fmt: skip
                return sweep(
                    planned.steps, self._store, budget=budget, timeout=self._timeout, disk_dir=self._asked.disk_dir,
                    calibration=planned.rates, learned=planned.learned, finished=self._finished, progress=hooks,
                )  # fmt: skip

        def again(cells: Sequence[RunSpec], number: int) -> Plan:
            if self._repeats.interleaved:
                place = number - self._repeats.first + 1
                self._here.say(f"round {place} of {'at most ' if self._repeats.until else ''}{self._repeats.count}")
            planned = self._here.plan(cells, self._retry, "", number)
            return anew(planned, self._retry) if whole else planned

        with keeping(self._store, self._errors):
            # again: nothing kept a sweep from being submitted before this one had the lock
            refuse_twice(self._store.root, [step.spec for step in planned.steps])
            if self._repeats.count == 1 and not whole:
                return once(planned, budget)
            perform = (lambda planned, _: once(planned, None)) if whole else once
            return rounds.run(planned, self._repeats, again, perform, budget)

    def _finished(self, result: Result) -> Result:
        """What is stored of a new result."""
        from zobench.store.evidence import settled
        from zobench.store.measured import PRICE

        price = self._asked.price
        if price is not None:
            result = replace(result, environment={**result.environment, PRICE: price})
        return settled(result) if self._asked.detect_warm_up else result

    def _finish(self, summary: Summary, waiting: int) -> NoReturn:
        """Shows what the sweep came to, prints its tables, and the runs that are in none, and says how the cells go on
        that are ``waiting``. Exit code 130: interrupted, 1: a cell failed or is lost."""
        from zobench.cli import console, found, listing
        from zobench.result import Outcome

        asked = self._asked
        console.show_summary(self._errors, summary.results, summary.unsaved, summary.interrupted)
        for name in self._tables:
            text = table_text(name, asked.results, "terminal", self._here.machine, summary.results)
            print("\n" + text, end="")
        if homeless := [] if asked.tables is not None else _homeless(self._tables, summary.results):
            print("\nIn none of these tables:" if self._tables else "")
            listing.show_runs(console.answer_console(), homeless)
        if summary.interrupted:
            raise typer.Exit(130)
        self._errors.print()
        again = found.sweep_command(asked.name, asked.changes, asked.device, asked.results, asked.disk_dir)
        for line in found.closing(summary.results, waiting, str(asked.results), again):
            self._errors.print(line, markup=False, soft_wrap=True)
        broken = summary.unsaved or any(result.outcome is Outcome.FAILED for result in summary.results)
        raise typer.Exit(1 if broken else 0)


def _check_turns(asked: Asked, matrix: Matrix, cells: Sequence[RunSpec]) -> None:
    """Raises ``ValueError`` for what does not go with cells that take turns, and for a cell that cannot."""
    from zobench.execute import together

    others = {
        "--budget": asked.budget is not None, "--cell-by-cell": asked.interleave is False,
        "a protocol": matrix.contest is not None,
    }  # fmt: skip
    for what, is_asked in others.items():
        if is_asked:
            raise ValueError(f"`--turns` runs the cells of a round at the same time, but got {what}; leave it out")
    together.check(cells)


def _tables(names: Sequence[str]) -> list[Table]:
    """The tables of these names, without figures. Raises ``ValueError`` for a mistake in a table's recipe, which should
    not wait for the end of the sweep."""
    from zobench.report import artifacts

    return [table for name in names if (table := artifacts.laid_out(artifacts.load(name))) is not None]


def _homeless(tables: Sequence[str], results: Sequence[Result]) -> list[Result]:
    """The results that none of ``tables`` shows: all where there is no table, or where a change took them out."""
    from zobench.report import artifacts

    items = [artifacts.load(name) for name in tables]
    return [one for one in results if not any(artifacts.shows(item, one.spec) for item in items)]


def _repeats(asked: Asked, matrix: Matrix, *, with_ratios: bool) -> Repeats:
    """How often the cells run: as the command says, else the matrix. Raises ``ValueError`` for what cannot be.

    ``with_ratios``: whether a table of the sweep shows any; then rounds hold all cells, unless the command says else.
    """
    from zobench.execute.rounds import MOST, Repeats
    from zobench.stats.intervals import FEW

    its = matrix.until if asked.part is None else None  # a campaign's part says how many rounds, whatever its matrix
    said = its if asked.until is None else asked.until
    until = None if said is None else parse_percent("--until", said)
    given = matrix.repeats if asked.repeats is None else asked.repeats
    count = given if given is not None else MOST if until is not None else 1
    if isinstance(count, bool) or count < 1:
        raise ValueError(f"`--repeats >= 1` must hold, but got {given}; use --repeats 1 to run each cell once")
    if until == 0:
        raise ValueError("`--until` must be above 0%, but got 0%; leave it out and say how many --repeats")
    if until is not None and count < FEW:
        raise ValueError(
            f"`--until` needs at least {FEW} repeats, as fewer cannot tell how narrow an interval is, but got "
            f"{count}; leave --repeats out, or use --repeats {MOST}"
        )
    if count > 1 and matrix.contest is not None:
        raise ValueError(f"a protocol repeats by seeds of its own, but got --repeats {count}; leave it out")
    return Repeats(
        count=count, until=until,
        interleaved=asked.turns or (with_ratios if asked.interleave is None else asked.interleave),
        first=asked.first_round,
    )  # fmt: skip
