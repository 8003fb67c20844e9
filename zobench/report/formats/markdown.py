"""Sheets as Markdown: one table per metric, with notes below."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from zobench.report.sheet import CellText, Sheet


def write(sheets: Iterable[Sheet]) -> str:
    """GitHub-flavoured Markdown of all ``sheets``."""
    return "\n".join(line for sheet in sheets for line in _lines(sheet))


def escape(text: str) -> str:
    """``text`` so that Markdown shows it as it is, also inside a table."""
    return re.sub(r"([\\`*_\[\]|$~#])", r"\\\1", text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;"))


def _lines(sheet: Sheet) -> Iterator[str]:
    yield from (f"### {escape(sheet.title)}", "", f"**{escape(sheet.source)}**", "")
    for group in sheet.groups:
        if group.header.text:
            yield from (f"**{_entry(group.header)}**", "")
        yield _row(escape(sheet.row_header), map(_entry, group.columns))
        yield _row("---", ("---:" for _ in group.columns))
        for label, entries in zip(sheet.rows, group.body, strict=True):
            yield _row(_entry(label), map(_entry, entries))
        yield ""
    for remark in sheet.remarks:  # a leading dash would open another list
        yield "- " + re.sub(r"^([-+])", r"\\\1", escape(remark))
    yield from (f"- <sup>{i}</sup> {escape(note)}" for i, note in enumerate(sheet.notes, 1))
    yield ""


def _row(first: str, entries: Iterable[str]) -> str:
    return f"| {' | '.join((first, *entries))} |"


def _entry(entry: CellText) -> str:
    text = escape(f"{entry.text} {entry.detail}".rstrip())
    text = f"*{text}*" if entry.tone == "predicted" else text
    return text + (f"<sup>{','.join(map(str, entry.marks))}</sup>" if entry.marks else "")
