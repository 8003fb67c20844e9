"""Sheets as LaTeX tables in the style of booktabs, all metrics side by side as the papers print them, and numbers as
macros."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence

from zobench.report.cells import Grid, flat
from zobench.report.compose import INFERRED
from zobench.report.sheet import CellText, ColumnGroup, Sheet
from zobench.report.table import Table

_ESCAPED = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "{": r"\{",
        "}": r"\}",
        "&": r"\&",
        "%": r"\%",
        "$": r"\$",
        "#": r"\#",
        "_": r"\_",
        "^": r"\textasciicircum{}",
        "~": r"\textasciitilde{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "|": r"\textbar{}",
        '"': r"\textquotedbl{}",
        "[": "{[}",  # after a line's `\\` a bare bracket would be read as that command's option
        "]": "{]}",
        "*": "{*}",
        "—": "---",
        "…": r"\ldots{}",
        "↓": r"$\downarrow$",
        "↑": r"$\uparrow$",
        "·": r"$\cdot$",
    }
)
_LETTER = re.compile(r"[^\W\d_a-z]")

WIDEST = 8
"""Columns of numbers that stand side by side on a page."""
_MACROS = r"""% Every number of the tables. In the preamble: \input{numbers.tex}; in the text: \zobench{<key>}.
\providecommand{\zobench}[1]{\ifcsname zobench@#1\endcsname\csname zobench@#1\endcsname\else\textbf{??#1??}\fi}
\providecommand{\zobenchset}[2]{\expandafter\def\csname zobench@#1\endcsname{#2}}
"""


def write(sheets: Iterable[Sheet]) -> str:
    """One ``table*`` environment per sheet; the document needs ``\\usepackage{booktabs,graphicx}``, and
    ``xcolor`` where anything is predicted."""
    return "\n".join(line for sheet in sheets for line in _lines(sheet))


def escape(text: str) -> str:
    """``text`` so that LaTeX sets it as it is; what its T1 fonts lack becomes a question mark."""
    return text.translate(_ESCAPED).encode("latin-1", "replace").decode("latin-1")


def _lines(sheet: Sheet) -> Iterator[str]:
    grey = any(entry.tone == "predicted" for group in sheet.groups for row in group.body for entry in row)
    packages = "booktabs,graphicx,xcolor" if grey else "booktabs,graphicx"
    yield from (
        rf"% needs \usepackage{{{packages}}} and \usepackage[T1]{{fontenc}}",
        r"\begin{table*}",
        r"\centering",
        r"\small",
    )
    yield rf"\caption{{{escape(sheet.title)}: {escape(sheet.source)}.}}"
    yield rf"\label{{tab:{re.sub('[^A-Za-z0-9]+', '-', sheet.label)}}}"
    is_narrow = sum(len(group.columns) for group in sheet.groups) <= WIDEST  # then all stand in one row
    for groups in [list(sheet.groups)] if is_narrow else [[group] for group in sheet.groups]:
        yield from _tabular(sheet, groups)
    yield r"\begin{minipage}{\linewidth}\footnotesize\medskip"
    yield from (escape(remark) + r"\par" for remark in sheet.remarks)
    yield from (rf"\textsuperscript{{{i}}} {escape(note)}\par" for i, note in enumerate(sheet.notes, 1))
    yield from (r"\end{minipage}", r"\end{table*}", "")


def _tabular(sheet: Sheet, groups: Sequence[ColumnGroup]) -> Iterator[str]:
    width = sum(len(group.columns) for group in groups)
    yield r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%"
    yield from (rf"\begin{{tabular}}{{l{'r' * width}}}", r"\toprule")
    if any(group.header.text for group in groups):
        spans = (rf"\multicolumn{{{len(group.columns)}}}{{c}}{{{_entry(group.header)}}}" for group in groups)
        yield from (_row("", spans), _rules(groups))
    yield _row(escape(sheet.row_header), (_entry(column) for group in groups for column in group.columns))
    yield r"\midrule"
    for i, label in enumerate(sheet.rows):
        yield _row(_entry(label), (_entry(entry) for group in groups for entry in group.body[i]))
    yield from (r"\bottomrule", r"\end{tabular}}", "")


def _rules(groups: Sequence[ColumnGroup]) -> str:
    """A short rule below the heading of each group."""
    firsts = itertools.accumulate((len(group.columns) for group in groups), initial=2)
    return " ".join(rf"\cmidrule(lr){{{first}-{after - 1}}}" for first, after in itertools.pairwise(firsts))


def _row(first: str, entries: Iterable[str]) -> str:
    return " & ".join((first, *entries)) + r" \\"


def _entry(entry: CellText) -> str:
    text = escape(f"{entry.text} {entry.detail}".rstrip())
    text = rf"\textcolor{{gray}}{{{text}}}" if entry.tone == "predicted" else text
    return text + (rf"\textsuperscript{{{','.join(map(str, entry.marks))}}}" if entry.marks else "")


def macros(filled: Iterable[tuple[Table, Iterable[tuple[str | None, Grid]]]]) -> str:
    """Definitions of all measured and reported values, each as its table prints it, one LaTeX macro per number:
    ``\\zobench{zo2-table1-opt-13b-zo2-fp32-throughput-paper}``; a letter that is not of a to z by its code, ``u3b2``.
    Raises ``ValueError`` for two numbers of one key."""
    numbers: dict[str, str] = {}
    for table, grids in filled:
        for machine, grid in grids:
            for key, text in _numbers(table, machine, grid):
                if numbers.setdefault(key, text) != text:
                    raise ValueError(f"two numbers of {table.name} have the key {key!r}; rename a row or a column")
    inferred = [f"% *: {INFERRED}"] if any(text.endswith("*") for text in numbers.values()) else []
    lines = [*inferred, *(rf"\zobenchset{{{key}}}{{{escape(text)}}}" for key, text in numbers.items())]
    return _MACROS + "".join(f"{line}\n" for line in lines)


def _numbers(table: Table, machine: str | None, grid: Grid) -> Iterator[tuple[str, str]]:
    for cell in flat(grid):
        cell_key = f"{table.name}-{cell.row.header}-{cell.column.header}-{cell.metric.name}"
        for source, value in ((machine, cell.value), ("paper", cell.paper_value), (f"{machine}-ratio", cell.ratio)):
            if value is not None:
                ratio = source is not None and source.endswith("-ratio")
                text = f"{value:.3g}" if ratio else cell.metric.text(value)
                text += "*" if source == "paper" and cell.is_inferred else ""
                key = _LETTER.sub(lambda match: f"u{ord(match[0]):x}", f"{cell_key}-{source}".lower())
                key = re.sub(r"[^a-z0-9.]+", "-", key).strip("-")
                yield key, text
