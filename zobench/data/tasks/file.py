"""A task of the user's own: a TOML file that says where the rows are, how they are asked, and what is right.

In a spec it is called ``NAME@FINGERPRINT``. The fingerprint is of what the file says and of the data, and of no path,
so that a run keeps its name when files move, and another one begins when they change (docs/data.md).
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from zobench.data.tasks import rows
from zobench.data.tasks.rows import RowSet
from zobench.data.tasks.task import ANSWER, CONTINUE, Example, Task, answered, joined, text_list
from zobench.machine.reader import checked, positive, read
from zobench.machine.texts import toml_in
from zobench.runspec import RunSpec, suggestion
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
    lengths = sorted(length for rows_of_file in sets.unsplit for length in _lengths(task, rows_of_file))
    task = replace(
        task, name=name, rows=lambda name, part, data_dir: (sets.parts[part].where, sets.parts[part].rows),
        parts=tuple(sets.parts), facts=sets.facts, counts={part: len(kept.rows) for part, kept in sets.parts.items()},
        usual_tokens=_tokens(task, lengths[len(lengths) * 3 // 4]), longest_tokens=_tokens(task, lengths[-1]),
        dev_share=0.0 if "dev" in sets.parts else SHARE, remedy=f"check the rows of {name}",
    )  # fmt: skip
    settings = {key: value for key, value in body.items() if key not in ("name", "data")}
    said = [settings, sets.fingerprint, sets.facts]
    template = Template.of(body.get("prompt", {}).get("template", ""), sets.parts["train"].columns)
    if any(template.is_trimmed(row) for rows_of_file in sets.unsplit for _, row in rows_of_file.rows):
        said.append("spaces at the ends of a column are left out")  # runs of before, which had them, are other runs
    words = json.dumps(said, sort_keys=True)
    return Loaded(f"{name}@{hashlib.sha256(words.encode()).hexdigest()[:12]}", task)


def _lengths(task: Task, rows_of_file: RowSet) -> list[int]:
    """Bytes of each row's longest text. All rows are read, so that a mistake is found before a run begins."""
    lengths = []
    for row_name, row in rows_of_file.rows:
        try:
            example: Example = task.example(row, task.form)
        except ValueError as error:
            raise ValueError(f"{row_name}: {error}") from error
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
    forms = [key for key in ASKS if key in body]
    if len(forms) != 1:
        raise ValueError(f"one of {', '.join(ASKS)} must say what is right, but got {' and '.join(forms) or 'none'}")
    if ("prompt" in body) == (forms == ["text"]):
        raise ValueError(
            "`prompt` must stand beside labels, candidates or an answer, and not beside text; write [prompt]"
        )


Loss = Literal["choice", "lm"]
"""The loss by which a task is trained."""


def asked(body: Mapping[str, Any], columns: Sequence[str]) -> Task:
    """The task of a file's sections, without its data, which has ``columns``. Raises ``ValueError`` for a key that is
    unknown, absent or of another type, and for a column that is not there."""
    template = Template(())
    if "prompt" in body:
        stated = checked(body["prompt"], {"template": str}, "[prompt]", ("template",))
        template = Template.of(stated["template"], columns)
    kind = next(key for key in ASKS if key in body)
    if kind in ("labels", "answer") and all(name is None for _, name in template.pieces):
        raise ValueError("`prompt.template` must name a column, but names none; write {column} where a row's text goes")
    return read(ASKS[kind], body[kind], f"[{kind}]", template=template, data_columns=columns)


def _labels(
    *, template: Template, data_columns: Sequence[str], column: str, words: dict[str, Any], loss: Loss = "choice"
) -> Task:
    """A task with a word for each label in ``column``, one of ``data_columns``."""
    check_column("labels.column", column, data_columns)
    if len(words) < 2 or not all(isinstance(word, str) and word for word in words.values()):
        raise ValueError(f"`labels.words` must give each of two labels or more a word, but got {words!r}")
    if len(set(words.values())) < len(words):
        raise ValueError(f"`labels.words` must tell the labels apart, but got {words!r}; give each another word")
    order = {label: number for number, label in enumerate(words)}

    def make(row: Mapping[str, Any]) -> Example:
        value = value_of(row, column)
        label = value if isinstance(value, str) else json.dumps(value)  # as TOML's keys write it: true, 1
        if label not in order:
            remedy = "leave the row out, or fill it in" if value in ("", None) else "add it to labels.words"
            raise ValueError(f"`{column}` must be one of {', '.join(order)}, but got {label!r}; {remedy}")
        return Example(*joined(template.fill(row), words.values()), order[label])

    return _task(names=tuple(words.values()), make=make, loss=loss)


def _candidates(
    *, template: Template, data_columns: Sequence[str], columns: tuple[str, ...] = (), column: str = "", answer: str,
    loss: Loss = "lm",
) -> Task:  # fmt: skip
    """A task whose rows bring their candidates: one column holds a list, or several columns hold one candidate each."""
    if bool(columns) == bool(column):
        got = "both" if columns else "neither"
        raise ValueError(f"[candidates] must have a column or columns, but has {got}; give one of the two")
    for key, names in (("columns", columns), ("column", (column,) if column else ()), ("answer", (answer,))):
        for name in names:
            check_column(f"candidates.{key}", name, data_columns)

    def make(row: Mapping[str, Any]) -> Example:
        texts = [text_of(row, name) for name in columns] if columns else text_list(column, value_of(row, column))
        if not all(text.strip() for text in texts):
            raise ValueError(f"a candidate must be a text, but got {texts}; leave empty ones out")
        answers = value_of(row, answer)
        right = tuple(_number(answer, label, texts) for label in (answers if isinstance(answers, list) else [answers]))
        if not right:
            raise ValueError(f"`{answer}` must name a right candidate, but is empty")
        return Example(*joined(template.fill(row), texts), right[0], right)

    return _task(make=make, loss=loss)


