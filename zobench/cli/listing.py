"""The listings that `zobench results` and `zobench compare` print: aligned, quick for thousands of rows."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console
from rich.segment import Segment, Segments
from rich.style import Style
from rich.text import Text

from zobench.cli.console import MIB, STYLES
from zobench.machine.texts import wrapped
from zobench.report.sheet import rounded
from zobench.result import Result
from zobench.runspec import DECLARED, RunSpec, labels, named
from zobench.store import machine_of, metrics, printable
from zobench.store.compare import Comparison, Pair, remarks
from zobench.store.judging import Judgement, Verdict
from zobench.store.query import distinct_names, shortened

_NARROW = 32  # columns that the last column needs to stand beside the others; else it goes below them
_REASON = 100
_BUSY, _WARNING = "busy", "warned"
_WARNINGS = {
    _BUSY: "other processes used the machine meanwhile", _WARNING: "with a warning, which its tables and its file tell"
}  # fmt: skip
_VERDICTS = {Verdict.SAME: "green", Verdict.FASTER: "green", Verdict.SLOWER: "red", Verdict.AMBIGUOUS: "yellow"}


@dataclass(frozen=True, slots=True)
class ListColumn:
    """A heading, its cells, and their styles (one for all, or one each). ``kept``: others give way before it."""

    name: str
    cells: Sequence[str]
    right: bool = False
    styles: Sequence[str] = ()
    kept: bool = False

    @property
    def width(self) -> int:
        """The width in characters of a terminal."""
        return max(map(cell_len, [self.name, *self.cells]))

    def padded(self, text: str, width: int) -> str:
        """``text`` at its side of ``width`` characters."""
        space = " " * (width - cell_len(text))
        return space + text if self.right else text + space


def show(console: Console, columns: Sequence[ListColumn]) -> None:
    """Columns side by side; the last one is text that wraps, below the others where the terminal is narrow. Columns
    from the left that do not fit go into it, those that are kept last. rich's own table takes 0.5 ms per row."""
    *fixed, last = columns
    moved = []
    while len(fixed) > 1 and sum(column.width + 1 for column in fixed) > console.width:
        moved.append(fixed.pop(next((n for n, column in enumerate(fixed) if not column.kept), 0)))
    for column in reversed(moved):
        last = _joined(column, last)
    widths = [column.width for column in fixed]
    wanted = min(_NARROW, last.width)
    gap = " " * (2 if sum(widths) + 2 * len(widths) + wanted <= console.width else 1)
    indent = sum(widths) + len(gap) * len(widths)
    is_inline = console.width - indent >= wanted
    indent = indent if is_inline else 4
    room = max(_NARROW, console.width - indent)
    styles = {name: Style.parse(name) for name in {"dim", *(name for column in fixed for name in column.styles)}}
    heading = [column.padded(column.name, width) + gap for column, width in zip(fixed, widths, strict=True)]
    segments = [Segment(("".join(heading) + last.name * is_inline).rstrip(), styles["dim"]), Segment.line()]
    for number, text in enumerate(last.cells):
        lines = wrapped(text, room) if len(text) > room else [text] * bool(text)
        first_line = lines.pop(0) if is_inline and lines else ""
        for column, width in zip(fixed, widths, strict=True):
            cell = column.padded(column.cells[number], width)
            style = styles[column.styles[number]] if column.styles else None
            segments.append(Segment(cell + gap if first_line or column is not fixed[-1] else cell.rstrip(), style))
        segments += [Segment(first_line), Segment.line()]
        for line in lines:
            segments += [Segment(" " * indent + line, None if is_inline else styles["dim"]), Segment.line()]
    console.print(Segments(segments), end="", crop=False)


def _joined(first: ListColumn, last: ListColumn) -> ListColumn:
    """The text of ``last`` with the cells of ``first`` before it; of a number the name too."""
    named = (f"{first.name} {cell}" if cell and first.right else cell for cell in first.cells)
    cells = [", ".join(filter(None, pair)) for pair in zip(named, last.cells, strict=True)]
    return ListColumn(", ".join(filter(None, (first.name, last.name))), cells)


def show_runs(console: Console, results: Sequence[Result]) -> None:
    """One line per run. What all have in common is said once, above; where the numbers come from, below."""
    specs, names = [result.spec for result in results], distinct_names(results)
    places = [spec.engine if spec.engine == "resident" else f"{spec.engine}/{spec.tier}" for spec in specs]
    tuned = {name: [_shown(spec, name) for spec in specs] for name in _TUNED}
    about = {
        "machine": [machine_of(result) for result in results],
        "model": [names[spec.hash] for spec in specs],
        "engine": places,
        "dtype": [spec.dtype for spec in specs],
        "batch": [str(spec.batch_size) for spec in specs],
        "tokens": [str(spec.seq_len) for spec in specs],
        **{name: cells for name, cells in tuned.items() if set(cells) != {str(DECLARED[name].default)}},
        "outcome": [result.ending for result in results],
    }
    common = {name: cells[0] for name, cells in about.items() if len(results) > 1 and len(set(cells)) == 1}
    count = f"{len(results)} run{'' if len(results) == 1 else 's'}"
    shared = printable(", ".join(f"{name} {value}" if name in _COUNTS else value for name, value in common.items()))
    text = Text(count, style="bold").append(f", all: {shared}" if shared else "", style="default")
    console.print(text, soft_wrap=True)
    measured = [metrics(result) for result in results]
    show(console, [
        *(_about(name, cells) for name, cells in about.items() if name not in common),
        ListColumn("tokens/s", [_number(values.get("throughput")) for values in measured], right=True),
        ListColumn("step s", [_number(values.get("step_seconds")) for values in measured], right=True, kept=True),
        ListColumn("MiB", [_number(values.get("device_peak_bytes"), MIB) for values in measured], right=True),
        *_accuracies(measured),
        ListColumn("run", shortened([spec.hash for spec in specs]), kept=True),
        ListColumn("other", [_other(*pair, console.width) for pair in zip(results, labels(specs), strict=True)]),
    ])  # fmt: skip
    warned = {word for result in results for word in _warned(result)}
    legend = ["test %: accuracy"] * any(values.get("accuracy") is not None for values in measured)
    legend += [f"{word}: {meaning}" for word, meaning in _WARNINGS.items() if word in warned]
    console.print(Text("; ".join([_MEASURED, *legend]) + ".", style="dim"))


