"""Commands that show what is stored: table, list, reproduce, figure, report."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from zobench import recipes
from zobench.cli import common, completion, console
from zobench.cli.common import LOOK, MEASURE, app, stored_folder
from zobench.cli.matrices import run_matrix, table_text
from zobench.machine.files import check_extras
from zobench.recipes.reference import Reference
from zobench.result.repeats import renewed
from zobench.session.inputs import check_file, check_folder, check_out, check_price, check_there, form_of, parse_percent
from zobench.store import Store

if TYPE_CHECKING:
    from zobench.report.contents import Artifact


@app.command(rich_help_panel=LOOK)
def table(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME|FILE", help="A table of `zobench list`, or a .toml file.", autocompletion=completion.tables
        ),
    ],
    results: common.Stored = Path("results"),
    form: Annotated[str | None, typer.Option("--format", help="terminal, markdown, latex, csv or parquet.")] = None,
    machine: Annotated[str | None, typer.Option(help="Only this machine's results.")] = None,
    output: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="File; its ending is a format.")] = None,
    price: Annotated[
        float | None, typer.Option("--price", metavar="PRICE", help="Price of an hour of the machine, for `cost`.")
    ] = None,
    accuracy: Annotated[
        str | None, typer.Option(metavar="PERCENT", help="Accuracy on dev up to which `time_to_accuracy` counts.")
    ] = None,
) -> None:
    """Print a table of stored results beside the paper's."""
    if output is not None:
        check_file("--out", output)
    check_price(price)
    target = None if accuracy is None else parse_percent("--accuracy", accuracy)
    check_there(results)
    options = {"price_per_hour": price, "target_accuracy": target}
    facts = {key: value for key, value in options.items() if value is not None}
    if (form := form_of(form, output)) != "parquet":
        return console.write_text(output, table_text(name, results, form, machine, facts=facts))
    if output is None:
        raise ValueError("`--format parquet` must have a file, but --out is missing; add --out table.parquet")
    check_extras("a Parquet file", ("pyarrow",))
    from zobench.report import artifacts

    store = Store(results)
    shown = renewed([run.with_facts(**facts) for run in store.runs()], ())
    console.show_problems(store.problems)
    artifacts.frame(name, shown, machine).to_parquet(output, index=False)


@app.command("list", rich_help_panel=LOOK)
def list_(
    what: Annotated[
        str,
        typer.Argument(
            help="models, methods, schemes, matrices, campaigns, tables, figures, tasks, metrics, programs, gpus, "
            "fields [all but fields].",
            autocompletion=completion.lists,
        ),
    ] = "",
) -> None:
    """List models, methods, schemes, matrices, campaigns, tables, figures, tasks, metrics, programs, GPUs, fields."""
    from zobench.cli import lists

    lists.show_lists(what)


@app.command(rich_help_panel=MEASURE)
def reproduce(
    name: Annotated[str, typer.Argument(
        metavar="NAME|FILE", help="A table or figure of `zobench list`: zo2/table5.",
        autocompletion=completion.artifacts,
    )],
    changes: common.Changes = None, results: common.Results = Path("results"), device: common.Device = "auto",
    budget: common.Budget = None,
    disk_dir: common.DiskDir = None, dry_run: common.DryRun = False,
    repeats: common.Repeats = None, until: common.Until = None,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where a figure's files go.")] = Path("."),
    verbose: common.Verbose = False, quiet: common.Quiet = False,
) -> None:  # fmt: skip
    """Measure here what a table or figure of a paper shows, and show it beside the paper's values.

    Of the matrix that is named in the recipe those cells run that are shown; --dry-run prints them and stops.
    """
    from zobench.report import artifacts, publish

    item, code = artifacts.load(name), 0
    if item.is_figure:
        check_extras("a figure", publish.FIGURE)
        check_out("--out", out)
    if item.runner:
        try:
            run_matrix(
                item.runner, changes, device, results, disk_dir, dry_run=dry_run, verbose=verbose, shows_tables=False,
                budget=budget, repeats=repeats, until=until, wanted=partial(artifacts.shows, item),
            )  # fmt: skip
        except typer.Exit as done:
            code = done.exit_code
    if dry_run:
        return
    if item.is_figure:
        _figure(item, results, out)
    else:
        print("\n" + table_text(name, results, "terminal", None), end="")
    raise typer.Exit(code)


