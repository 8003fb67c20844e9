"""What a model is asked: every task's columns, labels, prompts and candidates, as MeZO and ZO-Bench word them.

A candidate joins its prompt as in MeZO: the prompt loses the spaces at its ends, and the candidate's text begins with
the space that separates the two, or with none after a newline. So ``prompt + candidate`` is the text that is scored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

MASK = "<mask>"
"""Stands for the tokenizer's mask token in a masked form's prompt."""

Record = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Example:
    """``prompt`` and the texts that may follow it; ``answer`` is the index of the right one.

    ``prompt + candidates[i]`` is a text with its spaces in place; of a masked form the candidates are label words, and
    the prompt holds :data:`MASK` where one belongs.
    """

    prompt: str
    candidates: tuple[str, ...]
    answer: int


Form = Callable[[Record], tuple[str, tuple[str, ...]]]
"""Makes prompt and candidates of a row's texts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """``texts``: the columns of text that ``form`` reads. ``labels``: a label column's value to the right candidate.

    ``names``: what candidates are called in a report. ``answer_columns``: possible names of the label's column.
    ``loss`` trains it (:class:`zobench.data.Choices`). ``small_dev``: the dev size where the training set is smaller
    than what a run asks for. ``unaligned`` and ``masked``: other forms, where the papers give one.
    """

    texts: tuple[str, ...]
    labels: Mapping[str | int, int]
    names: tuple[str, ...]
    form: Form
    answer_columns: tuple[str, ...] = ("label",)
    loss: str = "choice"
    small_dev: int | None = None
    unaligned: Form | None = None
    masked: Form | None = None

    def example(self, row: Mapping[str, object], form: Form) -> Example:
        """The example of one labelled row. Raises ``ValueError`` for a missing column or an unknown label."""
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
            known = ", ".join(map(repr, self.labels))
            hint = "; -1 means no label, as in a test set" if label == -1 else ""
            raise ValueError(f"`{column}` must be one of {known}, but got {label!r}{hint}")
        return self.labels[label]


def _words(text: Callable[[Record], str], *words: str) -> Form:
    """The form whose candidates are the same ``words`` for every row."""

    def form(row: Record) -> tuple[str, tuple[str, ...]]:
        prompt = text(row).lstrip().rstrip(" ")
        gap = "" if prompt.endswith("\n") else " "
        return prompt, tuple(gap + word for word in words)

    return form


def _boolq(row: Record) -> str:
    question = row["question"] if row["question"].endswith("?") else row["question"] + "?"
    return f"{row['passage']} {question[0].upper()}{question[1:]}\n"


def _wsc(row: Record) -> str:
    pronoun = row["span2_text"].lower()
    return (
        f'{row["text"]}\nIn the previous sentence, does the pronoun "{pronoun}" refer to {row["span1_text"]}? '
        "Yes or No?\n"
    )


def _copa(row: Record) -> tuple[str, tuple[str, ...]]:
    """A first word "I" keeps its capital; so does nothing else, "I'm" included, as in MeZO."""
    connectives = {"effect": " so", "cause": " because"}
    if row["question"] not in connectives:
        raise ValueError(f"`question` must be effect or cause, but got {row['question']!r}")
    choices = []
    for name in ("choice1", "choice2"):
        first, space, rest = row[name].rstrip(" ").partition(" ")
        choices.append(" " + (first if first == "I" else first.lower()) + space + rest)
    premise = row["premise"].strip().removesuffix(".")
    return premise + connectives[row["question"]], tuple(choices)


def _winogrande(row: Record) -> tuple[str, tuple[str, ...]]:
    if row["sentence"].count("_") != 1:
        raise ValueError(f"`sentence` must hold one _ for the option, but got {row['sentence']!r}")
    context, rest = row["sentence"].lstrip().split("_")
    prompt = context.rstrip(" ")
    gap = context[len(prompt) :]
    return prompt, tuple((gap + row[name] + rest).rstrip(" ") for name in ("option1", "option2"))


def _rte_masked(row: Record) -> str:
    """MeZO's: the premise without its last character, the hypothesis with its first in lower case."""
    hypothesis = row["hypothesis"]
    return f"{row['premise'][:-1]}? {MASK}, {hypothesis[:1].lower()}{hypothesis[1:]}"


