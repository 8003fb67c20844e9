"""Runs a matrix of cells here, as `sweep`, `ablate` and `reproduce` do: plan, measure, store, print its tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from zobench.cli.cells import matrix_cells
from zobench.cli.common import changed, check_folder, check_results, parse_outcomes, parse_seconds
from zobench.cli.show import table_text

if TYPE_CHECKING:
    from rich.console import Console

    from zobench.runspec import RunSpec
    from zobench.store import Store


def run_matrix(
    name: str, changes: list[str] | None, device: str, results: Path, budget: str | None, timeout: str | None,
    retry: str, disk_dir: Path | None, dry_run: bool, tables: Sequence[str] | None = None,
    wanted: Callable[[RunSpec], bool] | None = None,
) -> None:  # fmt: skip
    """Plans and runs the matrix ``name``, stores each result, and prints ``tables``, or else the matrix's own.

    Ends in ``typer.Exit``, but for a dry run.
    """
    from zobench import predict, recipes
    from zobench.cli import console
    from zobench.cli.jobs import refuse_twice
    from zobench.execute import plan
    from zobench.execute import sweep as runner
    from zobench.execute.process import torchrun_ranks
    from zobench.machine.device import choose_device
    from zobench.measure.environment import fingerprint_without_torch
    from zobench.report import artifacts
    from zobench.result import Outcome
    from zobench.store import Store

    if torchrun_ranks():
        raise ValueError("a sweep starts the ranks of its cells, but torchrun has started it; leave torchrun out")
    values = changed(changes)
    bound, again = parse_seconds("--timeout", timeout), parse_outcomes(retry)
    path = recipes.find("runners", name)
    check_folder("--disk-dir", disk_dir)
    check_results(results)
    chosen, why = choose_device(str(values.pop("device", device)))
    cells, specs, memory_note = matrix_cells(path, chosen, values)
    if wanted is not None and not (specs := tuple(spec for spec in specs if wanted(spec))):
        raise ValueError(f"the matrix {name} must make a run that is shown, but makes none here; name another runner")
    refuse_twice(results, specs)
    limit = parse_seconds("--budget", budget or cells.budget)
    told = cells.tables if tables is None else tables
    for recipe_name in told:  # a mistake in them should not wait for the end of the sweep
        artifacts.load(recipe_name)
    facts, errors, store = fingerprint_without_torch(), console.error_console(), Store(results)
    errors.print(f"{why}; machine {facts['machine']} ({facts['description']})", style="dim", soft_wrap=True)
    if memory_note:
        errors.print(memory_note, style="dim", soft_wrap=True)
    with errors.status("measuring this machine's rates, once"):
        measured = plan.calibration(results, facts["machine"], chosen, disk_dir)
    for note in measured["notes"]:
        if note.startswith("not kept"):
            errors.print(f"warning: this machine's rates were {note}", style="yellow", markup=False, soft_wrap=True)
    rates = predict.Rates.of(measured)
    steps = plan.make(specs, store, facts["machine"], rates, plan.limits(chosen, disk_dir), again)
    for problem in store.problems:
        errors.print(f"not read: {problem}", style="yellow", markup=False, soft_wrap=True)
    console.show_plan(console.answer_console() if dry_run else errors, cells.title, steps, limit)
    if dry_run:
        return
    with keeping(store, errors):
        refuse_twice(results, specs)  # again: nothing kept a sweep from being submitted before this one had the lock
        with console.SweepProgress(errors, steps) as bar:
            progress = runner.SweepHooks(begin=bar.begin, tick=bar.tick, end=bar.end)
            summary = runner.sweep(
                steps, store, budget=limit, timeout=bound, disk_dir=disk_dir, calibration=measured, progress=progress
            )
    console.show_summary(errors, summary.results, summary.unsaved, summary.interrupted)
    for recipe_name in told:
        print("\n" + table_text(recipe_name, results, "terminal", facts["machine"], summary.results), end="")
    if summary.interrupted:
        raise typer.Exit(130)
    broken = summary.unsaved or any(result.outcome is Outcome.FAILED for result in summary.results)
    raise typer.Exit(1 if broken else 0)


@contextmanager
def keeping(store: Store, errors: Console) -> Iterator[None]:
    """Keeps other sweeps out of ``store`` meanwhile, or says that nothing can be kept there."""
    from zobench.store import StoreError

    with ExitStack() as during:
        try:
            during.enter_context(store.lock())
        except StoreError as error:
            told = f"warning: nothing will be kept: {error.strerror}"
            errors.print(told, style="yellow", markup=False, soft_wrap=True)
        yield
