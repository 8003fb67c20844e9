"""The command line: parse, call, print. Bad input ends in one line and exit code 2."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from typing import Annotated

import typer

from zobench.cli import additions, finetune, forecast, measure, publish, stored  # noqa: F401  their commands are its
from zobench.cli.common import COMMAND_LINE, FIELDS_ARE_LISTED, Command, app
from zobench.machine import files
from zobench.machine.processes import end_with_launcher, leads
from zobench.machine.texts import shortened
from zobench.store import printable
from zobench.version import __version__

_LEADER_SECONDS = 10.0
"""How long another rank of torchrun waits for the leader's word on a fault of all; torchrun ends it before."""


def _print_version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Measure what zeroth-order fine-tuning of a language model costs here, beside what the papers report."""


for _group in (app, additions.program, additions.model, additions.task):
    for _command in _group.registered_commands:
        _command.cls = Command

_UsageError: type[Exception] = typer.BadParameter.__mro__[1]  # of every wrong command, option and argument


def main(arguments: Sequence[str] | None = None) -> None:
    """The command ``zobench``; always ends in ``SystemExit``."""
    from zobench.measure.threads import waiting

    end_with_launcher()
    os.environ.update(waiting())  # torch is not loaded yet
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")  # a line for each of its retries; one of ours says what failed
    given = COMMAND_LINE[:] = sys.argv[1:] if arguments is None else list(arguments)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends like Ctrl-C: children gone, results kept
    try:
        code = app(args=given or ["--help"], prog_name="zobench", standalone_mode=False)
    except _UsageError as error:
        context, message = getattr(error, "ctx", None), getattr(error, "format_message", error.__str__)()
        # --set without an argument, and not given to a command that lacks it, which has possibilities
        is_set = getattr(error, "option_name", None) == "--set" and not hasattr(error, "possibilities")
        help_place = FIELDS_ARE_LISTED if is_set else f"`{context.command_path if context else 'zobench'} --help`"
        spaced = "; write KEY=VALUE without spaces" if any(word.startswith("=") for word in given) else ""
        code = _fail(2, f"{message} (see {help_place}){spaced}")
    except ValueError as error:
        code = _fail(2, str(error))
    except OSError as error:
        code = _fail(1, files.error_text(error))
    except ImportError as error:
        if "pip install" not in str(error):  # ours name the remedy; any other is a fault
            raise
        code = _fail(1, str(error))
    raise SystemExit(code or 0)


def _fail(code: int, text: str) -> int:
    rank = "" if leads() else f"rank {os.environ['RANK']}: "
    if not rank or code != 2:
        print(f"zobench: {rank}{printable(shortened(text))}", file=sys.stderr)
    else:  # ranks of torchrun find the same fault in what they were told: the leader says it
        time.sleep(_LEADER_SECONDS)  # torchrun ends all ranks when the first has gone: it must not be a silent one
    return code
