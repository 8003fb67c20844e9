"""Commands about tasks of the user's own: task new."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from zobench.cli.common import app
from zobench.cli.usage import TUNE

task = typer.Typer(
    name="task", help="Make a task of your own data.", add_completion=False, rich_markup_mode=None,
)  # fmt: skip
app.add_typer(task, rich_help_panel=TUNE)


@task.callback()
def commands() -> None:
    """Makes "new" a command with a name, although there is no other yet."""


@task.command()
def new(
    data: Annotated[Path, typer.Argument(metavar="FILE", help="Rows: .csv, .tsv, .jsonl, .txt, .parquet.")],
) -> None:
    """Write a task file beside rows with text and labels: columns are guessed, the prompt is plain. Edit it."""
    from zobench.data.tasks import draft

    path, guessed = draft.write(data)
    print(f"{path}: {guessed}")
    print(f"next: zobench finetune --model HuggingFaceTB/SmolLM2-135M --task {shlex.quote(str(path))}")
