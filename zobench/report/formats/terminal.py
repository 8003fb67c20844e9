"""Sheets for a terminal: one narrow table per metric, cut into several where it is too wide, with notes below."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence

from rich import box
from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from zobench.report import sheet as model

_SUPERSCRIPT = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
_STYLE = {"value": "", "reported": "", "failure": "yellow", "blank": "dim", "label": "bold"}


def write(sheets: Iterable[model.Sheet], width: int, color: bool) -> str:
    """Text of all ``sheets``, at most ``width`` characters wide; ANSI colours only if ``color``."""
    stream = io.StringIO()
    console = Console(
        file=stream,
        width=width,
        force_terminal=color,
        no_color=not color,
        color_system="standard" if color else None,
        legacy_windows=False,
        highlight=False,
    )
    for sheet in sheets:
        console.print(_sheet(sheet, width))
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines()).strip("\n") + "\n"


def _sheet(sheet: model.Sheet, width: int) -> Group:
    parts: list[RenderableType] = [Text(sheet.title, style="bold"), Text(sheet.source, style="cyan"), Text()]
    for group in sheet.groups:
        heading = [_marked(group.header, "bold")] if group.header.text else []
        parts += [*heading, *_tables(sheet, group, width)]
    parts += [Text(remark, style="dim") for remark in sheet.remarks]
    parts += [_note(i, note) for i, note in enumerate(sheet.notes, 1)]
    return Group(*parts, Text("\n"))


def _tables(sheet: model.Sheet, group: model.Group, width: int) -> list[Padding]:
    """The group's columns in as few tables as the width allows: a column that does not fit must not be lost."""
    columns = [_aligned([row[k] for row in group.body]) for k in range(len(group.columns))]
    words = [word for label in sheet.rows for word in label.text.split()]
    first = min(20, max(map(cell_len, words), default=0))
    pieces: list[list[int]] = [[]]
    used = 0
    for k, (header, cells) in enumerate(zip(group.columns, columns, strict=True)):
        own = max(map(cell_len, [*map(str, cells), *header.text.split()]), default=0) + 2
        if pieces[-1] and first + 4 + used + own > width:
            pieces.append([])
            used = 0
        pieces[-1].append(k)
        used += own
    return [_table(sheet, [(group.columns[k], columns[k]) for k in piece], first) for piece in pieces]


def _table(sheet: model.Sheet, columns: Sequence[tuple[model.Entry, list[Text]]], first: int) -> Padding:
    table = Table(box=box.HORIZONTALS, border_style="dim", header_style="", padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column(Text(sheet.row_header), overflow="fold", min_width=first)
    for header, cells in columns:
        table.add_column(_marked(header), overflow="fold", min_width=max(map(cell_len, map(str, cells)), default=0))
    for label, *cells in zip(sheet.rows, *(cells for _, cells in columns), strict=True):
        table.add_row(_marked(label, ""), *cells)
    return Padding(table, (0, 0, 1, 0))


def _aligned(entries: Sequence[model.Entry]) -> list[Text]:
    """The cells of one column, padded so that values end below values and ratios stand below ratios."""
    numbers = [len(entry.text) for entry in entries if entry.tone in ("value", "reported")]
    return [Text(" " * (max(numbers, default=0) - len(entry.text))).append_text(_marked(entry)) for entry in entries]


def _marked(entry: model.Entry, style: str | None = None) -> Text:
    """Built from pieces of plain text: nothing in it is read as markup."""
    text = Text(entry.text, style=_STYLE[entry.tone] if style is None else style)
    if entry.detail:
        text.append(f" {entry.detail}", style="dim")
    return text.append(" ".join(map(_superscript, entry.marks)), style="cyan")


def _note(number: int, note: str) -> Text:
    return Text.assemble((_superscript(number), "cyan"), " ", (note, "dim"))


def _superscript(number: int) -> str:
    return str(number).translate(_SUPERSCRIPT)
