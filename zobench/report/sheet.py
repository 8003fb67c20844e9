"""Sheet: a finished table as plain text with numbered notes, ready for any output format."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

WARNING = "Warning: "
NO_VALUE = "·"
"""The text of a place that has nothing to show."""
_NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[-+]?\d+)?")
_HOLE = "\x00"
LEAST_DIGITS = 3
"""The digits of a number that is printed, at least."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CellText:
    """Text of one place of a sheet, e.g. ``5098`` with detail ``(x0.57)``; ``marks`` are numbers of notes.

    ``tone`` is "value" (it holds a measured number), "predicted", "reported" (only the paper's), "failure", "blank" or
    "label".
    ``notes`` stay with it; ``shared`` ones move up to the heading if all values of a column have them.
    """

    text: str
    detail: str = ""
    tone: str = "value"
    notes: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()
    marks: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class ColumnGroup:
    """Columns under one common heading: ``body[row][column]``."""

    header: CellText
    columns: tuple[CellText, ...]
    body: tuple[tuple[CellText, ...], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Sheet:
    """``remarks`` hold for the whole sheet, ``notes[i]`` explains mark ``i + 1``."""

    label: str
    title: str
    source: str
    row_header: str
    rows: tuple[CellText, ...]
    groups: tuple[ColumnGroup, ...]
    remarks: tuple[str, ...]
    notes: tuple[str, ...] = ()


def plain(text: str) -> str:
    """``text`` on one line without control characters, so that no name or reason can move the cursor or break a row;
    nor are those left that no font draws and no XML file may hold."""
    return " ".join("".join(character if character.isprintable() else " " for character in text).split())


def rounded(value: float, form: str) -> str:
    """``value`` in the format ``form``, with more digits where that leaves fewer than three: 1955, 3.42, 0.0731.

    In the format ``g``, a count's, it is written as it is: 2."""
    text = format(value, form)
    digits = sum(character.isdigit() for character in text.lstrip("-0."))
    if value == 0 or form == "g" or digits >= LEAST_DIGITS:
        return text
    return f"{value:#.{LEAST_DIGITS}g}".rstrip(".")


def number(sheet: Sheet) -> Sheet:
    """``sheet`` with every note said once, in the order in which a reader meets them, without empty remarks, and all
    text made :func:`plain`.

    A shared note stands at the heading of the group or of the column if all of their values have it. Warnings that
    differ only in their numbers are one, with the range of each number.
    """
    sheet, notes = _merged(sheet), list[str]()
    return replace(
        sheet,
        title=plain(sheet.title),
        source=plain(sheet.source),
        rows=tuple(_marked(label, (), notes) for label in sheet.rows),
        groups=tuple(_numbered(group, notes) for group in sheet.groups),
        remarks=tuple(map(plain, filter(None, sheet.remarks))),
        notes=tuple(notes),  # last: the lines above fill it
    )


def of_lines(
    row_header: str, columns: Iterable[str], lines: Iterable[tuple[str, Iterable[CellText | str]]], *,
    label: str, title: str, source: str, remarks: Iterable[str], heading: str = "",
) -> Sheet:  # fmt: skip
    """The numbered sheet of ``lines``, each a label below ``row_header`` and what stands below ``columns``, which stand
    below ``heading``. Each place is a :class:`CellText`, or a text, :data:`NO_VALUE` where it is empty."""
    rows, body = [], []
    for text, entries in lines:
        rows.append(CellText(text=text, tone="label"))
        body.append(
            tuple(e if isinstance(e, CellText) else CellText(text=e or NO_VALUE, tone="reported") for e in entries)
        )
    header, *across = (CellText(text=text, tone="label") for text in (heading, *columns))
    group = ColumnGroup(header=header, columns=tuple(across), body=tuple(body))
    return number(
        Sheet(label=label, title=title, source=source, row_header=row_header, rows=tuple(rows), groups=(group,),
              remarks=tuple(remarks))
    )  # fmt: skip


def without_blanks(sheet: Sheet) -> Sheet:
    """``sheet`` without the rows and columns in which nothing stands, which a remark names, unless that is all. A
    column that another group shows is named with its group."""
    rows = [i for i in range(len(sheet.rows)) if any(_is_filled(e) for group in sheet.groups for e in group.body[i])]
    if not rows:
        return sheet
    left = [label.text for i, label in enumerate(sheet.rows) if i not in rows]
    groups = []
    filled = [[k for k in range(len(group.columns)) if any(_is_filled(row[k]) for row in group.body)]
              for group in sheet.groups]  # fmt: skip
    shown = {group.columns[k].text for group, columns in zip(sheet.groups, filled, strict=True) for k in columns}
    for group, columns in zip(sheet.groups, filled, strict=True):
        absent = [column.text for k, column in enumerate(group.columns) if k not in columns]
        left += [f"{text} ({group.header.text})" if text in shown else text for text in absent]
        body = tuple(tuple(group.body[i][k] for k in columns) for i in rows)
        groups += [replace(group, columns=tuple(group.columns[k] for k in columns), body=body)] if columns else []
    remarks = (f"Without any value, and not shown: {', '.join(dict.fromkeys(left))}.",) if left else ()
    return replace(
        sheet, rows=tuple(sheet.rows[i] for i in rows), groups=tuple(groups), remarks=(*sheet.remarks, *remarks)
    )  # fmt: skip


def _is_filled(entry: CellText) -> bool:
    return entry.tone != "blank" or bool(entry.marks)


def _merged(sheet: Sheet) -> Sheet:
    """``sheet`` with one text for all warnings of cells that differ only in their numbers."""
    entries = (entry for group in sheet.groups for row in group.body for entry in row)
    texts = (text for entry in entries for text in (*entry.notes, *entry.shared))
    merged_texts = ranges(text for text in texts if text.startswith(WARNING))

    def merged(entry: CellText) -> CellText:
        kept, shared = (tuple(merged_texts.get(text, text) for text in texts) for texts in (entry.notes, entry.shared))
        return replace(entry, notes=kept, shared=shared)

    groups = [
        replace(group, body=tuple(tuple(map(merged, row)) for row in group.body)) if merged_texts else group
        for group in sheet.groups
    ]
    return replace(sheet, groups=tuple(groups))


def ranges(texts: Iterable[str]) -> Mapping[str, str]:
    """Each of ``texts`` that differs from another only in its numbers -> the text of all of them, where a number that
    is not the same in all is ``least to most``."""
    alike: dict[str, dict[str, list[str]]] = {}
    for text in texts:
        alike.setdefault(_NUMBER.sub(_HOLE, text), {})[text] = _NUMBER.findall(text)
    ranged = {}
    for pattern, members in alike.items():
        if len(members) > 1:
            spans = iter([span(values) for values in zip(*members.values(), strict=True)])
            text = re.sub(_HOLE, lambda _, spans=spans: next(spans), pattern)  # type: ignore[misc]
            ranged.update(dict.fromkeys(members, text))
    return ranged


def span(numbers: Sequence[str]) -> str:
    """``0.25 to 0.6``, the least and the most of ``numbers``; the number itself if all are equal, "" without any."""
    least, most = min(numbers, key=float, default=""), max(numbers, key=float, default="")
    return f"{least} to {most}" if numbers and float(least) != float(most) else least


def _numbered(group: ColumnGroup, notes: list[str]) -> ColumnGroup:
    top, below = _lift(group)

    def below_heading(entry: CellText, k: int) -> CellText:
        return _marked(entry, [text for text in entry.shared if text not in (*top, *below[k])], notes)

    return ColumnGroup(
        header=_marked(group.header, top, notes),
        columns=tuple(_marked(column, below[k], notes) for k, column in enumerate(group.columns)),
        body=tuple(tuple(below_heading(entry, k) for k, entry in enumerate(row)) for row in group.body),
    )


def _marked(entry: CellText, shared: Sequence[str], notes: list[str]) -> CellText:
    """``entry`` with the numbers of ``shared`` and its own notes; new ones are added to ``notes``."""
    texts = [plain(text) for text in (*shared, *entry.notes)]
    notes.extend(text for text in dict.fromkeys(texts) if text not in notes)
    marks = tuple(sorted({notes.index(text) + 1 for text in texts}))
    return CellText(text=plain(entry.text), detail=entry.detail, tone=entry.tone, marks=marks)


def _lift(group: ColumnGroup) -> tuple[list[str], list[list[str]]]:
    """Notes that hold for every value of the group (two columns or more), and for every value of each column."""
    columns = [_common([row[k] for row in group.body]) for k in range(len(group.columns))]
    valued = [common for common in columns if common is not None]
    top = [text for text in valued[0] if all(text in common for common in valued)] if len(valued) > 1 else []
    return top, [[text for text in common or () if text not in top] for common in columns]


def _common(entries: Sequence[CellText]) -> list[str] | None:
    """Shared notes that all values among ``entries`` carry; None if there is no value."""
    by_tone = [[entry for entry in entries if entry.tone == tone] for tone in ("value", "predicted")]
    values = by_tone[0] or by_tone[1]
    if not values:
        return None
    return [text for text in values[0].shared if all(text in entry.shared for entry in values)]
