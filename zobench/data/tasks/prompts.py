"""The questions of the papers' tasks to a model, worded as in MeZO and ZO-Bench: label words and candidates; and
reading comprehension, SQuAD and DROP, answered freely, and ReCoRD, whose rows bring candidates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zobench.data.tasks.read import SetFiles
from zobench.data.tasks.task import ANSWER, MASK, Example, Form, Record, Task, answered, joined, text_list, words


def texts(row: Mapping[str, Any], *names: str) -> list[str]:
    """The row's columns ``names``, each a text. Raises ``ValueError`` for another one."""
    for name in names:
        if not isinstance(row.get(name), str):
            raise ValueError(
                f"a row must have text in the columns {', '.join(names)}, but got columns {', '.join(row)}"
            )
    return [row[name] for name in names]


def texts_in(row: Mapping[str, Any], name: str, inner: str = "") -> list[str]:
    """The texts in the list ``name`` of a row, or in the list ``inner`` of its column ``name``; at least one."""
    value = row.get(name)
    if not inner:
        return text_list(name, value)
    return text_list(f"{name}.{inner}", value.get(inner) if isinstance(value, Mapping) else value)


def _squad(row: Mapping[str, Any]) -> Example:
    title, context, question = texts(row, "title", "context", "question")
    prompt = f"Title: {title}\nContext: {context}\nQuestion: {question.strip()}\nAnswer:"
    return answered(prompt, texts_in(row, "answers", "text"), ANSWER.stop)


def _drop(row: Mapping[str, Any]) -> Example:
    passage, question = texts(row, "passage", "question")
    prompt = f"Passage: {passage}\nQuestion: {question.strip()}\nAnswer:"
    return answered(prompt, texts_in(row, "answers_spans", "spans"), ANSWER.stop)


def _record(row: Mapping[str, Any]) -> Example:
    """GPT-3's form: every entity of the passage in the place of the gap in the query."""
    passage, query = texts(row, "passage", "query")
    entities, answers = texts_in(row, "entities"), texts_in(row, "answers")
    if missing := [answer for answer in answers if answer not in entities]:
        raise ValueError(f"`answers` must be among the entities, but {missing[0]!r} is not")
    filled = [query.replace("@placeholder", entity).rstrip(" ") for entity in entities]
    prompt, candidates = joined(passage.replace("@highlight\n", "- ") + "\n-", filled)
    right = tuple(entities.index(answer) for answer in answers)
    return Example(prompt, candidates, right[0], right)


_ROWS = "give rows as the hub has them"
READING = (
    Task(
        name="squad",
        rows=SetFiles(folder="SQuAD", hub="rajpurkar/squad", config="plain_text"),
        usual_tokens=256, longest_tokens=1024, make=_squad, remedy=_ROWS, goal=ANSWER, loss="lm",
    ),
    Task(
        name="drop",
        rows=SetFiles(folder="DROP", hub="ucinlp/drop", config="default"),
        usual_tokens=384, longest_tokens=1600, make=_drop, remedy=_ROWS, goal=ANSWER, loss="lm",
    ),
    Task(
        name="record", rows=SetFiles(folder="ReCoRD", config="record"), usual_tokens=304, longest_tokens=760,
        make=_record, remedy=_ROWS, loss="lm",
    ),
)  # fmt: skip
"""Tokens are from the papers' mean and greatest numbers of words in a passage, at about 1.4 tokens to a word."""


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


