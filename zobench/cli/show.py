"""Commands that show: table, list."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from zobench.cli import completion, console
from zobench.cli.common import Stored, app
from zobench.cli.usage import LOOK
from zobench.machine.files import check_extras
from zobench.result.repeats import renewed
from zobench.session.inputs import check_file, check_price, check_there, form_of, parse_percent
from zobench.store import Store


@app.command(rich_help_panel=LOOK)
def table(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME|FILE", help="A table of `zobench list`, or a .toml file.", autocompletion=completion.tables
        ),
    ],
    results: Stored = Path("results"),
    form: Annotated[str | None, typer.Option("--format", help="terminal, markdown, latex, csv or parquet.")] = None,
    machine: Annotated[str | None, typer.Option(help="Only this machine's results.")] = None,
    output: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="File; its ending is a format.")] = None,
    price: Annotated[float | None, typer.Option("--price", metavar="PRICE", help="Of an hour, for `cost`.")] = None,
    accuracy: Annotated[
        str | None, typer.Option(metavar="PERCENT", help="On dev, that `time_to_accuracy` is the time to.")
    ] = None,
) -> None:
    """Print a table of stored results beside the paper's."""
    if output is not None:
        check_file("--out", output)
    check_price(price)
    target = None if accuracy is None else parse_percent("--accuracy", accuracy)
    check_there(results)
    asked = {"price_per_hour": price, "target_accuracy": target}
    said = {key: value for key, value in asked.items() if value is not None}
    if (form := form_of(form, output)) == "parquet":
        return _write_parquet(name, results, machine, said, output)
    console.write_text(output, table_text(name, results, form, machine, said=said))


@app.command("list", rich_help_panel=LOOK)
def list_(
    what: Annotated[
        str,
        typer.Argument(
            help="models, methods, matrices, campaigns, tables, figures, tasks, metrics, programs, gpus, fields "
            "[all but fields].",
            autocompletion=completion.lists,
        ),
    ] = "",
) -> None:
    """List models, methods, matrices, campaigns, tables, figures, tasks, metrics, programs, GPUs, fields of a run."""
    from zobench.cli import lists

    lists.show_lists(what)


def table_text(
    name: str, results: Path, form: str, machine: str | None, fresh: Sequence[Any] | None = None,
    said: Mapping[str, Any] | None = None,
) -> str:  # fmt: skip
    """The rendered table of the stored results, with ``fresh`` ones in place of what is stored of the same runs.

    ``said``: what else is known of every run, in place of what its environment says.
    """
    from zobench.report import Table, artifacts, render
    from zobench.report.cells import mismatch

    item: Any = artifacts.load(name)
    if item.is_figure:
        raise ValueError(f"`zobench table` shows tables, but {name!r} is a figure; use zobench figure {name}")
    store = Store(results)
    shown = renewed([run.with_facts(**(said or {})) for run in store.runs()], fresh or ())
    screen = console.answer_console()
    console.show_problems(store.problems if fresh is None else ())
    text = render(
        item, shown, form, machine=machine if shown or fresh is None else None,
        width=max(console.NARROWEST, screen.width), color=console.is_colored(screen),
    )  # fmt: skip
    if shown and isinstance(item, Table) and (why := mismatch(item, shown)):
        print(why, file=sys.stderr)
    if not shown:
        console.show_empty([results], "only the paper's values are shown")
    return text


def _write_parquet(name: str, results: Path, machine: str | None, said: Mapping[str, Any], output: Path | None) -> None:
    from zobench.report import artifacts

    if output is None:
        raise ValueError("`--format parquet` must have a file, but --out is missing; add --out table.parquet")
    check_extras("a Parquet file", ("pyarrow",))
    shown = renewed([run.with_facts(**said) for run in Store(results).runs()], ())
    artifacts.frame(name, shown, machine).to_parquet(output, index=False)
