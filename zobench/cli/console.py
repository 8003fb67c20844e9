"""The screens that people see in a terminal: a sweep's progress, one run's summary, the doctor's report."""

from __future__ import annotations

import json
import math
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.table import Table
from rich.text import Text

from zobench.machine.device import choose_device
from zobench.machine.files import writing
from zobench.machine.processes import leads
from zobench.machine.texts import UNBROKEN, ReportClock, duration, percent, reporting, with_units
from zobench.result import Outcome, Result
from zobench.runspec import distinct
from zobench.stats.intervals import median_interval
from zobench.store import Store, first_sweep, metrics, printable

if TYPE_CHECKING:
    from zobench.execute.plan import Step
    from zobench.execute.sweep import Summary
    from zobench.measure.doctor import Line

MIB = 2**20
NARROWEST = 40  # characters that a table is not squeezed below, however narrow the terminal says it is
STYLES: dict[str, str] = {
    Outcome.OK: "green", Outcome.SKIPPED: "dim", Outcome.CONTAMINATED: "yellow",
    Outcome.OOM: "yellow", Outcome.TIMEOUT: "yellow", Outcome.FAILED: "red",
    "diverged": "yellow",
}  # fmt: skip


_quiet = False
"""Whether --quiet was given: then only the answer, warnings and errors are shown."""


_HANGING = 4  # columns by which a folded line goes on further in than it begins


class Screen(Console):
    """A console whose long lines (``soft_wrap``) fold between words on a terminal, never before a unit."""

    def print(self, *objects: Any, soft_wrap: bool | None = None, **options: Any) -> None:
        """Prints as rich does. A line with a word wider than the terminal, as a path, stays whole to be copied."""
        words = " ".join(map(str, objects)).split() if soft_wrap and self.is_terminal else ()
        folded = max(map(cell_len, words), default=self.width + 1) <= self.width - _HANGING
        if len(objects) == 1 and isinstance(objects[0], (str, Text)) and (folded or not soft_wrap):
            objects = (self._folded(objects[0], options.get("markup"), _HANGING if folded else 0),)
        super().print(*objects, soft_wrap=False if folded else soft_wrap, **options)

    def _folded(self, shown: str | Text, markup: bool | None, hanging: int) -> Text:
        """``shown`` folded between words."""
        text = shown.copy() if isinstance(shown, Text) else self.render_str(shown, markup=markup, emoji=False)
        text.plain = with_units(text.plain)
        lines = text.split("\n", allow_blank=True)
        folded = Text("\n").join(piece for line in lines for piece in self._pieces(line, hanging))
        folded.plain = folded.plain.replace(UNBROKEN, " ")
        return folded

    def _pieces(self, line: Text, hanging: int) -> Iterable[Text]:
        """The lines that ``line`` becomes, all but the first set in by ``hanging``."""
        first = line.wrap(self, self.width)[0]
        rest = line[len(first) :]
        yield first
        rest = rest[len(rest.plain) - len(rest.plain.lstrip()) :]
        if rest:
            yield from (Text(" " * hanging) + piece for piece in rest.wrap(self, self.width - hanging))


def quieten(wanted: bool) -> bool:
    """``wanted``: whether the commands that follow in this process show the answer, warnings and errors alone."""
    global _quiet
    _quiet = wanted
    return wanted


def error_console() -> Console:
    """Standard error, for everything that is not the answer itself; silent where --quiet was given."""
    return Screen(stderr=True, highlight=False, quiet=_quiet or not leads())


def alarm(console: Console) -> Console:
    """``console``, or, where only --quiet has silenced it, one that shows what must be shown all the same."""
    return Screen(stderr=True, highlight=False) if console.quiet and _quiet and leads() else console


def waiting(what: str) -> AbstractContextManager[Callable[[str], None]]:
    """Inside, standard error says now and then that ``what`` is under way."""
    errors = error_console()
    return reporting(lambda text: errors.print(text, style="dim", markup=False, soft_wrap=True), what)


@contextmanager
def busy(what: str) -> Iterator[Callable[[str], None]]:
    """Shows the same as :func:`waiting`, but on a terminal a line that moves. Yields a function that changes
    ``what``."""
    errors = error_console()
    if errors.is_terminal:
        with errors.status(what) as line:
            yield line.update
    else:
        with waiting(what) as change:
            yield change


def chosen_device(wanted: str) -> tuple[str, str]:
    """Returns what :func:`choose_device` returns. A line now and then says that PyTorch, which it asks, is being
    loaded."""
    with waiting("loading PyTorch"):
        return choose_device(wanted)


