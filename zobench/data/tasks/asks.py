"""What a task's file asks: label words, candidates of each row, a free answer, or to go on with a text."""

from __future__ import annotations

import json
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from zobench.data.tasks.task import ANSWER, CONTINUE, Example, Task, answered, joined, text_list
from zobench.runspec import suggestion

_LOSSES = ("choice", "lm")


def asked(body: Mapping[str, Any], columns: Sequence[str]) -> Task:
    """The task of a file's sections, without its data, which has ``columns``. Raises ``ValueError`` for a key that is
    unknown, absent or of another type, and for a column that is not there."""
    kind = next(key for key in ASKS if key in body)
    prompt, section = TaskSection("prompt", body.get("prompt", {}), columns), TaskSection(kind, body[kind], columns)
    template = Template.of(prompt.word("template", "{text}"), columns) if "prompt" in body else Template(())
    task = ASKS[kind](section, template)
    prompt.done()
    section.done()
    return task


@dataclass(slots=True)
class TaskSection:
    """A section of the file, whose keys are taken out one by one, and the columns of the data."""

    name: str
    given: Mapping[str, Any]
    columns: Sequence[str]
    left: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        self.left = dict(self.given)

    def take(self, key: str, kind: type, example: Any, default: Any = None) -> Any:
        """The value of ``key``, of the type ``kind``; without a ``default`` it must be there."""
        value = self.left.pop(key, default)
        if not isinstance(value, kind) or isinstance(value, bool):
            problem = "is not" if value is None else f"got {value!r}"
            raise ValueError(f"`{self.name}.{key}` must be given, but {problem}; write {key} = {example}")
        return value

    def word(self, key: str, example: str, default: str | None = None) -> str:
        """The text of ``key``."""
        return str(self.take(key, str, json.dumps(example), default))

    def column(self, key: str, example: str) -> str:
        """The column of the data that ``key`` names."""
        name = self.word(key, example)
        check_column(f"{self.name}.{key}", name, self.columns)
        return name

    def loss(self, usual: str) -> str:
        """The value of the key ``loss``, "choice" or "lm", by which the task is trained."""
        loss = self.word("loss", usual, usual)
        if loss not in _LOSSES:
            raise ValueError(f"`{self.name}.loss` must be choice or lm, but got {loss!r}; {suggestion(loss, _LOSSES)}")
        return loss

    def done(self) -> None:
        """Raises ``ValueError`` for a key that nothing has taken."""
        if self.left:
            remedy = suggestion(
                next(iter(self.left)), [key for key in self.given if key not in self.left] or ["nothing"]
            )
            raise ValueError(f"unknown key {next(iter(self.left))!r} in [{self.name}]; {remedy}")


def _labels(section: TaskSection, template: Template) -> Task:
    column = section.column("column", "label")
    words = section.take("words", dict, '{ negative = "terrible", positive = "great" }')
    if len(words) < 2 or not all(isinstance(word, str) and word for word in words.values()):
        raise ValueError(f"`labels.words` must give each of two labels or more a word, but got {words!r}")
    if len(set(words.values())) < len(words):
        raise ValueError(f"`labels.words` must tell the labels apart, but got {words!r}; give each another word")
    order = {label: number for number, label in enumerate(words)}

    def make(row: Mapping[str, Any]) -> Example:
        value = value_of(row, column)
        label = value if isinstance(value, str) else json.dumps(value)  # as TOML's keys write it: true, 1
        if label not in order:
            raise ValueError(f"`{column}` must be one of {', '.join(order)}, but got {label!r}; add it to labels.words")
        return Example(*joined(template.fill(row), words.values()), order[label])

    return _task(names=tuple(words.values()), make=make, loss=section.loss("choice"))


def _candidates(section: TaskSection, template: Template) -> Task:
    """A task whose rows bring their candidates: one column holds a list, or several columns hold one candidate each."""
    columns = section.take("columns", list, '["choice1", "choice2"]', [])
    for name in columns:
        check_column("candidates.columns", str(name), section.columns)
    column, answer = "" if columns else section.column("column", "choices"), section.column("answer", "answer")

    def make(row: Mapping[str, Any]) -> Example:
        texts = [text_of(row, name) for name in columns] if columns else text_list(column, value_of(row, column))
        if not all(text.strip() for text in texts):
            raise ValueError(f"a candidate must be a text, but got {texts}; leave empty ones out")
        answers = value_of(row, answer)
        right = tuple(_number(answer, label, texts) for label in (answers if isinstance(answers, list) else [answers]))
        if not right:
            raise ValueError(f"`{answer}` must name a right candidate, but is empty")
        return Example(*joined(template.fill(row), texts), right[0], right)

    return _task(make=make, loss=section.loss("lm"))


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


def _answer(section: TaskSection, template: Template) -> Task:
    column, stop = section.column("column", "answer"), section.word("stop", "\n", ANSWER.stop)
    most = section.take("max_new_tokens", int, 50, ANSWER.new_tokens)
    if most < 1 or not stop:
        raise ValueError(
            f"`answer` must have max_new_tokens >= 1 and a text to stop at, but got {most} and {stop!r}; leave them out"
        )

    def make(row: Mapping[str, Any]) -> Example:
        value = value_of(row, column)
        return answered(
            template.fill(row), text_list(column, value) if isinstance(value, list) else [text_of(row, column)], stop
        )

    return _task(make=make, goal=replace(ANSWER, new_tokens=most, stop=stop), loss="lm")


def _text(section: TaskSection, template: Template) -> Task:
    column = section.word("column", "text", "text")
    check_column("text.column", column, section.columns)
    return _task(make=lambda row: Example(text_of(row, column), (), 0), goal=CONTINUE)


def _task(**changes: Any) -> Task:
    """A task whose name, rows and lengths the file and its data give."""
    return Task(
        name="", rows=lambda name, part, data_dir: ("", ()), usual_tokens=0, longest_tokens=0,
        flat=lambda record: [record], **changes,
    )  # fmt: skip


ASKS: Mapping[str, Callable[[TaskSection, Template], Task]] = {
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
        """The prompt of ``row``. Raises ``ValueError`` where a column is no text and no number."""
        return "".join(before + ("" if name is None else text_of(row, name)) for before, name in self.pieces)


def check_column(key: str, name: str, columns: Sequence[str]) -> None:
    """Raises ``ValueError`` if ``name``, or what stands before its first dot, is none of the data's ``columns``."""
    if name not in columns and name.partition(".")[0] not in columns:
        raise ValueError(f"`{key}` must name columns of the data, but got {name!r}; {suggestion(name, columns)}")


def value_of(row: Mapping[str, Any], name: str) -> Any:
    """What ``row`` has in a column; ``answers.text`` is the part ``text`` of the column ``answers``."""
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
