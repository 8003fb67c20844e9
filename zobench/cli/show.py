"""Commands that show: table, list."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from zobench.cli.common import Results, app, check_file, check_results


@app.command()
def table(
    name: Annotated[str, typer.Argument(metavar="NAME|FILE", help="A table of `zobench list`, or a .toml file.")],
    results: Results = Path("results"),
    form: Annotated[str, typer.Option("--format", help="terminal, markdown, latex or csv.")] = "terminal",
    machine: Annotated[str | None, typer.Option(help="Only this machine's results.")] = None,
    output: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Write to a file.")] = None,
) -> None:
    """Print a table of stored results beside the paper's."""
    if output is not None:
        check_file("--out", output)
    text = table_text(name, results, form, machine)
    if output is None:
        print(text, end="")
    else:
        output.write_text(text)


@app.command("list")
def list_(
    what: Annotated[
        str,
        typer.Argument(
            help="models, methods, matrices, tables, figures, tasks, metrics, programs, gpus, fields [all but fields]."
        ),
    ] = "",
) -> None:
    """List models, methods, matrices, tables, figures, tasks, metrics, programs, GPUs, and the fields of a run."""
    from zobench.cli import lists

    lists.show_lists(what)


def table_text(name: str, results: Path, form: str, machine: str | None, fresh: Sequence[Any] | None = None) -> str:
    """The rendered table of the stored results, with ``fresh`` ones in place of what is stored of the same cell."""
    from rich.console import Console

    from zobench.report import artifacts, render
    from zobench.report.cells import mismatch
    from zobench.report.plot import Plot
    from zobench.report.table import Table
    from zobench.store import Store

    item = artifacts.load(name)
    if isinstance(item, Plot):
        raise ValueError(f"`zobench table` shows tables, but {name!r} is a figure; use zobench reproduce {name}")
    check_results(results)
    store = Store(results)
    replaced = {result.spec.hash for result in fresh or ()}
    shown = [result for result in store.load() if result.spec.hash not in replaced] + list(fresh or ())
    screen = Console()
    for problem in store.problems if fresh is None else ():
        print(f"not read: {problem}", file=sys.stderr)
    text = render(
        item, shown, form, machine=machine if shown or fresh is None else None, width=max(80, screen.width),
        color=screen.is_terminal,
    )  # fmt: skip
    if shown and isinstance(item, Table) and (why := mismatch(item, shown)):
        print(why, file=sys.stderr)
    if not shown:
        print(f"no results in {results}: only the paper's values are shown", file=sys.stderr)
    return text
