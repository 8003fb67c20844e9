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
    what: Annotated[str, typer.Argument(metavar="[models|matrices|tables]", help="Leave it out to list all.")] = "",
) -> None:
    """List models, matrices and tables."""
    from zobench import console

    console.show_lists(what)


def table_text(name: str, results: Path, form: str, machine: str | None, fresh: Sequence[Any] = ()) -> str:
    """The rendered table of the stored results, with ``fresh`` ones in place of what is stored of the same cell."""
    from rich.console import Console

    from zobench import recipe
    from zobench.report import load_table, render
    from zobench.store import Store

    recipe_path = recipe.find("tables", name)
    check_results(results)
    store = Store(results)
    replaced = {result.spec.hash for result in fresh}
    found = [result for result in store.load(machine) if result.spec.hash not in replaced] + list(fresh)
    screen = Console()
    for problem in store.problems if not fresh else ():
        print(f"not read: {problem}", file=sys.stderr)
    text = render(
        load_table(recipe_path), found, form, machine=machine if found else None, width=max(80, screen.width),
        color=screen.is_terminal,
    )  # fmt: skip
    if not found:
        print(f"no results in {results}: only the paper's values are shown", file=sys.stderr)
    return text