TASKS: dict[str, Task] = {
    "sst2": Task(
        texts=("sentence",),
        labels={0: 0, 1: 1, "0": 0, "1": 1},
        names=("terrible", "great"),
        form=_words(lambda row: f"{row['sentence'].strip()} It was", "terrible", "great"),
        unaligned=_words(lambda row: row["sentence"].strip(), "terrible", "great"),
        masked=_words(lambda row: f"{row['sentence'].strip()} It was {MASK}.", "terrible", "great"),
    ),
    "rte": Task(
        texts=("premise", "hypothesis"),
        labels={"entailment": 0, "not_entailment": 1, 0: 0, 1: 1},
        names=("Yes", "No"),
        form=_words(
            lambda row: f'{row["premise"]}\nDoes this mean that "{row["hypothesis"]}" is true? Yes or No?\n',
            "Yes", "No",
        ),
        masked=_words(_rte_masked, "Yes", "No"),
    ),
    "cb": Task(
        texts=("premise", "hypothesis"),
        labels={"entailment": 0, "contradiction": 1, "neutral": 2, 0: 0, 1: 1, 2: 2},
        names=("Yes", "No", "Maybe"),
        form=_words(
            lambda row: f'Suppose {row["premise"]} Can we infer that "{row["hypothesis"]}"? Yes, No, or Maybe?\n',
            "Yes", "No", "Maybe",
        ),
        small_dev=100,
    ),
    "boolq": Task(
        texts=("passage", "question"),
        labels={True: 0, False: 1},
        answer_columns=("label", "answer"),
        names=("Yes", "No"),
        form=_words(_boolq, "Yes", "No"),
    ),
    "wsc": Task(
        texts=("text", "span1_text", "span2_text"),
        labels={False: 0, True: 1},
        names=("No", "Yes"),
        form=_words(_wsc, "No", "Yes"),
    ),
    "wic": Task(
        texts=("word", "sentence1", "sentence2"),
        labels={False: 0, True: 1},
        names=("No", "Yes"),
        form=_words(
            lambda row: f'Does the word "{row["word"]}" have the same meaning in these two sentences? Yes, No?\n'
            f"{row['sentence1']}\n{row['sentence2']}\n",
            "No", "Yes",
        ),
    ),
    "multirc": Task(
        texts=("paragraph", "question", "answer"),
        labels={0: 0, 1: 1},
        names=("No", "Yes"),
        form=_words(
            lambda row: f'{row["paragraph"]}\nQuestion: {row["question"]}\nI found this answer "{row["answer"]}". '
            "Is that correct? Yes or No?\n",
            "No", "Yes",
        ),
    ),
    "copa": Task(
        texts=("premise", "choice1", "choice2", "question"),
        labels={0: 0, 1: 1},
        names=("choice1", "choice2"),
        form=_copa,
        loss="lm",
        small_dev=100,
    ),
    "winogrande": Task(
        texts=("sentence", "option1", "option2"),
        labels={"1": 0, "2": 1},
        answer_columns=("answer",),
        names=("option1", "option2"),
        form=_winogrande,
        loss="lm",
    ),
}  # fmt: skip
"""The tasks by their name in a spec."""


def form_of(name: str, *, aligned: bool, masked: bool) -> Form:
    """The form that a run asks for. Raises ``ValueError`` where the task has none."""
    task = TASKS[name]
    if masked:
        if task.masked is None or not aligned:
            known = ", ".join(key for key, other in TASKS.items() if other.masked is not None)
            asked = name if aligned else f"{name} with aligned=false"
            raise ValueError(
                f"a masked language model needs a task with a masked form ({known}, aligned), but got {asked}; "
                "use a causal model"
            )
        return task.masked
    if aligned:
        return task.form
    assert task.unaligned is not None, "a spec allows aligned=false with sst2 only"
    return task.unaligned
