"""A matrix of cells on the command line, as `sweep`, `ablate` and `reproduce` run it: its plan, then its tables."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from zobench import recipes
from zobench.cli import console
from zobench.cli.common import COMMAND_LINE, changed
from zobench.cli.console import SweepProgress, alarm
from zobench.execute.monitor import Monitor
from zobench.recipes.reference import PAPERS
from zobench.result.repeats import renewed
from zobench.runspec import RunSpec
from zobench.session.inputs import check_disk, check_results
from zobench.store import Store

if TYPE_CHECKING:
    from zobench.execute.plan import Step
    from zobench.result import Result


class Terminal(Monitor):
    """Prints what a session says on standard error, and the plan of a ``dry`` run as the answer. ``verbose``: the plan
    has a row for each cell; ``foretold``: a table that follows predicts what it leaves out."""

    def __init__(self, *, dry: bool = False, verbose: bool = False) -> None:
        self.errors = console.error_console()
        self._plans = console.answer_console() if dry else self.errors
        self._has_rows, self.foretold = dry or verbose, False
        self._warned: set[str] = set()

    def say(self, text: str, style: str = "dim") -> None:
        if text:
            screen = self.errors if style == "dim" else alarm(self.errors)
            screen.print(text, style=style, markup=False, soft_wrap=True)

    def busy(self, what: str) -> AbstractContextManager[object]:
        return console.busy(what)

    def waiting(self, what: str) -> AbstractContextManager[object]:
        return console.waiting(what)

    def show_plan(self, title: str, steps: Sequence[Step], budget: float | None) -> None:
        from zobench.cli import plan_view

        if self._has_rows:
            plan_view.show_plan(self._plans, title, steps, budget)
        else:
            plan_view.show_short_plan(self.errors, title, steps, budget, foretold=self.foretold)

    def show_jobs(
        self, title: str, specs: Sequence[RunSpec], cells: Sequence[RunSpec], requests: Sequence[Mapping[str, Any]]
    ) -> None:
        from zobench.cli import plan_view

        plan_view.show_jobs(self._plans, title, specs, cells, requests)

    def show_power(self, text: str) -> None:
        self._plans.print(text, markup=False, highlight=False, soft_wrap=True)

    @contextmanager
    def cells(self, steps: Sequence[Step], budget: float | None) -> Iterator[None]:
        """A bar, and a line for each cell."""
        with SweepProgress(self.errors, steps, budget, self._warned) as self._bar:
            yield

    def begin(self, step: Step) -> None:
        self._bar.begin(step)

    def tick(self) -> None:
        self._bar.tick()

    def end(self, step: Step, result: Result) -> None:
        self._bar.end(step, result)


def run_matrix(
    name: str, changes: list[str] | None, device: str, results: Path, disk_dir: Path | None, *, dry_run: bool,
    verbose: bool, shows_tables: bool = True, **options: object,
) -> None:  # fmt: skip
    """Plans and runs the matrix ``name``, stores each result, and prints its tables, if it ``shows_tables``.
    ``options``: of ``SweepOptions``. Ends in ``typer.Exit``, but for a dry run; with 1 if a cell failed or is lost."""
    from zobench.session.machine import LocalMachine
    from zobench.session.matrices import MatrixSweep, SweepOptions, refuse_torchrun

    refuse_torchrun()
    values = changed(changes)
    device_wanted = str(values.pop("device", device))
    chosen = SweepOptions(changes=values, **options)  # type: ignore[arg-type]
    recipes.find("runners", name)
    check_disk(disk_dir)
    check_results(results)
    screen = Terminal(dry=dry_run, verbose=verbose)
    session = LocalMachine(Store(results), device_wanted, disk_dir=disk_dir, monitor=screen, dry=dry_run)
    sweep = MatrixSweep(session, name, chosen)
    tables = sweep.matrix.tables if shows_tables else ()
    screen.foretold = bool(tables) and any(table.paper in PAPERS for table in sweep.tables)
    planned = sweep.plan()
    if dry_run:
        return
    summary = sweep.run(planned)
    if not summary.interrupted:
        console.show_summary(console.error_console(), summary)
    for table in tables:
        print("\n" + table_text(table, results, "terminal", session.machine, summary.results), end="")
    from zobench.session.closing import closing, outside_tables

    if outside := outside_tables(tables, summary.results) if shows_tables else []:
        from zobench.cli import listing

        print("\nIn none of these tables:" if tables else "")
        listing.show_runs(console.answer_console(), outside)
    if summary.interrupted:  # how to go on stands last, below tables that are mostly empty
        console.show_summary(console.error_console(), summary)
        raise typer.Exit(130)
    screen.errors.print()
    again = shlex.join(["zobench", *COMMAND_LINE])
    is_empty = not any(result.measured_seconds for result in summary.results)
    for line in closing(summary.waiting, str(results), again, is_empty=is_empty):
        screen.errors.print(line, markup=False, soft_wrap=True)
    raise typer.Exit(int(summary.is_broken))


def table_text(
    name: str, results: Path, form: str, machine: str | None, fresh: Sequence[Any] | None = None,
    facts: Mapping[str, Any] | None = None,
) -> str:  # fmt: skip
    """The rendered table of the stored results, with ``fresh`` ones in place of what is stored of the same runs.

    ``facts``: what else is known of every run, in place of what its environment says.
    """
    from zobench.report import Table, artifacts, render
    from zobench.report.cells import mismatch

    item: Any = artifacts.load(name)
    if item.is_figure:
        raise ValueError(f"`zobench table` shows tables, but {name!r} is a figure; use zobench figure {name}")
    store, screen = Store(results), console.answer_console()
    with console.waiting(f"{name}: filling the table"):
        shown = renewed([run.with_facts(**(facts or {})) for run in store.runs()], fresh or ())
        console.show_problems(store.problems if fresh is None else ())
        text = render(
            item, shown, form, machine=machine if shown or fresh is None else None,
            width=max(console.NARROWEST, screen.width), color=console.is_colored(screen),
        )  # fmt: skip
    if shown and isinstance(item, Table) and (why := mismatch(item, shown)):
        print(why, file=sys.stderr)
    if not shown:
        console.show_empty([results], "all that is shown is predicted or the paper's")
    return text
