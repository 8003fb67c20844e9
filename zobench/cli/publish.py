"""Commands that publish: reproduce, report."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from zobench.cli.common import Budget, Changes, Device, DiskDir, DryRun, Results, app, check_folder, check_results
from zobench.cli.matrices import Asked, run_matrix
from zobench.cli.show import table_text


@app.command()
def reproduce(
    name: Annotated[str, typer.Argument(metavar="NAME|FILE", help="A table or figure of `zobench list`: zo2/table5.")],
    changes: Changes = None, results: Results = Path("results"), device: Device = "auto", budget: Budget = None,
    disk_dir: DiskDir = None, dry_run: DryRun = False,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where a figure's files go.")] = Path("."),
) -> None:  # fmt: skip
    """Measure here what a table or figure of a paper shows, and show it beside the paper's values.

    Of the matrix that is named in the recipe those cells run that are shown; --dry-run prints them and stops.
    """
    from zobench.report import artifacts
    from zobench.report.plot import Plot

    item, code = artifacts.load(name), 0
    if isinstance(item, Plot):
        writable(out)
    if item.runner:
        asked = Asked(
            name=item.runner, changes=changes, device=device, results=results, budget=budget, timeout=None,
            retry="failed,contaminated", disk_dir=disk_dir, dry_run=dry_run, tables=(),
            wanted=partial(artifacts.shows, item),
        )  # fmt: skip
        try:
            run_matrix(asked)
        except typer.Exit as done:
            code = done.exit_code
    if dry_run:
        return
    if isinstance(item, Plot):
        _figure(item, results, out)
    else:
        print("\n" + table_text(name, results, "terminal", None), end="")
    raise typer.Exit(code)


def writable(out: Path) -> None:
    """Raises ``ValueError`` or ``OSError`` unless files can be put into ``out``, which is made."""
    check_folder("--out", next(place for place in (out, *out.absolute().parents) if place.exists()))
    out.mkdir(parents=True, exist_ok=True)
    if not os.access(out, os.W_OK | os.X_OK):
        raise ValueError(f"`--out` must be a folder that you may write to, but got {str(out)!r}; choose another")


def _figure(plot: Any, results: Path, out: Path) -> None:
    """Writes the figure's files, and prints where they are and what they lack."""
    from zobench.recipes.reference import Reference
    from zobench.report import artifacts, publish
    from zobench.store import Store

    store = Store(results)
    artifact, _ = artifacts.make(plot, store.load(), Reference.load())
    for problem in store.problems:
        print(f"not read: {problem}", file=sys.stderr)
    for chart in artifact.charts:
        for panel in chart.panels:
            if panel.message:
                print(f"{panel.title + ': ' if panel.title else ''}{panel.message}")
    for path in publish.write_artifact(artifact, out):
        print(path)


@app.command()
def report(
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder to write into; made if needed.")],
    results: Results = Path("results"),
) -> None:
    """Write every table and figure of the papers, filled with the stored results, and a page of all of them."""
    from rich.progress import Progress

    from zobench.cli import console
    from zobench.report import publish
    from zobench.store import Store

    check_results(results)
    if results != Path("results") and not results.exists():
        raise ValueError(f"`--results` must be a folder with results, but there is no {results}; check the name")
    writable(out)
    store, errors = Store(results), console.error_console()
    stored = store.load()
    for problem in store.problems:
        print(f"not read: {problem}", file=sys.stderr)
    with Progress(console=errors, transient=True, disable=not errors.is_terminal) as bar:
        task = bar.add_task("")
        book = publish.publish(
            stored, store.problems, out, lambda name, i, n: bar.update(task, description=name, completed=i, total=n)
        )
    for problem in book.problems[len(store.problems) :]:
        print(problem, file=sys.stderr)
    if not stored:
        print(f"no results in {results}: only the papers' values are shown", file=sys.stderr)
    tables = sum(artifact.kind == "table" for artifact in book.artifacts)
    print(f"{tables} tables and {len(book.artifacts) - tables} figures; open {out / publish.PAGE}")
