"""Runs a matrix of cells here, as `sweep`, `ablate` and `reproduce` do: plan, measure, store, print its tables."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import typer

from zobench.cli.cells import matrix_cells
from zobench.cli.common import changed, check_folder, check_results, parse_outcomes, parse_seconds
from zobench.cli.here import Here, keeping
from zobench.cli.show import table_text

if TYPE_CHECKING:
    from zobench.execute.plan import Plan, Step
    from zobench.execute.sweep import Summary
    from zobench.runspec import RunSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """What a command says of the sweep of the matrix ``name``, in its own words. ``tables``: those to print in place of
    the matrix's own; ``wanted``: which of its cells to run; ``verbose``: a row of the plan for each cell is shown, as
    in a dry run."""

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
    tables: Sequence[str] | None = None
    wanted: Callable[[RunSpec], bool] | None = None


def run_matrix(asked: Asked) -> None:
    """Plans and runs a matrix, stores each result, and prints its tables. Ends in ``typer.Exit``, but for a dry run."""
    from zobench.execute.process import torchrun_ranks

    if torchrun_ranks():
        raise ValueError("a sweep starts the ranks of its cells, but torchrun has started it; leave torchrun out")
    _Sweep(asked).go()


class _Sweep:
    """The sweep of one matrix. Raises ``ValueError``, one line, for what cannot be, before anything is measured."""

    def __init__(self, asked: Asked) -> None:
        from zobench import recipes
        from zobench.cli import console
        from zobench.cli.jobs import refuse_twice
        from zobench.machine.device import choose_device
        from zobench.store import Store

        values = changed(asked.changes)
        self._timeout, self._retry = parse_seconds("--timeout", asked.timeout), parse_outcomes(asked.retry)
        path = recipes.find("runners", asked.name)
        check_folder("--disk-dir", asked.disk_dir)
        check_results(asked.results)
        self._device, why = choose_device(str(values.pop("device", asked.device)))
        self._asked, self._errors, self._store = asked, console.error_console(), Store(asked.results)
        self._here = here = Here(self._store, self._device, why, asked.disk_dir, self._errors)
        found = matrix_cells(path, self._device, values, lambda: here.narrow, lambda: here.own_rates)
        self._matrix, self._cells, self._note = found
        self._cells = self._cells if asked.wanted is None else tuple(filter(asked.wanted, self._cells))
        if not self._cells:
            raise ValueError(
                f"the matrix {asked.name} must make a run that is shown, but makes none here; name another runner"
            )
        refuse_twice(asked.results, self._cells)
        self._budget = parse_seconds("--budget", asked.budget or self._matrix.budget)
        self._selftest = parse_seconds(f"{path.name}: selftest", self._matrix.selftest)
        self._tables = self._matrix.tables if asked.tables is None else asked.tables
        self._foretold = _any_foretold(self._tables)

    def go(self) -> None:
        """See :func:`run_matrix`."""
        from zobench.cli.contest import Second
        from zobench.cli.found import waiting
        from zobench.cli.selftest_first import selftest_first

        asked, here = self._asked, self._here
        planned = here.plan(self._cells, self._retry, self._note)
        self._show(self._matrix.title, planned.steps, self._budget)
        second = self._matrix.contest and Second(
            contest=self._matrix.contest, known=here.known, plan=lambda specs: here.plan(specs, self._retry, ""),
            show=self._show, run=self._run,
        )  # fmt: skip
        if second:
            second.foresee()
        if asked.dry_run:
            return
        if self._selftest is not None:
            selftest_first(asked.results, here.machine, self._device, self._selftest, asked.disk_dir, here.say)
        begin = time.monotonic()
        summary, steps, unknown = self._run(planned, self._budget), planned.steps, 0
        if second:
            summary, more, unknown = second.follow(summary, self._budget, begin)
            steps = [*steps, *more]
        self._finish(summary, waiting(steps, summary.results) + unknown)

    def _show(self, title: str, steps: Sequence[Step], budget: float | None) -> None:
        """Shows a plan of ``budget`` seconds; a row for each cell where that was asked for."""
        from zobench.cli import console, plan_view

        if self._asked.dry_run or self._asked.verbose:
            plan_view.show_plan(console.answer_console() if self._asked.dry_run else self._errors, title, steps, budget)
        else:
            plan_view.show_short_plan(self._errors, title, steps, budget, foretold=self._foretold)

    def _run(self, planned: Plan, budget: float | None) -> Summary:
        """Runs the plan in ``budget`` seconds, while no other sweep writes into the store."""
        from zobench.cli import console
        from zobench.cli.jobs import refuse_twice
        from zobench.execute.sweep import SweepHooks, sweep

        with keeping(self._store, self._errors):
            # again: nothing kept a sweep from being submitted before this one had the lock
            refuse_twice(self._store.root, [step.spec for step in planned.steps])
            with console.SweepProgress(self._errors, planned.steps, budget) as bar:
                return sweep(
                    planned.steps, self._store, budget=budget, timeout=self._timeout, disk_dir=self._asked.disk_dir,
                    calibration=planned.rates, learned=planned.learned,
                    progress=SweepHooks(begin=bar.begin, tick=bar.tick, end=bar.end),
                )  # fmt: skip

    def _finish(self, summary: Summary, waiting: int) -> NoReturn:
        """Shows what the sweep came to, prints its tables, or its runs if it has none, and says how the cells go on
        that are ``waiting``. Exit code 130: interrupted, 1: a cell failed or is lost."""
        from zobench.cli import console, found, listing
        from zobench.result import Outcome

        asked = self._asked
        console.show_summary(self._errors, summary.results, summary.unsaved, summary.interrupted)
        if not self._tables and asked.tables is None and summary.results:
            print()
            listing.show_runs(console.answer_console(), summary.results)
        for name in self._tables:
            text = table_text(name, asked.results, "terminal", self._here.machine, summary.results)
            print("\n" + text, end="")
        if summary.interrupted:
            raise typer.Exit(130)
        self._errors.print()
        again = found.sweep_command(asked.name, asked.changes, asked.device, asked.results, asked.disk_dir)
        for line in found.closing(summary.results, waiting, str(asked.results), again):
            self._errors.print(line, markup=False, soft_wrap=True)
        broken = summary.unsaved or any(result.outcome is Outcome.FAILED for result in summary.results)
        raise typer.Exit(1 if broken else 0)


def _any_foretold(names: Sequence[str]) -> bool:
    """Whether any of these tables predicts what was not run. Raises ``ValueError`` for a mistake in a table's recipe,
    which should not wait for the end of the sweep."""
    from zobench.recipes.reference import PAPERS
    from zobench.report import artifacts
    from zobench.report.table import Table

    items = [artifacts.load(name) for name in names]
    return any(isinstance(item, Table) and item.paper in PAPERS for item in items)