def answer_console() -> Console:
    """Standard output, for what was asked for."""
    return Screen(highlight=False, quiet=not leads())


def say(*lines: str) -> None:
    """Prints the lines that are not empty on standard error, as they are; none where --quiet was given."""
    for line in filter(None, lines):
        error_console().print(line, style="dim", markup=False, soft_wrap=True)


def write_json(output: str | None, body: Any) -> bool:
    """Writes ``body`` as JSON to the file ``output``, if one is named; "-" prints it. Returns whether it did."""
    if output is None:
        return False
    text = json.dumps(body, indent=1, allow_nan=False)
    if output == "-":
        print(text)
    else:
        write_text(Path(output), text + "\n")
    return output == "-"


def write_text(output: Path | None, text: str) -> None:
    """Writes ``text`` to the file ``output``; without one prints it."""
    if output is None:
        print(text, end="" if text.endswith("\n") else "\n")
    else:
        with writing(output):
            output.write_text(text, encoding="utf-8")


def loaded(*folders: Path) -> list[Result]:
    """The results in ``folders``. A line now and then tells that they are read; what cannot be read is named."""
    stores = [Store(folder) for folder in folders]
    with waiting("reading results"):
        results = [result for store in stores for result in store.load()]
    show_problems(problem for store in stores for problem in store.problems)
    return results


def show_problems(problems: Iterable[str]) -> None:
    """Prints the files that could not be read."""
    for problem in problems:
        print(f"not read: {problem}", file=sys.stderr)


def show_empty(places: Sequence[Path], then: str = "") -> None:
    """Says that there are no results in ``places``, and what makes some; ``then``: what is shown all the same."""
    text_shown = f"no results in {', '.join(map(str, places))}: {first_sweep(places[0])}"
    print(f"{text_shown}; {then}" if then else text_shown, file=sys.stderr)


def is_colored(console: Console) -> bool:
    """Whether what is rendered apart from ``console`` may have colours on it: a terminal, and no NO_COLOR."""
    return console.is_terminal and not console.no_color


def outcome_line(result: Result) -> Text:
    """``ok  OPT-125M resident fp32 b1 s2048  212 tokens/s  812 MiB``: one finished cell on one line."""
    line = Text(f"{result.ending:<8}", style=STYLES[result.ending])
    line.append(f" {printable(result.spec.label)}", style="bold" if result.outcome is Outcome.OK else "")
    text_shown = numbers(result) if result.outcome is Outcome.OK else printable(result.reason)
    line.append(f"  {text_shown}", style="default")
    return line


def numbers(result: Result) -> str:
    """Throughput, or the accuracy on a task; step time, peak memory and known shares of a result that is ok."""
    seconds, step = result.measured_seconds, result.step_seconds or math.nan
    interval = median_interval(seconds)
    spread = "" if interval is None else f", 95 % {interval[0]:.3g} to {interval[1]:.3g} s"
    peak = result.memory.get("device_peak_bytes")
    memory = "memory not available" if peak is None else f"{peak / MIB:.0f} MiB device memory"
    values = metrics(result)
    rate = "{:.0f} tokens/s, " if (values.get("throughput") or 0) >= 1000 else "{:.4g} tokens/s, "
    forms = {"throughput": rate, "accuracy": "{:.1%} of the test right, ", "f1": "F1 {:.1%} on test, "}
    forms["perplexity"] = "perplexity {:.4g} on test, "
    scores = "".join(form.format(values[name]) for name, form in forms.items() if values.get(name) is not None)
    shares = ((values.get("floor_share"), "of the floor"), (values.get("update_survival"), "of the updates kept"))
    more = "".join(f", {percent(share)} {what}" for share, what in shares if share is not None)
    if result.environment.attention:
        more += f", {printable(result.environment.attention)}"
    return f"{scores}{step:.3g} s a step (median of {len(seconds)}{spread}), {memory}{more}"


