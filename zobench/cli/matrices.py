"""Runs a matrix of cells here, as `sweep`, `ablate` and `reproduce` do: plan, measure, store, print its tables."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import typer

from zobench.cli.cells import matrix_cells
from zobench.cli.common import changed, check_folder, check_results, parse_outcomes, parse_seconds
from zobench.cli.show import table_text

if TYPE_CHECKING:
    from rich.console import Console

    from zobench.execute.plan import Plan, Step
    from zobench.execute.sweep import Summary
    from zobench.predict import Rates
    from zobench.result import Result
    from zobench.runspec import RunSpec
    from zobench.store import Store


def run_matrix(
    name: str, changes: list[str] | None, device: str, results: Path, budget: str | None, timeout: str | None,
    retry: str, disk_dir: Path | None, dry_run: bool, tables: Sequence[str] | None = None,
    wanted: Callable[[RunSpec], bool] | None = None, verbose: bool = False,
) -> None:  # fmt: skip
    """Plans and runs the matrix ``name``, stores each result, and prints ``tables``, or else the matrix's own.
    ``verbose``: shows a row of the plan for each cell, as a dry run does.

    Ends in ``typer.Exit``, but for a dry run.
    """
    from zobench import recipes
    from zobench.cli import console, found, plan_view
    from zobench.cli.contest import Second
    from zobench.cli.jobs import refuse_twice
    from zobench.cli.selftest_first import selftest_first
    from zobench.execute.process import torchrun_ranks
    from zobench.machine.device import choose_device
    from zobench.store import Store

    if torchrun_ranks():
        raise ValueError("a sweep starts the ranks of its cells, but torchrun has started it; leave torchrun out")
    values = changed(changes)
    bound, again = parse_seconds("--timeout", timeout), parse_outcomes(retry)
    path = recipes.find("runners", name)
    check_folder("--disk-dir", disk_dir)
    check_results(results)
    chosen, why = choose_device(str(values.pop("device", device)))
    errors, store = console.error_console(), Store(results)
    here = _Here(store, chosen, why, disk_dir, errors)
    matrix, cells, memory_note = matrix_cells(path, chosen, values, lambda: here.narrow, lambda: here.own_rates)
    if wanted is not None and not (cells := tuple(spec for spec in cells if wanted(spec))):
        raise ValueError(f"the matrix {name} must make a run that is shown, but makes none here; name another runner")
    refuse_twice(results, cells)
    limit = parse_seconds("--budget", budget or matrix.budget)
    first = parse_seconds(f"{path.name}: selftest", matrix.selftest)
    tables = matrix.tables if tables is None else tables
    foretold = _any_foretold(tables)
    planned = here.plan(cells, again, memory_note)

    def show(title: str, steps: Sequence[Step], budget: float | None) -> None:
        if dry_run or verbose:
            plan_view.show_plan(console.answer_console() if dry_run else errors, title, steps, budget)
        else:
            plan_view.show_short_plan(errors, title, steps, budget, foretold=foretold)

    show(matrix.title, planned.steps, limit)
    second = matrix.contest and Second(
        contest=matrix.contest, known=here.known, plan=lambda specs: here.plan(specs, again, ""), show=show,
        run=lambda plan, budget: _run(plan, store, budget, bound, disk_dir, errors),
    )  # fmt: skip
    if second:
        second.foresee()
    if dry_run:
        return
    if first is not None:
        selftest_first(results, here.machine, chosen, first, disk_dir, here.say)
    begin = time.monotonic()
    summary, steps, unknown = _run(planned, store, limit, bound, disk_dir, errors), planned.steps, 0
    if second:
        summary, more, unknown = second.follow(summary, limit, begin)
        steps = [*steps, *more]
    waiting = found.waiting(steps, summary.results) + unknown
    command = found.sweep_command(name, changes, device, results, disk_dir)
    _finish(summary, tables, results, here.machine, errors, (waiting, command))


def _any_foretold(names: Sequence[str]) -> bool:
    """Whether any of these tables predicts what was not run. Raises ``ValueError`` for a mistake in a table's recipe,
    which should not wait for the end of the sweep."""
    from zobench.recipes.reference import PAPERS
    from zobench.report import artifacts
    from zobench.report.table import Table

    items = [artifacts.load(name) for name in names]
    return any(isinstance(item, Table) and item.paper in PAPERS for item in items)


class _Here:
    """This machine as a sweep into ``store`` finds it. Says on ``errors`` what it is, and how its rates were got."""

    def __init__(self, store: Store, device: str, why: str, disk_dir: Path | None, errors: Console) -> None:
        from zobench.measure.environment import fingerprint_without_torch

        facts = fingerprint_without_torch()
        self.machine: str = facts["machine"]
        self._store, self._device, self._disk_dir, self._errors = store, device, disk_dir, errors
        self._told: set[str] = set()
        self._introduction = f"{why}; machine {self.machine} ({facts['description']})"

    def say(self, text: str, style: str = "dim") -> None:
        """Prints ``text``, if there is one."""
        if text:
            self._errors.print(text, style=style, markup=False, soft_wrap=True)

    @cached_property
    def rates(self) -> dict[str, Any]:
        """The machine's rates, measured where nobody has kept them."""
        from zobench.execute.rates import calibration

        self.say(self._introduction)
        with self._errors.status("measuring this machine's rates, once"):
            rates = calibration(self._store.root, self.machine, self._device, self._disk_dir)
        for note in rates["notes"]:
            if note.startswith(("not kept", "slower")):
                self.say(f"warning: this machine's rates were {note}", "yellow")
        return rates

    @property
    def own_rates(self) -> Rates:
        """The same for the predictor."""
        from zobench import predict

        return predict.Rates.of(self.rates)

    def known(self) -> dict[str, Result]:
        """The results of this machine by their hash, less those of plug-ins that were changed since."""
        from zobench.store import is_current

        return {result.spec.hash: result for result in self._store.load(self.machine) if is_current(result)}

    @cached_property
    def narrow(self) -> str | None:
        """The 16-bit type that this machine is fastest in; None if it is faster in 32 bits."""
        from zobench import predict

        chosen, told = predict.fastest_narrow(self.own_rates)
        self.say(told)
        return chosen

    def plan(self, cells: Sequence[RunSpec], retry: Collection[str], note: str) -> Plan:
        """The plan of ``cells``, after the ``note`` on them; what is stored and cannot be read is said."""
        from zobench.execute import plan

        rates = self.rates
        self.say(note)
        planned = plan.here(cells, self._store, self.machine, self._device, retry, self._disk_dir, rates)
        for problem in self._store.problems:
            if problem not in self._told:  # a protocol is planned twice
                self.say(f"not read: {problem}", "yellow")
        self._told |= set(self._store.problems)
        return planned


