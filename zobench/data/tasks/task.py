"""A task: its columns, labels, prompts and candidates, and where its sets are. Imports no torch.

A candidate joins its prompt as in MeZO: the prompt loses the spaces at its ends, and the candidate's text begins with
the space that separates the two, or with none after a newline. So ``prompt + candidate`` is the text that is scored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MASK = "<mask>"
"""Stands for the tokenizer's mask token in a masked form's prompt."""

Record = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Example:
    """``prompt`` and the texts that may follow it; ``answer`` is the index of the right one.

    ``prompt + candidates[i]`` is a text with its spaces in place; of a masked form the candidates are label words, and
    the prompt holds :data:`MASK` where one belongs. ``right``: all right candidates, where there are several;
    ``answer`` is the one that trains. ``golds``: of a question with a free answer, all answers that count as right.
    """

    prompt: str
    candidates: tuple[str, ...]
    answer: int
    right: tuple[int, ...] = ()
    golds: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Goal:
    """The goal of a task: that a model chooses, answers, or goes on with a text.

    ``scores``: the metrics of an evaluation, first the one that stands for the task. What imports torch is named as
    ``module:class``: ``encoding`` makes rows and batches of examples (:class:`zobench.data.tasks.encode.Encoding`),
    ``judge`` evaluates them with an engine (:class:`zobench.training.evaluate.Judge`). ``new_tokens``: the most that
    are generated for an answer, which ends with ``stop``. ``every_token``: whether all tokens of a row count in the
    loss.
    """

    scores: tuple[str, ...]
    encoding: str
    judge: str
    new_tokens: int = 0
    stop: str = ""
    every_token: bool = False


CHOOSE = Goal(
    scores=("accuracy",), encoding="zobench.data.tasks.encode:Encoding", judge="zobench.training.evaluate:Choosing"
)
ANSWER = Goal(
    scores=("f1", "exact_match"), encoding="zobench.data.tasks.encode:Answers",
    judge="zobench.training.evaluate:Answering", new_tokens=50, stop="\n",
)  # fmt: skip
"""At most 50 tokens, up to the end of the line, as MeZO's program generates an answer."""
CONTINUE = Goal(
    scores=("perplexity",), encoding="zobench.data.tasks.encode:PackedText",
    judge="zobench.training.evaluate:Continuing", every_token=True,
)  # fmt: skip


Form = Callable[[Record], tuple[str, tuple[str, ...]]]
"""Makes prompt and candidates of a row's texts."""


