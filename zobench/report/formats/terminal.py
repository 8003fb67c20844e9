"""Sheets for a terminal: one narrow table per metric, cut into several where it is too wide, with notes below."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from dataclasses import replace

from rich import box
from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from zobench.report import sheet as model

_SUPERSCRIPT = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
NOTES = 4
"""The most notes below a table; Markdown, LaTeX and the page have all."""
_GAP, _EDGES = 2, 4
"""Characters between two columns, and those of the table's edges and of the first gap."""
_STYLE = {"predicted": "bright_black", "failure": "yellow", "blank": "dim", "label": "bold"}


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
        console.print(_sheet(_shortened(sheet), width))
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines()).strip("\n") + "\n"


def _shortened(sheet: model.Sheet) -> model.Sheet:
    """``sheet`` with at most :data:`NOTES` notes, warnings before others, and with no marks but theirs."""
    if len(sheet.notes) <= NOTES:
        return sheet
    ranked = sorted(range(len(sheet.notes)), key=lambda i: (not sheet.notes[i].startswith(model.WARNING), i))
    kept = sorted(ranked[:NOTES])
    numbers = {i + 1: number for number, i in enumerate(kept, 1)}

    def marked(entry: model.CellText) -> model.CellText:
        return replace(entry, marks=tuple(numbers[mark] for mark in entry.marks if mark in numbers))

    groups = tuple(
        model.ColumnGroup(header=marked(group.header), columns=tuple(map(marked, group.columns)),
                    body=tuple(tuple(map(marked, row)) for row in group.body))
        for group in sheet.groups
    )  # fmt: skip
    left = len(sheet.notes) - NOTES
    remark = f"{left} more note{'s' * (left > 1)}: --format markdown has all."
    return replace(
        sheet, rows=tuple(map(marked, sheet.rows)), groups=groups, notes=tuple(sheet.notes[i] for i in kept),
        remarks=(*sheet.remarks, remark),
    )  # fmt: skip


def _sheet(sheet: model.Sheet, width: int) -> Group:
    shown: list[RenderableType] = [Text(sheet.title, style="bold"), Text(sheet.source, style="cyan"), Text()]
    for group in _groups(sheet):
        heading = [_marked(group.header, "bold")] if group.header.text else []
        shown += [*heading, *_tables(sheet, group, width)]
    shown += [Text(remark, style="dim") for remark in sheet.remarks]
    notes = enumerate(sheet.notes, 1)
    shown += [Text.assemble((_superscript(i), "cyan"), " ", (note, "dim")) for i, note in notes]
    return Group(*shown, Text("\n"))


def _groups(sheet: model.Sheet) -> Sequence[model.ColumnGroup]:
    """The groups; where each has one and the same column, they are the columns of one group, under its heading."""
    if len({tuple(column.text for column in group.columns) for group in sheet.groups}) > 1:
        return sheet.groups
    (shared, *more), *_ = (group.columns for group in sheet.groups)
    if more or len(sheet.groups) == 1:
        return sheet.groups
    columns = tuple(replace(group.header, marks=group.header.marks + group.columns[0].marks) for group in sheet.groups)
    bodies = zip(*(group.body for group in sheet.groups), strict=True)
    body = tuple(tuple(entry for (entry,) in row) for row in bodies)
    return [model.ColumnGroup(header=replace(shared, marks=()), columns=columns, body=body)]


def _tables(sheet: model.Sheet, group: model.ColumnGroup, width: int) -> list[Padding]:
    """The group's columns in as few tables as the width allows: a column that does not fit must not be lost.

    Headers are broken at their spaces only where they would not fit whole.
    """
    columns = [_aligned([row[k] for row in group.body]) for k in range(len(group.columns))]
    words = [word for label in sheet.rows for word in str(_marked(label)).split()]
    first = min(20, max(map(cell_len, words), default=0))
    for whole in (True, False):
        widths = [_width(header, cells, whole) for header, cells in zip(group.columns, columns, strict=True)]
        pieces = _pieces(widths, width - first - _EDGES)
        if len(pieces) == 1:
            break
    return [_table(sheet, [(group.columns[k], columns[k], widths[k]) for k in piece], first) for piece in pieces]


def _width(header: model.CellText, cells: Sequence[Text], whole: bool) -> int:
    """Characters that a column needs for its values, and for its header, whole or word by word."""
    heading = str(_marked(header))
    return max(map(cell_len, [*map(str, cells), *([heading] if whole else heading.split())]), default=0)


def _pieces(widths: Sequence[int], room: int) -> list[list[int]]:
    """Indices of columns, in order, cut so that each piece fits ``room``, or is one column."""
    pieces: list[list[int]] = [[]]
    used = 0
    for k, width in enumerate(widths):
        if pieces[-1] and used + width + _GAP > room:
            pieces.append([])
            used = 0
        pieces[-1].append(k)
        used += width + _GAP
    return pieces


def _table(sheet: model.Sheet, columns: Sequence[tuple[model.CellText, list[Text], int]], first: int) -> Padding:
    table = Table(box=box.HORIZONTALS, border_style="dim", header_style="", padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column(Text(sheet.row_header), overflow="fold", min_width=first)
    for header, _, width in columns:
        table.add_column(_marked(header), overflow="fold", width=width)
    for label, *cells in zip(sheet.rows, *(cells for _, cells, _ in columns), strict=True):
        table.add_row(_marked(label, ""), *cells)
    return Padding(table, (0, 0, 1, 0))


def _aligned(entries: Sequence[model.CellText]) -> list[Text]:
    """The cells of one column, padded so that values end below values and ratios stand below ratios."""
    numbers = [len(entry.text) for entry in entries if entry.tone in ("value", "predicted", "reported")]
    return [Text(" " * (max(numbers, default=0) - len(entry.text))).append_text(_marked(entry)) for entry in entries]


def _marked(entry: model.CellText, style: str | None = None) -> Text:
    """Built from pieces of plain text: nothing in it is read as markup."""
    text = Text(entry.text, style=_STYLE.get(entry.tone, "") if style is None else style)
    if entry.detail:
        text.append(f" {entry.detail}", style="dim")
    return text.append(" ".join(map(_superscript, entry.marks)), style="cyan")


def _superscript(number: int) -> str:
    return str(number).translate(_SUPERSCRIPT)
