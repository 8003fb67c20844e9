"""Reading comprehension as MeZO asks it: SQuAD and DROP, answered freely, and ReCoRD, whose rows bring candidates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from zobench.data.tasks.read import SetFiles
from zobench.data.tasks.task import ANSWER, Example, Task, answered, joined, text_list


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


def squad_rows(record: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The rows of an article of SQuAD's own file, as the hub has them; a row that is one already."""
    if "paragraphs" not in record:
        yield record
        return
    for paragraph in _nested(record, "paragraphs"):
        for asked in _nested(paragraph, "qas"):
            answers = {"text": [answer.get("text") for answer in _nested(asked, "answers")]}
            asked_in = {"title": record.get("title"), "context": paragraph.get("context")}
            yield {**asked_in, "question": asked.get("question"), "answers": answers}


def drop_rows(record: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The rows of a passage of DROP's own file, likewise; of a question that was validated all answers count. One
    without an answer is left out, as on the hub."""
    if "qa_pairs" not in record:
        yield record
        return
    for asked in _nested(record, "qa_pairs"):
        answers = asked.get("validated_answers") or [asked.get("answer", {})]
        if spans := [span for answer in answers for span in _spans(answer)]:
            yield {"passage": record.get("passage"), "question": asked["question"], "answers_spans": {"spans": spans}}


def _spans(answer: Mapping[str, Any]) -> list[str]:
    """A number, a date or spans of the passage: one of them is there."""
    if answer.get("number"):
        return [str(answer["number"])]
    date = [str(answer.get("date", {}).get(part) or "") for part in ("day", "month", "year")]
    return [" ".join(filter(None, date))] if any(date) else list(answer.get("spans", ()))


def record_rows(record: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The rows of a passage of ReCoRD's own file, likewise: entities and answers once each, sorted."""
    if "qas" not in record:
        yield record
        return
    (text,) = texts(record.get("passage", {}), "text")
    places = [(entity.get("start", 0), entity.get("end", 0)) for entity in _nested(record["passage"], "entities")]
    entities = sorted({text[first : last + 1] for first, last in places})
    for asked in _nested(record, "qas"):
        answers = sorted({answer.get("text", "") for answer in _nested(asked, "answers")})
        yield {"passage": text, "query": asked.get("query"), "entities": entities, "answers": answers}


def _nested(record: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    """The list of records in a column."""
    value = record.get(name)
    if not isinstance(value, list) or not all(isinstance(item, Mapping) for item in value):
        raise ValueError(f"`{name}` must be a list of records, but got {value!r}")
    return value


READING = (
    Task(
        name="squad",
        rows=SetFiles(
            folder="SQuAD", train=("train.jsonl", "train-v1.1.json"), validation=("val.jsonl", "dev-v1.1.json"),
            hub="rajpurkar/squad", config="plain_text",
        ),
        usual_tokens=256, longest_tokens=1024, make=_squad, flat=squad_rows, goal=ANSWER, loss="lm",
    ),
    Task(
        name="drop",
        rows=SetFiles(
            folder="DROP", train=("train.jsonl", "drop_dataset_train.json"),
            validation=("val.jsonl", "drop_dataset_dev.json"), hub="ucinlp/drop", config="default",
        ),
        usual_tokens=384, longest_tokens=1600, make=_drop, flat=drop_rows, goal=ANSWER, loss="lm",
    ),
    Task(
        name="record", rows=SetFiles(folder="ReCoRD", config="record"), usual_tokens=304, longest_tokens=760,
        make=_record, flat=record_rows, loss="lm",
    ),
)  # fmt: skip
"""Tokens are from the papers' mean and greatest numbers of words in a passage, at about 1.4 tokens to a word."""
