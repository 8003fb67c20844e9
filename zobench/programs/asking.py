"""The process of an adapter, in a program's own Python: questions to it and its answers, each a line of JSON."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from zobench.machine.files import ending
from zobench.machine.memory import oom_kills
from zobench.machine.processes import ended_by
from zobench.machine.texts import last_line
from zobench.programs import clones
from zobench.programs.authors import AUTHORS
from zobench.programs.clones import Clone
from zobench.runspec import suggestion

ADAPTER = Path(__file__).with_name("adapter.py")
QUIET = {
    "WANDB_MODE": "disabled",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
"""The environment variables of the programs, with which they ask nothing of the network."""
LONGEST = 120
"""Characters of an answer that is none that an error quotes."""


class ProgramError(ValueError):
    """A program's own error, or its end without an answer: one line."""

    def __init__(self, text: str, trace: str = "") -> None:
        super().__init__(text)
        if trace:
            self.add_note(trace)


class AdapterProcess:
    """The process of an adapter, which answers questions. ``said``: the file of its standard error."""

    def __init__(self, name: str, process: subprocess.Popen[str], said: Path) -> None:
        self.name, self._process, self._said, self._kills = name, process, said, oom_kills()

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, text: str = "") -> None:
        """Sends a line; a process that has ended says how when its answer is read."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(text + "\n")
            self._process.stdin.flush()

    def answer(self, *kinds: str) -> dict[str, Any]:
        """The process's next answer, of one of ``kinds``. Raises :class:`ProgramError` for its error, its end, and
        other text; ``MemoryError`` if the program ran out of memory."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise self._end()
        try:
            answer = json.loads(line)
            kind = answer["kind"]
        except (ValueError, TypeError, KeyError):
            raise ProgramError(f"{self.name} must answer in lines of JSON, but said {line[:LONGEST]!r}") from None
        if kind == "error" and answer["type"] == "MemoryError":
            raise MemoryError(f"{self.name}: {answer['text']}")
        if kind == "error":
            raise ProgramError(f"{self.name}: {answer['type']}: {answer['text']}", answer["trace"])
        if kind not in kinds:
            raise ProgramError(f"{self.name} must answer with {' or '.join(kinds)}, but said {line[:LONGEST]!r}")
        return dict(answer)

    def _end(self) -> Exception:
        code, output = self._process.wait(), ending(self._said)
        if code == -signal.SIGKILL and oom_kills() > self._kills:
            return MemoryError(f"the system killed {self.name}'s process")
        if code < 0:
            return ProgramError(f"{self.name}'s process was ended by {ended_by(code)}", output)
        reason = f"{self.name}'s process ended with exit code {code}, and the last that it said is"
        return ProgramError(f"{reason}: {last_line(output, 'nothing')}", output)


@contextmanager
def asking(
    clone: Clone, question: Mapping[str, Any], scratch: Path, shown: str | None = None
) -> Iterator[AdapterProcess]:
    """Starts the adapter of ``clone`` in the folder ``scratch``, asks it, and ends it when the block is left.

    ``shown``: CUDA's numbers of the GPUs that it sees; None: all that are seen here.
    """
    output = scratch / "said.txt"
    hidden = ("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP")
    settings = {**{name: value for name, value in os.environ.items() if name not in hidden}, **QUIET}
    settings |= {} if shown is None else {"CUDA_VISIBLE_DEVICES": shown}
    with output.open("wb") as stderr:
        process = subprocess.Popen(
            [clone.python, "-I", str(ADAPTER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr,
            cwd=scratch, env=settings, text=True, errors="replace",
        )  # fmt: skip
    try:
        adapter = AdapterProcess(clone.name, process, output)
        adapter.ask(json.dumps({"program": clone.name, "clone": clone.path, **question}))
        yield adapter
    finally:
        process.kill()
        with contextlib.suppress(BrokenPipeError), process:
            pass  # its pipes are closed, and not read to their end: what it has started may keep them open


def added(name: str, path: Path, python: Path, scratch: Path) -> Clone:
    """The clone of the program ``name`` at ``path``, which the interpreter ``python`` can import. ``scratch``: a folder
    for what that leaves behind. Raises ``ValueError`` for an unknown program, and for what cannot run it."""
    if name not in AUTHORS:
        raise ValueError(f"unknown program {name!r}; {suggestion(name, AUTHORS)}")
    program = AUTHORS[name]
    if not (path / program.file).is_file():
        raise ValueError(
            f"`--path` must be a clone of {program.repository}, but {path} has no {program.file}; clone that repository"
        )
    if not os.access(python, os.X_OK) or python.is_dir():
        raise ValueError(
            f"`--python` must be the interpreter of {name}'s environment, but {python} cannot be run; for example "
            "ENV/bin/python"
        )
    interpreter = os.path.abspath(python)  # not resolved: an environment's interpreter is a link
    clone = Clone(
        name=name, path=str(path.resolve()), python=interpreter, commit=clones.commit_of(path), versions={},
    )  # fmt: skip
    try:
        with asking(clone, {}, scratch, shown="") as adapter:
            versions = adapter.answer("facts")["versions"]
    except ProgramError as error:
        raise ValueError(
            f"`--python` must be able to import {program.repository}, but {error}; install there what it asks for"
        ) from error
    return replace(clone, versions=versions)