_COUNTS, _KEPT = ("batch", "tokens"), ("model", "outcome")
_TUNED = named(lambda field: field.listed)  # fields with a column where a run has something else than usual
_MEASURED = (
    "Measured on the machine of each run. step s: the median step; MiB: peak device memory, on a CPU the "
    "process's above its baseline; run: for `zobench trace`"
)


def _about(name: str, cells: Sequence[str]) -> ListColumn:
    styles = [STYLES[cell] for cell in cells] if name == "outcome" else ()
    texts = list(map(printable, cells))
    return ListColumn(name, texts, right=name in _COUNTS, styles=styles, kept=name in _KEPT)


_SCORES = {"test %": "accuracy", "F1 %": "f1", "exact %": "exact_match", "perplexity": "perplexity"}


def _shown(spec: RunSpec, name: str) -> str:
    return DECLARED[name].shown(getattr(spec, name))


def _accuracies(measured: Sequence[Mapping[str, float | None]]) -> list[ListColumn]:
    """Returns a column for each score on test that any run has."""
    columns = []
    for title, name in _SCORES.items():
        scale = 100 if title.endswith("%") else 1
        cells = ["" if (value := values.get(name)) is None else f"{scale * value:.1f}" for values in measured]
        columns += [ListColumn(title, cells, right=True, kept=True)] if any(cells) else []
    return columns


def _other(result: Result, label: str, width: int) -> str:
    """Returns what no column shows of a run: words of its ``label``, why it did not end ok (in ``width``), and its
    warnings."""
    shown = {_shown(result.spec, name) for name in _TUNED}
    words = [word for word in label.removeprefix(result.spec.model).split()[4:] if word not in shown]
    reason = "" if result.is_ok else textwrap.shorten(result.reason, max(_REASON, width), placeholder=" ...")
    repeats = f"{len(result.runs)} processes" if len(result.runs) > 1 else ""
    return printable("; ".join(filter(None, [" ".join(words), repeats, reason, *_warned(result)])))


def _warned(result: Result) -> list[str]:
    """:data:`_BUSY` or :data:`_WARNING`, or both, or neither."""
    busy = len(result.disturbances)
    return [word for word, holds in ((_BUSY, busy > 0), (_WARNING, busy < len(result.warnings))) if holds]


def _number(value: float | None, unit: float = 1) -> str:
    return "" if value is None else rounded(value / unit, ".0f")


def show_comparison(console: Console, comparison: Comparison, names: tuple[str, str]) -> None:
    """One line per cell of both sides, then why the ambiguous ones are, and the cells of one side only."""
    pairs = comparison.pairs
    findings = [pair.judgement for pair in pairs]
    reasons = list(dict.fromkeys(finding.reason for finding in findings if finding.reason))
    console.print(Text(printable(f"A: {names[0]} ({_machines(pairs, 'a')})")), soft_wrap=True)
    console.print(Text(printable(f"B: {names[1]} ({_machines(pairs, 'b')})")), soft_wrap=True)
    verdicts = [_verdict(finding, reasons) for finding in findings]
    sources, intervals = [finding.values for finding in findings], [finding.interval for finding in findings]
    show(console, [
        ListColumn("B is", verdicts, styles=[_VERDICTS[finding.verdict] for finding in findings]),
        ListColumn("B / A", [_ratio(finding.ratio) for finding in findings], right=True),
        ListColumn("95 % interval", ["{:.3f} to {:.3f}".format(*each) if each else "" for each in intervals]),
        *[ListColumn("from", sources)] * (set(sources) != {"steps"}),
        ListColumn("A s", [_number(pair.a.step_seconds) for pair in pairs], right=True),
        ListColumn("B s", [_number(pair.b.step_seconds) for pair in pairs], right=True),
        ListColumn("memory", [_ratio(pair.memory_ratio) for pair in pairs], right=True),
        ListColumn("cell", [printable(pair.a.spec.label) for pair in pairs]),
    ])  # fmt: skip
    for line in remarks(comparison, reasons):
        console.print(Text(printable(line), style="dim"))
    counts = Counter(finding.verdict for finding in findings)
    total = ", ".join(f"{counts[verdict]} {verdict}" for verdict in Verdict if counts[verdict])
    console.print(Text(f"{len(pairs)} {'cell' if len(pairs) == 1 else 'cells'}: {total}", style="bold"))


def _machines(pairs: Sequence[Pair], side: str) -> str:
    return ", ".join(dict.fromkeys(machine_of(getattr(pair, side)) for pair in pairs))


def _verdict(judgement: Judgement, reasons: Sequence[str]) -> str:
    """``AMBIGUOUS 2``: the second of the reasons below."""
    number = f" {reasons.index(judgement.reason) + 1}" if judgement.reason else ""
    return f"{judgement.verdict}{number}"


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