PUBLISHED = (
    Task(
        name="sst2",
        rows=SetFiles(folder="SST-2", train=("train.tsv",), validation=("dev.tsv",), hub="nyu-mll/glue", config="sst2"),
        usual_tokens=32,
        longest_tokens=80,
        packed_share=0.37,
        texts=("sentence",),
        labels={0: 0, 1: 1, "0": 0, "1": 1},
        names=("terrible", "great"),
        form=words(lambda row: f"{row['sentence'].strip()} It was", "terrible", "great"),
        unaligned=words(lambda row: row["sentence"].strip(), "terrible", "great"),
        masked=words(lambda row: f"{row['sentence'].strip()} It was {MASK}.", "terrible", "great"),
    ),
    Task(
        name="rte",
        rows=SetFiles(folder="RTE", config="rte"),
        usual_tokens=136,
        longest_tokens=376,
        packed_share=0.52,
        texts=("premise", "hypothesis"),
        labels={"entailment": 0, "not_entailment": 1, 0: 0, 1: 1},
        names=("Yes", "No"),
        form=words(
            lambda row: f'{row["premise"]}\nDoes this mean that "{row["hypothesis"]}" is true? Yes or No?\n',
            "Yes", "No",
        ),
        unaligned=words(lambda row: f'{row["premise"]}\n"{row["hypothesis"]}"\n', "Yes", "No"),
        masked=words(_rte_masked, "Yes", "No"),
    ),
    Task(
        name="cb",
        rows=SetFiles(folder="CB", config="cb"),
        usual_tokens=144,
        longest_tokens=296,
        packed_share=0.58,
        texts=("premise", "hypothesis"),
        labels={"entailment": 0, "contradiction": 1, "neutral": 2, 0: 0, 1: 1, 2: 2},
        names=("Yes", "No", "Maybe"),
        form=words(
            lambda row: f'Suppose {row["premise"]} Can we infer that "{row["hypothesis"]}"? Yes, No, or Maybe?\n',
            "Yes", "No", "Maybe",
        ),
        small_dev=100,
    ),
    Task(
        name="boolq",
        rows=SetFiles(folder="BoolQ", train=("train.jsonl", "boolq_train.jsonl"), config="boolq"),
        usual_tokens=256,
        longest_tokens=1200,
        texts=("passage", "question"),
        labels={True: 0, False: 1},
        answer_columns=("label", "answer"),
        names=("Yes", "No"),
        form=words(_boolq, "Yes", "No"),
    ),
    Task(
        name="wsc",
        rows=SetFiles(folder="WSC", config="wsc.fixed"),
        usual_tokens=80,
        longest_tokens=152,
        texts=("text", "span1_text", "span2_text"),
        labels={False: 0, True: 1},
        names=("No", "Yes"),
        form=words(_wsc, "No", "Yes"),
    ),
    Task(
        name="wic",
        rows=SetFiles(folder="WiC", config="wic"),
        usual_tokens=56,
        longest_tokens=96,
        packed_share=0.68,
        texts=("word", "sentence1", "sentence2"),
        labels={False: 0, True: 1},
        names=("No", "Yes"),
        form=words(
            lambda row: f'Does the word "{row["word"]}" have the same meaning in these two sentences? Yes, No?\n'
            f"{row['sentence1']}\n{row['sentence2']}\n",
            "No", "Yes",
        ),
    ),
    Task(
        name="multirc",
        rows=SetFiles(folder="MultiRC", config="multirc"),
        usual_tokens=504,
        longest_tokens=936,
        texts=("paragraph", "question", "answer"),
        labels={0: 0, 1: 1},
        names=("No", "Yes"),
        form=words(
            lambda row: f'{row["paragraph"]}\nQuestion: {row["question"]}\nI found this answer "{row["answer"]}". '
            "Is that correct? Yes or No?\n",
            "No", "Yes",
        ),
    ),
    Task(
        name="copa",
        rows=SetFiles(folder="COPA", config="copa"),
        usual_tokens=32,
        longest_tokens=40,
        packed_share=0.6,
        texts=("premise", "choice1", "choice2", "question"),
        labels={0: 0, 1: 1},
        names=("choice1", "choice2"),
        form=_copa,
        loss="lm",
        small_dev=100,
    ),
    Task(
        name="winogrande",
        rows=SetFiles(
            folder="WinoGrande",
            train=tuple(f"train_{size}.jsonl" for size in ("xl", "l", "m", "s", "xs")),
            validation=("dev.jsonl",),
            hub="allenai/winogrande",
            config="winogrande_xl",
        ),
        usual_tokens=40,
        longest_tokens=56,
        packed_share=0.67,
        texts=("sentence", "option1", "option2"),
        labels={"1": 0, "2": 1},
        answer_columns=("answer",),
        names=("option1", "option2"),
        form=_winogrande,
        loss="lm",
    ),
    *READING,
)  # fmt: skip
"""The papers' tasks. Tokens are from the data's characters, four to a token. An example trains in one row: answers of
one token share their prompt's, and the loss "lm" reads the right candidate's."""


def form_of(task: Task, *, aligned: bool, masked: bool) -> Form:
    """The form that a run asks for. Raises ``ValueError`` where the task has none."""
    if masked and task.masked is None:
        maskable = ", ".join(other.name for other in PUBLISHED if other.masked is not None)
        raise ValueError(
            f"a masked language model needs a task with a masked form ({maskable}), but got {task.name}; "
            "use a causal model"
        )
    if aligned:
        return task.masked if masked and task.masked is not None else task.form
    assert task.unaligned is not None, "a spec allows aligned=false with an unaligned form only"
    return _with_mask(task.unaligned) if masked else task.unaligned


def _with_mask(form: Form) -> Form:
    """``form`` with the mask where the answer would stand: ZO-Bench, table 1, without alignment. Its program has these
    templates for causal models alone (``SST2TemplateEmpty``, ``RTETemplateEmpty``)."""

    def masked(row: Record) -> tuple[str, tuple[str, ...]]:
        prompt, candidates = form(row)
        gap = "" if prompt.endswith("\n") else " "
        return joined(f"{prompt}{gap}{MASK}", (candidate.strip() for candidate in candidates))

    return masked
