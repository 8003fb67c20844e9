"""The command that judges a paper: verdict."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from zobench.cli import completion, console
from zobench.cli.common import Stored, app
from zobench.cli.console import NARROWEST, answer_console
from zobench.cli.usage import LOOK
from zobench.recipes.reference import PAPERS, Reference
from zobench.runspec import suggestion
from zobench.session.inputs import check_file, check_there
from zobench.store import Store

if TYPE_CHECKING:
    from zobench.report.verdict import JudgedArtifact


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
    from zobench.report import verdict as judge

    writers: Mapping[str, Callable[[str, Sequence[JudgedArtifact]], str]] = {
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
        console.tell_empty([results], "judged by the paper's own values only")
    console.write_text(output, writers[form](paper, items))
    raise typer.Exit(int(judge.counts(judge.all_claims(items))[judge.Standing.CONTRADICTED] > 0))


def _terminal(paper: str, items: Sequence[JudgedArtifact]) -> str:
    """A block for each table and figure, its claims below it, in the terminal's width."""
    from zobench.report import verdict as judge

    wrap = partial(
        textwrap.wrap, width=max(NARROWEST, answer_console().width), break_on_hyphens=False, break_long_words=False
    )
    lines = wrap(f"{PAPERS[paper]}: {judge.summed(judge.all_claims(items))}")
    for item in items:
        lines += ["", *wrap(f"{item.name}  {item.standing.upper()}  {item.title}", subsequent_indent="  ")]
        if not item.claims:
            lines += wrap(item.evidence, initial_indent="  ", subsequent_indent="  ")
        for claim in item.claims:
            lines += wrap(f"{claim.standing:<13}{claim.text}", initial_indent="  ", subsequent_indent=" " * 15)
            lines += wrap(claim.evidence, initial_indent=" " * 15, subsequent_indent=" " * 15)
        lines += wrap(item.remedy.replace("`", ""), initial_indent="  > ", subsequent_indent="    ")
    lines.append("")
    for standing, meaning in judge.MEANINGS.items():
        lines += wrap(f"{standing}: {meaning}.", subsequent_indent="  ")
    return "\n".join(lines) + "\n"