@app.command(rich_help_panel=LOOK)
def figure(
    names: Annotated[list[str], typer.Argument(
        metavar="NAME|FILE|FOLDER...", help="A figure of `zobench list`, a .toml file, or folders of runs or results.",
        autocompletion=completion.figures,
    )],
    results: common.Stored = Path("results"),
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where its files go.")] = Path("."),
    where: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="Of folders only these runs; repeatable.")
    ] = None,
    forwards: Annotated[bool, typer.Option("--forwards", help="Of folders: by forwards, not by step.")] = False,
) -> None:  # fmt: skip
    """Draw a figure from stored results, as PNG, SVG, PDF and CSV; nothing is measured.

    Of folders: loss and accuracy on dev of the fine-tuning runs in them, a line for each.
    """
    from zobench.report import artifacts, publish

    if names[0] not in recipes.names("plots") and any(recipes.results(Path(name)).is_dir() for name in names):
        check_extras("a figure", publish.FIGURE)
        check_out("--out", out)
        with console.waiting("drawing the runs"):
            from zobench.report import tuning
            from zobench.store import query

            folders, wanted = [stored_folder(Path(name)) for name in names], query.conditions(where or [])
            for folder in folders:
                check_folder("FOLDER", folder)
            runs, problems = tuning.load(folders)
            console.show_problems(problems)
            return _write(tuning.figure(query.select(runs, wanted), forwards=forwards), out)
    if where or forwards or len(names) > 1:
        raise ValueError(
            f"`--where`, `--forwards` and several names are for folders of runs, but got {names[0]!r}; leave them out"
        )
    item = artifacts.load(names[0], ("plots", "tables"))
    if not item.is_figure:
        raise ValueError(f"`zobench figure` draws figures, but {names[0]!r} is a table; use zobench table {names[0]}")
    check_there(results)
    check_extras("a figure", publish.FIGURE)
    check_out("--out", out)
    with console.waiting(f"{names[0]}: drawing the figure"):
        _figure(item, results, out)


def _figure(plot: Any, results: Path, out: Path) -> None:
    """Writes the figure's files, and prints where they are and what they lack."""
    from zobench.report import artifacts

    store = Store(results)
    stored = store.load()
    artifact, _ = artifacts.make(plot, stored, Reference.load())
    if not stored:
        console.show_empty([results], "the figure has none of its own")
    console.show_problems(store.problems)
    _write(artifact, out)


def _write(artifact: Artifact, out: Path) -> None:
    from zobench.report import publish

    for chart in artifact.charts:
        for text in chart.lacking:
            print(text)
    for path in publish.write_artifact(artifact, out):
        print(path)


@app.command(rich_help_panel=LOOK)
def report(
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder to write into; made if needed.")],
    results: common.Stored = Path("results"), quiet: common.Quiet = False,
) -> None:  # fmt: skip
    """Write every table and figure of the papers, filled with the stored results, and a page of all of them."""
    from rich.progress import Progress

    from zobench.report import publish

    check_there(results)
    check_extras("a report", publish.WHOLE)
    check_out("--out", out)
    store, errors = Store(results), console.error_console()
    stored = store.load()
    console.show_problems(store.problems)
    lines = nullcontext() if errors.is_terminal else console.waiting("tables and figures: writing")
    with Progress(console=errors, transient=True, disable=not errors.is_terminal) as bar, lines:
        task = bar.add_task("tables and figures")
        contents = publish.publish(
            stored, store.problems, out, lambda name, i, n: bar.update(task, description=name, completed=i, total=n)
        )
    for problem in contents.problems[len(store.problems) :]:
        print(problem, file=sys.stderr)
    if not stored:
        console.show_empty([results], "all that is shown is predicted or the papers'")
    tables = sum(artifact.kind == "table" for artifact in contents.artifacts)
    print(f"{tables} tables and {len(contents.artifacts) - tables} figures; open {out / publish.PAGE}")
