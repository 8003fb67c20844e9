"""Sheets as LaTeX tables in the style of booktabs, all metrics side by side as the papers print them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from zobench.report.sheet import CellText, Group, Sheet

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

WIDEST = 8
"""Columns of numbers that stand side by side on a page."""


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


def _tabular(sheet: Sheet, groups: Sequence[Group]) -> Iterator[str]:
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


def _rules(groups: Sequence[Group]) -> str:
    """A short rule below the heading of each group."""
    rules, first = [], 2
    for group in groups:
        last = first + len(group.columns) - 1
        rules.append(rf"\cmidrule(lr){{{first}-{last}}}")
        first = last + 1
    return " ".join(rules)


def _row(first: str, entries: Iterable[str]) -> str:
    return " & ".join((first, *entries)) + r" \\"


def _entry(entry: CellText) -> str:
    text = escape(f"{entry.text} {entry.detail}".rstrip())
    text = rf"\textcolor{{gray}}{{{text}}}" if entry.tone == "predicted" else text
    return text + (rf"\textsuperscript{{{','.join(map(str, entry.marks))}}}" if entry.marks else "")