def _number(column: str, label: Any, texts: Sequence[str]) -> int:
    """The number of the candidate that ``label`` names by its text, or by its number from 0 on."""
    if label in texts:
        return texts.index(label)
    number = int(label) if str(label).isdecimal() and not isinstance(label, bool) else -1
    if not 0 <= number < len(texts):
        raise ValueError(
            f"`{column}` must be the text of a candidate, or its number from 0 to {len(texts) - 1}, but got {label!r}"
        )
    return number


def _answer(
    *, template: Template, data_columns: Sequence[str], column: str, stop: str = ANSWER.stop,
    max_new_tokens: Annotated[int, positive] = ANSWER.new_tokens,
) -> Task:  # fmt: skip
    """A task whose answer is written freely, until ``stop`` or ``max_new_tokens``."""
    check_column("answer.column", column, data_columns)
    if not stop:
        raise ValueError("`answer.stop` must be a text to stop at, but is empty; leave it out")

    def make(row: Mapping[str, Any]) -> Example:
        value = value_of(row, column)
        return answered(
            template.fill(row), text_list(column, value) if isinstance(value, list) else [text_of(row, column)], stop
        )

    return _task(make=make, goal=replace(ANSWER, new_tokens=max_new_tokens, stop=stop), loss="lm")


def _text(*, template: Template, data_columns: Sequence[str], column: str = "text") -> Task:
    """A task of going on with the text in ``column``, without a prompt."""
    check_column("text.column", column, data_columns)
    return _task(make=lambda row: Example(text_of(row, column), (), 0), goal=CONTINUE)


def _task(**changes: Any) -> Task:
    """A task whose name, rows and lengths the file and its data give."""
    return Task(
        name="", rows=lambda name, part, data_dir: ("", ()), usual_tokens=0, longest_tokens=0,
        flat=lambda record: [record], **changes,
    )  # fmt: skip


ASKS: Mapping[str, Callable[..., Task]] = {
    "labels": _labels, "candidates": _candidates, "answer": _answer, "text": _text,
}  # fmt: skip
"""Sections of a task's file, of which it has one."""


@dataclass(frozen=True, slots=True)
class Template:
    """``pieces``: of each the text that comes first, and the column that follows it, or None after the last."""

    pieces: tuple[tuple[str, str | None], ...]

    @classmethod
    def of(cls, text: str, columns: Sequence[str]) -> Template:
        """The template ``{title}: {body}``; ``{{`` and ``}}`` are braces. Raises ``ValueError`` for a column that the
        data does not have."""
        try:
            pieces = tuple(string.Formatter().parse(text))
        except ValueError as error:
            raise ValueError(
                f"`prompt.template` must be text with {{columns}}, but {error}; write {{{{ for a brace"
            ) from error
        for _, name, layout, conversion in pieces:
            if name is not None:
                if layout or conversion or not name:
                    raise ValueError(
                        f"`prompt.template` must name a column, but got {{{name}}}; write {{column}} alone"
                    )
                check_column("prompt.template", name, columns)
        return cls(tuple((before, name) for before, name, _, _ in pieces))

    def fill(self, row: Mapping[str, Any]) -> str:
        """The prompt of ``row``, without the spaces at the ends of a column, which GLUE's files have and a model reads
        as another text. Raises ``ValueError`` where a column is no text and no number."""
        return "".join(before + ("" if name is None else text_of(row, name).strip(" ")) for before, name in self.pieces)

    def is_trimmed(self, row: Mapping[str, Any]) -> bool:
        """Whether a column of ``row`` has spaces at its ends, which the prompt leaves out."""
        texts = [text_of(row, name) for _, name in self.pieces if name is not None]
        return any(text != text.strip(" ") for text in texts)


def check_column(key: str, name: str, columns: Sequence[str]) -> None:
    """Raises ``ValueError`` if ``name``, or what stands before its first dot, is none of the data's ``columns``."""
    if name not in columns and name.partition(".")[0] not in columns:
        raise ValueError(f"`{key}` must name columns of the data, but got {name!r}; {suggestion(name, columns)}")


def value_of(row: Mapping[str, Any], name: str) -> Any:
    """Returns the value of ``row`` in a column; ``answers.text`` is the part ``text`` of the column ``answers``."""
    if name in row:
        return row[name]
    value: Any = row
    for part in name.split("."):
        if not isinstance(value, Mapping) or part not in value:
            raise ValueError(f"a row must have the column {name}, but got columns {', '.join(row)}")
        value = value[part]
    return value


def text_of(row: Mapping[str, Any], name: str) -> str:
    """The text or the number in a column, as text."""
    value = value_of(row, name)
    if not isinstance(value, (str, int, float)):
        raise ValueError(f"the column {name} must have text or a number, but got {value!r}")
    return str(value)
