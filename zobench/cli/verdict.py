"""The command that judges a paper: verdict."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from zobench.cli import completion
from zobench.cli.checks import check_file, check_there, tell_empty
from zobench.cli.common import Stored, app
from zobench.cli.usage import LOOK
from zobench.runspec import suggestion


@app.command(rich_help_panel=LOOK)
def verdict(
    paper: Annotated[str, typer.Argument(
        metavar="PAPER", help="zo-offloading-neurips24, zo-offloading-iclr25, zo2, distzo2 or zo-bench.",
        autocompletion=completion.papers,
    )],
    results: Stored = Path("results"),
    form: Annotated[str, typer.Option("--format", help="terminal, markdown, json or svg (a badge).")] = "terminal",
    output: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Write to a file.")] = None,
) -> None:  # fmt: skip
    """Say of each claim of a paper: reproduced, shape holds, not shown or contradicted, with the evidence.

    Exit code 1: something is contradicted. --results results/published judges by the runs that come with zobench.
    """
    from zobench.recipes.reference import Reference
    from zobench.report import verdict as judge
    from zobench.store import Store

    writers: Mapping[str, Callable[[str, Sequence[Any]], str]] = {
        "terminal": _terminal, "markdown": judge.as_markdown, "json": judge.as_json, "svg": judge.as_badge,
    }  # fmt: skip
    if form not in writers:
        raise ValueError(
            f"`--format` must be one of {', '.join(writers)}, but got {form!r}; {suggestion(form, writers)}"
        )
    if output is not None:
        check_file("--out", output)
    check_there(results)
    stored = Store(results).load()
    items = judge.verdicts(paper, stored, Reference.load())
    if not stored:
        tell_empty([results], "judged by the paper's own values only")
    text = writers[form](paper, items)
    if output is None:
        print(text, end="" if text.endswith("\n") else "\n")
    else:
        output.write_text(text, encoding="utf-8")
    raise typer.Exit(int(judge.counts(items)[judge.CONTRADICTED] > 0))


def _terminal(paper: str, items: Sequence[Any]) -> str:
    """A block for each table and figure, its claims below it, in the terminal's width."""
    from zobench.cli.console import answer_console
    from zobench.recipes.reference import PAPERS
    from zobench.report import verdict as judge

    width = max(60, answer_console().width)
    numbers = [f"{number} {word}" for word, number in judge.counts(items).items()]
    lines = textwrap.wrap(f"{PAPERS[paper]}: of its claims {', '.join(numbers)}", width)
    for item in items:
        if item.kind in ("table", "figure"):
            lines += ["", *_set_in(f"{item.artifact}  {item.verdict.upper()}  {item.text}", width, "", "  ")]
            lines += [] if item.kind == "table" and item.command == "" else _set_in(item.evidence, width, "  ", "  ")
            lines += [f"  {item.command}"] if item.command else []
        else:
            lines += _set_in(f"{item.verdict:<13}{item.text}", width, "  ", " " * 15)
            lines += _set_in(item.evidence, width, " " * 15, " " * 15)
    lines += [""]
    for word, meaning in judge.MEANINGS.items():
        lines += _set_in(f"{word}: {meaning}.", width, "", "  ")
    return "\n".join(lines) + "\n"


def _set_in(text: str, width: int, first: str, others: str) -> list[str]:
    return textwrap.wrap(text, width, initial_indent=first, subsequent_indent=others, break_on_hyphens=False)
