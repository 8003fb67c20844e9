"""A first task file for rows of the user's own: columns are guessed and the prompt is plain."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from zobench.data.tasks.file import load
from zobench.data.tasks.rows import FORMATS, read_file

LABELS = ("label", "labels", "class", "target", "sentiment", "category", "stars", "rating", "y")
"""Columns of these names are taken for the labels, the first of them that is there."""
_NAME = r"[^{}\[\]!:]+"
"""A column that a template can name."""
MOST = 20
"""Different values that a column of labels has at most."""


def write(data: Path) -> tuple[Path, str]:
    """Writes the task file beside the rows in ``data``; returns where, and a line that says what was guessed.

    Raises ``ValueError``, one line, for what no rows are read from, rows without labels, and a task file that is there.
    """
    if data.suffix.lower() not in FORMATS:
        raise ValueError(
            f"`FILE` must be rows in a file {', '.join(FORMATS)}, but got {str(data)!r}; name one, or see docs/data.md"
        )
    if not data.is_file():
        raise ValueError(f"`FILE` must be there, but {data} is not; name a file of rows")
    rows, path = read_file(data), data.with_suffix(".toml")
    columns = {name: [row.get(name) for _, row in rows.rows] for name in rows.columns if re.fullmatch(_NAME, name)}
    share = 0.1 if len(rows.rows) >= 10 else 1
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", data.stem).lstrip("._-") or "task"
    data_section = f"[data]\npath = {_quoted(data.name)}\nsplit = {{ seed = 0, dev = {share}, test = {share} }}\n"
    summary, sections = "plain text", "[text]\n"
    if FORMATS[data.suffix.lower()] != "text":
        summary, sections = _choice(data, columns)
    try:
        content = f"name = {_quoted(name)}\n\n{data_section}\n{sections}".encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{data} must be Unicode text, but its labels or columns are not ({error}); mend it") from None
    try:
        with path.open("xb") as file:
            file.write(content)
    except FileExistsError:
        raise ValueError(f"the task file must be new, but there is a {path}; use --task {path}, or remove it") from None
    try:
        load(path)
    except ValueError as error:
        path.unlink()
        raise ValueError(f"{data}: no task file was made of it ({error}); write it by hand (docs/data.md)") from None
    return path, f"{len(rows.rows)} rows; {' '.join(summary.split())}"


def _choice(data: Path, columns: Mapping[str, Sequence[Any]]) -> tuple[str, str]:
    """Returns a line on what was guessed, and the TOML sections of a choice between the labels, each of which is its
    own word."""
    distinct = {name: _labels(values) for name, values in columns.items()}
    categories = {name: labels for name, labels in distinct.items() if 2 <= len(labels) <= MOST}
    named = [name for word in LABELS for name in categories if name.lower() == word]
    repeated = sorted(
        (name for name in categories if 2 * len(categories[name]) <= len(columns[name])),
        key=lambda name: len(categories[name]),
    )
    texts = {name: values for name, values in columns.items() if all(isinstance(value, str) for value in values)}
    label = next(iter([*named, *repeated]), None)
    texts.pop(label or "", None)
    if label is None or not texts:
        gaps = {  # the number from 1 of the first row that has no value; 0 where all have one
            name: next((number for number, value in enumerate(values, 1) if value in ("", None)), 0)
            for name, values in columns.items()
        }
        parts = ", ".join(f"{name} (empty in row {gap})" if gap else name for name, gap in gaps.items())
        remedy = "write its task file by hand (docs/data.md)"
        if len(columns) == 1 and re.search(r"[;\t|]", parts):
            remedy = "separate its columns by commas"
        elif any(gaps.values()):
            remedy = "fill in the empty values, or leave such rows out"
        raise ValueError(f"{data} must have a column of text and one of 2 to {MOST} labels, but has {parts}; {remedy}")
    if label not in named and label in categories[label]:
        raise ValueError(
            f"{data} must begin with a line of column names, but its first line is a row, {', '.join(columns)}; add one"
        )
    prompts = [
        name for name, values in texts.items() if 2 * sum(" " in value.strip() for value in values) > len(values)
    ]
    prompts = prompts or [max(texts, key=lambda name: sum(map(len, texts[name])))]
    lines = [f"{{{name}}}" if len(prompts) == 1 else f"{name.capitalize()}: {{{name}}}" for name in prompts]
    words = ", ".join(f"{_quoted(word)} = {_quoted(word)}" for word in categories[label])
    return f"labels in {label} ({', '.join(categories[label])}), text in {' and '.join(prompts)}", (
        f"[prompt]\ntemplate = {_quoted(chr(10).join([*lines, f'{label.capitalize()}:']))}\n\n"
        "# A word for each label: the model picks the likelier one after the prompt. Use words that could follow it,\n"
        "# such as great.\n"
        f"[labels]\ncolumn = {_quoted(label)}\nwords = {{ {words} }}\n"
    )


def _labels(values: Sequence[Any]) -> list[str]:
    """The different values of a column, as a task file writes labels; none where a value is of another type."""
    if not all(isinstance(value, str | int) and value != "" for value in values):
        return []
    return sorted({value if isinstance(value, str) else json.dumps(value) for value in values}, key=_order)


def _order(label: str) -> tuple[float, str]:
    return (float(label) if re.fullmatch(r"-?\d+", label) else 0.0), label


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")  # which TOML forbids as it is
