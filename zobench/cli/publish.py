"""Commands that publish: reproduce, report."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from zobench.cli.common import Budget, Device, DiskDir, Results, app, check_folder, check_results
from zobench.cli.measure import run_matrix
from zobench.cli.show import table_text


@app.command()
def reproduce(
    name: Annotated[str, typer.Argument(metavar="NAME|FILE", help="A table or figure of `zobench list`: zo2/table5.")],
    results: Results = Path("results"), device: Device = "auto", budget: Budget = None, disk_dir: DiskDir = None,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where a figure's files go.")] = Path("."),
) -> None:  # fmt: skip
    """Measure here what a table or figure of a paper shows, and show it beside the paper's values."""
    from zobench.report import artifacts
    from zobench.report.plot import Plot

    item, code = artifacts.load(name), 0
    if isinstance(item, Plot):
        check_folder("--out", next(place for place in (out, *out.absolute().parents) if place.exists()))
    if item.runner:
        try:
            run_matrix(
                item.runner, None, device, results, budget, None, "failed,contaminated", disk_dir, False, tables=()
            )
        except typer.Exit as done:
            code = done.exit_code
    if isinstance(item, Plot):
        _figure(item, results, out)
    else:
        print("\n" + table_text(name, results, "terminal", None), end="")
    raise typer.Exit(code)


def _figure(plot: Any, results: Path, out: Path) -> None:
    """Writes the figure's files, and prints where they are and what they lack."""
    from zobench.report import artifacts, publish
    from zobench.report.reference import Reference
    from zobench.store import Store

    store = Store(results)
    artifact, _ = artifacts.make(plot, store.load(), Reference.load())
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

    from zobench import console
    from zobench.report import publish
    from zobench.store import Store

    check_results(results)
    check_folder("--out", next(place for place in (out, *out.absolute().parents) if place.exists()))
    store, errors = Store(results), console.error_console()
    found = store.load()
    for problem in store.problems:
        print(f"not read: {problem}", file=sys.stderr)
    with Progress(console=errors, transient=True, disable=not errors.is_terminal) as bar:
        task = bar.add_task("")
        book = publish.publish(
            found, store.problems, out, lambda name, i, n: bar.update(task, description=name, completed=i, total=n)
        )
    for problem in book.problems[len(store.problems) :]:
        print(problem, file=sys.stderr)
    if not found:
        print(f"no results in {results}: only the papers' values are shown", file=sys.stderr)
    tables = sum(artifact.kind == "table" for artifact in book.artifacts)
    print(f"{tables} tables and {len(book.artifacts) - tables} figures; open {out / publish.PAGE}")