def _run(
    planned: Plan, store: Store, budget: float | None, timeout: float | None, disk_dir: Path | None, errors: Console
) -> Summary:
    """Runs the plan while no other sweep writes into ``store``; ``budget`` and ``timeout`` in seconds."""
    from zobench.cli import console
    from zobench.cli.jobs import refuse_twice
    from zobench.execute.sweep import SweepHooks, sweep

    with keeping(store, errors):
        # again: nothing kept a sweep from being submitted before this one had the lock
        refuse_twice(store.root, [step.spec for step in planned.steps])
        with console.SweepProgress(errors, planned.steps, budget) as bar:
            return sweep(
                planned.steps, store, budget=budget, timeout=timeout, disk_dir=disk_dir, calibration=planned.rates,
                progress=SweepHooks(begin=bar.begin, tick=bar.tick, end=bar.end), learned=planned.learned,
            )  # fmt: skip


def _finish(
    summary: Summary, tables: Sequence[str], results: Path, machine: str, errors: Console, waiting: tuple[int, str]
) -> NoReturn:
    """Shows what the sweep came to, prints its tables, or its runs if it has none, and says how to go on: ``waiting``:
    how many cells are left, and the command for them. Exit code 130: interrupted, 1: a cell failed or is lost."""
    from zobench.cli import console, listing
    from zobench.cli.found import closing
    from zobench.result import Outcome

    console.show_summary(errors, summary.results, summary.unsaved, summary.interrupted)
    if not tables and summary.results:
        print()
        listing.show_runs(console.answer_console(), summary.results)
    for name in tables:
        print("\n" + table_text(name, results, "terminal", machine, summary.results), end="")
    if summary.interrupted:
        raise typer.Exit(130)
    errors.print()
    for line in closing(summary.results, waiting[0], str(results), waiting[1]):
        errors.print(line, markup=False, soft_wrap=True)
    broken = summary.unsaved or any(result.outcome is Outcome.FAILED for result in summary.results)
    raise typer.Exit(1 if broken else 0)


@contextmanager
def keeping(store: Store, errors: Console) -> Iterator[None]:
    """Locks ``store`` against other sweeps inside the block; warns if results cannot be written there."""
    from zobench.store import StoreError

    with ExitStack() as during:
        try:
            during.enter_context(store.lock())
        except StoreError as error:
            told = f"warning: nothing will be kept: {error.strerror}"
            errors.print(told, style="yellow", markup=False, soft_wrap=True)
        yield
