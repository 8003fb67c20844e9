"""Commands about stored runs: results, compare, trace."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from zobench.cli.common import Results, app, check_file, check_folder, check_results


@app.command("results")
def results_(
    folders: Annotated[list[Path] | None, typer.Argument(metavar="DIR", help="Results folders [results].")] = None,
    where: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="Only these; repeatable.")] = None,
    sort: Annotated[str | None, typer.Option(metavar="FIELD", help="Order by a field or a measured quantity.")] = None,
    output: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write all columns: .csv or .parquet.")
    ] = None,
    merge_into: Annotated[Path | None, typer.Option(metavar="DIR", help="Merge the folders into this one.")] = None,
) -> None:
    """List, filter, export and merge stored runs."""
    from zobench.cli import console, listing
    from zobench.store import Store, query

    wanted = query.conditions(where or [])
    for folder in folders or []:
        check_folder("DIR", folder)
    places = folders or [Path("results")]
    if merge_into is not None:
        if where or sort or output:
            raise ValueError("`--merge-into` needs whole folders, but got another option; merge first, then list")
        merge_stores(places, merge_into)
        return
    if output is not None:
        query.check_export(output)
        check_file("--out", output)
    stores = [Store(folder) for folder in places]
    loaded = [result for store in stores for result in store.load()]
    tell_problems(problem for store in stores for problem in store.problems)
    chosen = query.select(loaded, wanted)
    chosen = query.ordered(chosen, sort) if sort else chosen
    if not loaded:
        told = ", ".join(map(str, places))
        print(f"no results in {told}: `zobench sweep smoke --results {places[0]}` makes some", file=sys.stderr)
    elif not chosen:
        print(f"none of {len(loaded)} runs fulfils every --where", file=sys.stderr)
    if output is not None:
        query.export(chosen, output)
    elif chosen:
        listing.show_runs(console.answer_console(), chosen)


@app.command()
def compare(
    before: Annotated[str, typer.Argument(metavar="A", help="A results folder, or a machine or commit in --results.")],
    after: Annotated[str, typer.Argument(metavar="B", help="What is compared with it.")],
    results: Results = Path("results"),
    tolerance: Annotated[str, typer.Option(metavar="PERCENT", help="How close SAME is.")] = "2%",
    limit: Annotated[
        str | None, typer.Option("--fail-on-regression", metavar="PERCENT", help="Exit 1 if B is worse by more.")
    ] = None,
    across_machines: Annotated[bool, typer.Option("--across-machines", help="Also different hardware.")] = False,
    form: Annotated[str, typer.Option("--format", help="terminal or csv.")] = "terminal",
) -> None:
    """Compare two sets of runs, cell by cell: which steps became faster or slower, and on what evidence.

    Cells are matched by everything that was asked of them; only the device's index may differ.
    """
    from zobench.cli import console, listing
    from zobench.runspec import suggestion
    from zobench.store import compare as comparing
    from zobench.store import printable

    if form not in (forms := ("terminal", "csv")):
        raise ValueError(f"unknown format {form!r}; {suggestion(form, forms)}")
    close = parse_percent("--tolerance", tolerance)
    bound = None if limit is None else parse_percent("--fail-on-regression", limit)
    check_results(results)
    sides = [comparing.side(word, results) for word in (before, after)]
    tell_problems(dict.fromkeys(problem for _, problems in sides for problem in problems))
    comparison = comparing.compare(sides[0][0], sides[1][0], tolerance=close, across_machines=across_machines)
    errors = console.error_console()
    if form == "csv":
        listing.write_comparison(comparison, sys.stdout)
    else:
        listing.show_comparison(console.answer_console(), comparison, (before, after))
    console.show_warnings(errors, map(printable, comparing.cautions(comparison)))
    worse = [] if bound is None else comparing.regressions(comparison, bound)
    if bound is not None and all(pair.judgement.verdict is comparing.Verdict.AMBIGUOUS for pair in comparison.pairs):
        errors.print("warning: no cell could be judged, so no regression could be found", style="yellow")
    for line in worse:
        errors.print(printable(f"regression: {line}"), style="red", markup=False, soft_wrap=True)
    raise typer.Exit(1 if worse else 0)


@app.command()
def trace(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A result file, or the first digits of a run's hash.")],
    results: Results = Path("results"),
    output: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Write to a file.")] = None,
) -> None:
    """Write the last step of a run as a trace for ui.perfetto.dev or chrome://tracing."""
    from zobench.store import query
    from zobench.store.trace import trace as traced

    if output is not None:
        check_file("--out", output)
    check_results(results)
    text = json.dumps(traced(query.one(run, results)), indent=1, allow_nan=False) + "\n"
    if output is None:
        print(text, end="")
    else:
        output.write_text(text)


def merge_stores(folders: list[Path], into: Path) -> None:
    """Merges other stores into this one and prints how many results were new."""
    from zobench.store import printable
    from zobench.store.merge import merge

    check_folder("--merge-into", into if into.exists() else None)
    merged = merge(folders, into)
    tell_problems(merged.problems)
    for line in merged.choices:
        print(printable(line))
    print(f"{into}: {merged.added} added, {merged.equal} there already, {len(merged.choices)} chosen between")


def parse_percent(option: str, text: str) -> float:
    """0.05 for ``5%`` or ``5``. Raises ``ValueError`` with ``option``'s name."""
    try:
        percent = float(text.strip().removesuffix("%"))
    except ValueError:
        raise ValueError(f"`{option}` must be a percentage, but got {text!r}; write 5%") from None
    if not 0 <= percent <= 100:
        raise ValueError(f"`{option}` must be 0% to 100%, but got {text!r}; write 5%")
    return percent / 100


def tell_problems(problems: Iterable[str]) -> None:
    """Prints the files that could not be read."""
    for problem in problems:
        print(f"not read: {problem}", file=sys.stderr)