def bar_width(console: Console) -> int:
    """Characters of a progress bar that leave room for the words beside it."""
    return max(6, min(40, console.width // 6))


class SweepProgress:
    """A progress bar on a terminal, one line per finished cell anywhere; the ETA rests on the plan's estimates, and is
    no later than the end of the ``budget``, in seconds. Where there is no terminal, a line now and then of a cell that
    takes long. ``shown``: kinds of warnings shown in earlier rounds, to which new ones are added."""

    def __init__(self, console: Console, steps: Sequence[Step], budget: float | None, shown: set[str]) -> None:
        self._console, self._steps = console, steps
        self._names = distinct([step.spec for step in steps])[1]  # as the plan lists them
        self._end = math.inf if budget is None else time.monotonic() + budget
        self._left = {step.spec.hash: step.estimate.seconds for step in steps if step.action == "run" and step.estimate}
        self._bar = Progress(
            TextColumn("{task.description}", style="bold", markup=False), BarColumn(bar_width(console)),
            MofNCompleteColumn(), TextColumn("{task.fields[eta]}"), console=console, transient=True,
            disable=not console.is_terminal,
        )  # fmt: skip
        self._task: TaskID = self._bar.add_task("", total=len(steps), eta="")
        self._done = 0
        self._shown = shown
        self._step: Step | None = None
        self._clock = ReportClock()

    def __enter__(self) -> SweepProgress:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def begin(self, step: Step) -> None:
        """A cell starts."""
        self._step, self._clock = step, ReportClock()
        left = max(0.0, min(sum(self._left.values()), self._end - time.monotonic()))
        eta = f"about {duration(left)} left"
        taken = bar_width(self._console) + 2 * len(str(len(self._steps))) + len("/") + len(eta) + 3  # three gaps
        label = Text(self._names[step.spec.hash])
        label.truncate(max(1, self._console.width - taken), overflow="ellipsis")
        self._bar.update(self._task, description=label.plain, eta=eta)

    def tick(self) -> None:
        """Redraws, about ten times a second; without a terminal says now and then which cell runs."""
        self._bar.refresh()
        if self._console.is_terminal or self._step is None or (spent := self._clock.due()) is None:
            return
        guess = self._step.estimate
        of = "" if guess is None else f" of about {duration(guess.seconds)} (predicted)"
        name = self._names[self._step.spec.hash]
        self._console.print(Text(f"running  {name}  {duration(spent)}{of}"), soft_wrap=True)

    def end(self, step: Step, result: Result) -> None:
        """A cell is done: one line, unless it was only kept."""
        self._done += 1
        self._left.pop(step.spec.hash, None)
        self._bar.update(self._task, completed=self._done)
        if step.action == "run" and result.outcome is not Outcome.SKIPPED:
            screen = self._console if result.outcome is Outcome.OK else alarm(self._console)
            screen.print(outcome_line(result), soft_wrap=True)
            # one of those that differ in their numbers alone, or in what follows a colon
            kinds = {re.sub(r"\b\d[\d.]*", "#", text.partition(":")[0]): text for text in reversed(result.warnings)}
            new = [text for kind, text in kinds.items() if kind not in self._shown]
            self._shown.update(kinds)  # once per sweep: each table repeats them all
            show_warnings(self._console, reversed(new))


def show_warnings(console: Console, warnings: Iterable[str]) -> None:
    for warning in warnings:
        alarm(console).print(f"warning: {printable(warning)}", style="yellow", markup=False, soft_wrap=True)


def show_summary(console: Console, summary: Summary) -> None:
    """How many cells ended how, which results were not saved, and how to run the rest again."""
    console.print(Text(f"cells: {summary.counts}", style="bold"))
    outcomes = {result.outcome for result in summary.results}
    again = (Outcome.OOM, Outcome.TIMEOUT, Outcome.CONTAMINATED, Outcome.FAILED)
    if kept := [str(outcome) for outcome in again if outcome in outcomes]:
        console.print(f"to run those again: --retry {','.join(kept)}")
    if summary.lost_repeats:
        console.print(f"repeats that failed and are left out: {summary.lost_repeats}")
    if summary.interrupted:
        console.print("[yellow]stopped; the same command goes on from here")
    for reason in dict.fromkeys(summary.unsaved):
        alarm(console).print(Text(f"not saved: {reason}", style="red"), soft_wrap=True)


def columns(*names: str, numbers: Sequence[str] = (), has_header: bool = True) -> Table:
    """An empty table with these columns, those of ``numbers`` set to the right; the narrow style of every list."""
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=has_header)
    for name in names:
        table.add_column(name, justify="right" if name in numbers else "left", header_style="dim")
    return table


def show_doctor(lines: Sequence[Line]) -> None:
    """The doctor's lines, by section."""
    table = columns(has_header=False)
    marks = {"ok": "[green]ok", "missing": "[yellow]missing", "info": ""}
    previous = ""
    for line in lines:
        section = line.section if line.section != previous else ""
        previous = line.section
        table.add_row(Text(section, style="bold"), Text(line.item), Text(line.value), marks[line.status])
    answer_console().print(table)
