"""A task of the user's own: a TOML file that says where the rows are, how they are asked, and what is right.

In a spec it is called ``NAME@FINGERPRINT``. The fingerprint is of what the file says and of the data, and of no path,
so that a run keeps its name when files move, and another one begins when they change (docs/data.md).
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from zobench.data.tasks import rows
from zobench.data.tasks.asks import ASKS, asked
from zobench.data.tasks.rows import RowSet
from zobench.data.tasks.task import Example, Task
from zobench.machine.reader import checked
from zobench.machine.texts import toml_in
from zobench.runspec import RunSpec
from zobench.runspec.registries import TASKS

SHARE = 0.2
"""The largest share that dev takes of a training set with fewer rows than train_size and dev_size together."""
TOKEN = 4
"""Bytes of a token in UTF-8, by which durations and memory are predicted before there is a tokenizer."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def task_of(spec: RunSpec) -> Task:
    """The task that ``spec`` names. Raises ``ValueError`` if its file is gone, or says something else by now."""
    name, _, fingerprint = spec.task.partition("@")
    if not fingerprint:
        task: Task = TASKS.get(name)
        return task
    if not spec.task_file:
        raise ValueError(f"the task {name} is a file's, but no file is given; name it: --task {name}.toml")
    loaded = load(Path(spec.task_file))
    if loaded.identity != spec.task:
        raise ValueError(
            f"{spec.task_file} must say what it said when the run began ({spec.task}), but it or its data is another "
            f"({loaded.identity}); bring it back, or begin a new run with --task {spec.task_file}"
        )
    return loaded.task


def identity(path: str) -> str:
    """``NAME@FINGERPRINT`` of the task in the file ``path``. Raises ``ValueError`` as :func:`load` does."""
    return load(Path(path)).identity


@dataclass(frozen=True, eq=False, slots=True)
class Loaded:
    """``task``, and what a spec calls it."""

    identity: str
    task: Task


def load(path: Path) -> Loaded:
    """The task in ``path``; it is read again only after a change of the file or of its data.

    Raises ``ValueError``, one line that names the file, for what no task can be made of.
    """
    try:
        with toml_in(path) as body:
            _check(body, path)
            return _made(path, json.dumps(body, sort_keys=True, default=str), rows.stamp(path.parent, body["data"]))
    except OSError as error:
        raise ValueError(
            f"`task` must be a TOML file, but {path} cannot be read ({error.strerror}); check it"
        ) from error


@functools.lru_cache(maxsize=8)
def _made(path: Path, text: str, stamp: tuple[Any, ...]) -> Loaded:
    """The task of a file. ``text``: the file's content as JSON; ``stamp`` changes when a file of the data does."""
    body = json.loads(text)
    name, sets = body.get("name", path.stem), rows.read(path.parent, body["data"])
    task = asked(body, sets.parts["train"].columns)
    lengths = sorted(length for rows_of_part in sets.parts.values() for length in _lengths(task, rows_of_part))
    task = replace(
        task, name=name, rows=lambda name, part, data_dir: (sets.parts[part].where, sets.parts[part].rows),
        parts=tuple(sets.parts), facts=sets.facts,
        usual_tokens=_tokens(task, lengths[len(lengths) * 3 // 4]), longest_tokens=_tokens(task, lengths[-1]),
        dev_share=0.0 if "dev" in sets.parts else SHARE, remedy=f"check the rows of {name}",
    )  # fmt: skip
    said = {key: value for key, value in body.items() if key not in ("name", "data")}
    words = json.dumps([said, sets.fingerprint, sets.facts], sort_keys=True)
    return Loaded(f"{name}@{hashlib.sha256(words.encode()).hexdigest()[:12]}", task)


def _lengths(task: Task, rows_of_part: RowSet) -> list[int]:
    """Bytes of each row's longest text. All rows are read, so that a mistake is found before a run begins."""
    lengths = []
    for where, row in rows_of_part.rows:
        try:
            example: Example = task.example(row, task.form)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from error
        lengths.append(max(len((example.prompt + candidate).encode()) for candidate in example.candidates or ("",)))
    return lengths


def _tokens(task: Task, nbytes: int) -> int:
    """About how many tokens a text of ``nbytes`` bytes has; rows of plain text are as long as a run allows."""
    return 2**31 if task.goal.every_token else 8 + -(-nbytes // TOKEN // 8) * 8 + task.goal.new_tokens


def _check(body: Mapping[str, Any], path: Path) -> None:
    """Raises ``ValueError`` for a section or a name that a task's file does not have, or lacks."""
    checked(body, {"name": str, **dict.fromkeys(("data", "prompt", *ASKS), dict)}, "the file", ("data",))
    name = body.get("name", path.stem)
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"`name` must be of letters, digits, '.', '_' and '-', but got {name!r}; give name = \"reviews\""
        )
    given = [key for key in ASKS if key in body]
    if len(given) != 1:
        raise ValueError(f"one of {', '.join(ASKS)} must say what is right, but got {' and '.join(given) or 'none'}")
    if ("prompt" in body) == (given == ["text"]):
        raise ValueError(
            "`prompt` must stand beside labels, candidates or an answer, and not beside text; write [prompt]"
        )