Rows = Callable[[str, str, Path | None], tuple[str, Iterable[tuple[str, Mapping[str, Any]]]]]
"""Given the task's name, "train" or "validation", and the folder of ``--data-dir`` (None without one): where that set
is, for messages, and of each row where it is and its columns. Raises ``ValueError`` for a set that is not there."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """A task is a set of questions to a model, ``name`` in a spec.

    ``texts``: the columns of text that ``form`` reads. ``labels``: a label column's value to the right candidate.
    ``names``: what candidates are called in a report. ``answer_columns``: possible names of the label's column. Where
    each row brings candidates or answers of its own, ``make`` makes its example, in place of all these. ``flat``: the
    rows of a record where files nest them; ``remedy`` ends an error about a row.
    ``goal``: what is asked for. ``parts``: names of the sets, "dev" among them where the task has one of its own.
    ``facts``: what a result says of the task beside sizes, JSON types only.

    ``rows`` gives the sets, as :class:`zobench.data.tasks.read.SetFiles` does from files and the hub.
    ``usual_tokens`` and ``longest_tokens``: of a usual batch's rows and of the longest text, from which seconds and
    bytes are predicted; ``packed_share``: the tokens of a packed batch of 8 over those of the padded one, 1 where they
    were not counted (docs/design/METHODS.md, "Packed rows").
    ``loss`` trains it (:class:`zobench.data.batch.Choices`). ``small_dev``: the dev size where the training set is
    smaller than what a run asks for; ``dev_share``: the same as a share of that set. ``counts``: part to rows, where
    they are known before the data is read. ``unaligned`` and ``masked``: other forms, where the papers give one.
    """

    name: str
    rows: Rows
    usual_tokens: int
    longest_tokens: int
    packed_share: float = 1.0
    texts: tuple[str, ...] = ()
    labels: Mapping[str | int, int] = field(default_factory=dict)
    names: tuple[str, ...] = ()
    form: Form = lambda row: ("", ())
    make: Callable[[Mapping[str, Any]], Example] | None = None
    flat: Callable[[Mapping[str, Any]], Iterable[Mapping[str, Any]]] | None = None
    remedy: str = ""
    goal: Goal = CHOOSE
    parts: tuple[str, ...] = ("train", "validation")
    facts: Mapping[str, Any] = field(default_factory=dict)
    answer_columns: tuple[str, ...] = ("label",)
    loss: str = "choice"
    small_dev: int | None = None
    dev_share: float = 0.0
    counts: Mapping[str, int] = field(default_factory=dict)
    unaligned: Form | None = None
    masked: Form | None = None

    def dev_rows(self, train: int, dev: int, count: int) -> int:
        """How many of ``count`` rows without a set for dev that takes, where ``train`` and ``dev`` rows are asked
        for."""
        if train + dev <= count:
            return dev
        least = max(1, int(self.dev_share * count)) if self.dev_share else dev
        return min(dev, least, dev if self.small_dev is None else self.small_dev)

    def example(self, row: Mapping[str, object], form: Form) -> Example:
        """The example of one labelled row. Raises ``ValueError`` for a missing column or an unknown label."""
        if self.make is not None:
            return self.make(row)
        prompt, candidates = form({name: self._text(row, name) for name in self.texts})
        return Example(prompt, candidates, self._answer(row))

    def _text(self, row: Mapping[str, object], name: str) -> str:
        text = row.get(name)
        if not isinstance(text, str):
            present = f"column {name} of type {type(text).__name__}" if name in row else f"columns {', '.join(row)}"
            raise ValueError(f"a row must have text in the columns {', '.join(self.texts)}, but got {present}")
        return text

    def _answer(self, row: Mapping[str, object]) -> int:
        column = next((name for name in self.answer_columns if name in row), None)
        if column is None:
            wanted = " or ".join(self.answer_columns)
            raise ValueError(f"a row must have the column {wanted}, but got columns {', '.join(row)}")
        label = row[column]
        if not isinstance(label, (str, int)) or label not in self.labels:
            labels = ", ".join(map(repr, self.labels))
            hint = "; -1 means no label, as in a test set" if label == -1 else ""
            raise ValueError(f"`{column}` must be one of {labels}, but got {label!r}{hint}")
        return self.labels[label]


def words(text: Callable[[Record], str], *candidates: str) -> Form:
    """The form whose candidates are the same ``candidates`` for every row."""

    def form(row: Record) -> tuple[str, tuple[str, ...]]:
        return joined(text(row), candidates)

    return form


def joined(text: str, candidates: Iterable[str]) -> tuple[str, tuple[str, ...]]:
    """The prompt ``text`` without the spaces at its ends, and ``candidates`` each with the space that comes first."""
    prompt = text.lstrip().rstrip(" ")
    gap = "" if prompt.endswith("\n") else " "
    return prompt, tuple(gap + candidate for candidate in candidates)


def answered(text: str, answers: Sequence[str], stop: str) -> Example:
    """A question with a free answer: the first of ``answers`` trains, with ``stop`` after it."""
    prompt, candidates = joined(text, [answers[0] + stop])
    return Example(prompt, candidates, 0, golds=tuple(answers))


def text_list(column: str, value: Any) -> list[str]:
    """The texts of a list in a ``column``. Raises ``ValueError`` for anything but a list of texts, at least one."""
    is_list = isinstance(value, Sequence) and not isinstance(value, str)
    texts = [text for text in value if isinstance(text, str)] if is_list else []
    if not texts or len(texts) < len(value):
        raise ValueError(f"`{column}` must be a list of texts, at least one, but got {value!r}")
    return texts
