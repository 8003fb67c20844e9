"""What people see in a terminal: a sweep's progress, one run's summary, the doctor's report."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.table import Table
from rich.text import Text

from zobench.execute.plan import Step, duration
from zobench.execute.process import leads
from zobench.measure.doctor import Line
from zobench.measure.statistics import median_interval
from zobench.result import Outcome, Result
from zobench.store import metrics

MIB = 2**20
_FIRST, _SELDOM = 60.0, 600.0
"""Seconds after which a line tells of a cell that still runs, and the most between two of them."""
_STYLES = {
    Outcome.OK: "green", Outcome.SKIPPED: "dim", Outcome.CONTAMINATED: "yellow",
    Outcome.OOM: "yellow", Outcome.TIMEOUT: "yellow", Outcome.FAILED: "red",
}  # fmt: skip


def error_console() -> Console:
    """Standard error, for everything that is not the answer itself."""
    return Console(stderr=True, highlight=False, quiet=not leads())


def answer_console() -> Console:
    """Standard output, for what was asked for."""
    return Console(highlight=False, quiet=not leads())


def outcome_line(result: Result) -> Text:
    """``ok  OPT-125M resident fp32 b1 s2048  212 tokens/s  812 MB``: one finished cell on one line."""
    line = Text(f"{result.outcome:<8}", style=_STYLES[result.outcome])
    line.append(f" {result.spec.label}", style="bold" if result.outcome is Outcome.OK else "")
    line.append(f"  {numbers(result)}" if result.outcome is Outcome.OK else f"  {result.reason}", style="default")
    return line


def numbers(result: Result) -> str:
    """Throughput, or the accuracy on a task; step time, peak memory and known shares of a result that is ok."""
    seconds, step = result.measured_seconds, result.step_seconds or math.nan
    interval = median_interval(seconds)
    spread = "" if interval is None else f", 95 % {interval[0]:.3g} to {interval[1]:.3g} s"
    peak = result.memory.get("device_peak_bytes")
    memory = "memory not available" if peak is None else f"{peak / MIB:.0f} MB device memory"
    told = metrics(result)
    speed, right = told.get("throughput"), told.get("accuracy")
    f1, perplexity = told.get("f1"), told.get("perplexity")
    rate = "" if speed is None else f"{speed:.0f} tokens/s, " if speed >= 1000 else f"{speed:.4g} tokens/s, "
    rate += "" if right is None else f"{right:.1%} of the test right, "
    rate += "" if f1 is None else f"F1 {f1:.1%} on test, "
    rate += "" if perplexity is None else f"perplexity {perplexity:.4g} on test, "
    shares = ((told.get("floor_share"), "of the floor"), (told.get("update_survival"), "of the updates kept"))
    more = "".join(f", {share:.0%} {what}" for share, what in shares if share is not None)
    return f"{rate}{step:.3g} s a step (median of {len(seconds)}{spread}), {memory}{more}"


class SweepProgress:
    """A progress bar on a terminal, one line per finished cell anywhere; the ETA rests on the plan's estimates, and is
    no later than the end of the ``budget``, in seconds. Where there is no terminal, a line now and then of a cell that
    takes long."""

    def __init__(self, console: Console, steps: Sequence[Step], budget: float | None = None) -> None:
        self._console = console
        self._end = math.inf if budget is None else time.monotonic() + budget
        self._left = {step.spec.hash: step.estimate.seconds for step in steps if step.action == "run" and step.estimate}
        self._bar = Progress(
            TextColumn("[bold]{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[eta]}"),
            console=console, transient=True, disable=not console.is_terminal,
        )  # fmt: skip
        self._task: TaskID = self._bar.add_task("", total=len(steps), eta="")
        self._done = 0
        self._told: set[str] = set()
        self._step: Step | None = None
        self._begun, self._next = 0.0, 0.0

    def __enter__(self) -> SweepProgress:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def begin(self, step: Step) -> None:
        """A cell starts."""
        self._step, self._begun, self._next = step, time.monotonic(), _FIRST
        left = max(0.0, min(sum(self._left.values()), self._end - time.monotonic()))
        self._bar.update(self._task, description=step.spec.label, eta=f"about {duration(left)} left")

    def tick(self) -> None:
        """Redraws, about ten times a second; without a terminal says after a minute, and then ever less often, but at
        least every ten, which cell runs."""
        self._bar.refresh()
        spent = time.monotonic() - self._begun
        if self._console.is_terminal or self._step is None or spent < self._next:
            return
        self._next += min(self._next, _SELDOM)
        guess = self._step.estimate
        of = "" if guess is None else f" of about {duration(guess.seconds)} (predicted)"
        self._console.print(Text(f"running  {self._step.spec.label}  {duration(spent)}{of}"), soft_wrap=True)

    def end(self, step: Step, result: Result) -> None:
        """A cell is done: one line, unless it was only kept."""
        self._done += 1
        self._left.pop(step.spec.hash, None)
        self._bar.update(self._task, completed=self._done)
        if step.action == "run" and result.outcome is not Outcome.SKIPPED:
            self._console.print(outcome_line(result), soft_wrap=True)
            new = [warning for warning in result.warnings if warning.partition(":")[0] not in self._told]
            self._told |= {warning.partition(":")[0] for warning in new}  # once per sweep: each table repeats them all
            show_warnings(self._console, new)


def show_warnings(console: Console, warnings: Iterable[str]) -> None:
    """A yellow line for each warning."""
    for warning in warnings:
        console.print(f"warning: {warning}", style="yellow", markup=False, soft_wrap=True)


def show_summary(console: Console, results: Iterable[Result], unsaved: Sequence[str], interrupted: bool) -> None:
    """How many cells ended how, which results were not saved, and how to run the rest again."""
    counts: dict[str, int] = {}
    for result in results:
        counts[str(result.outcome)] = counts.get(str(result.outcome), 0) + 1
    told = ", ".join(f"{n} {outcome}" for outcome, n in counts.items()) or "none finished"
    console.print(Text(f"cells: {told}", style="bold"))
    kept = [outcome for outcome in ("oom", "timeout", "contaminated", "failed") if outcome in counts]
    if kept:
        console.print(f"to run those again: --retry {','.join(kept)}")
    if interrupted:
        console.print("[yellow]stopped; the same command goes on from here")
    for reason in dict.fromkeys(unsaved):
        console.print(Text(f"not saved: {reason}", style="red"), soft_wrap=True)


def columns(*names: str, numbers: Sequence[str] = ()) -> Table:
    """An empty table with these columns, those of ``numbers`` set to the right; the narrow style of every list."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in names:
        table.add_column(name, justify="right" if name in numbers else "left", header_style="dim")
    return table


def show_doctor(lines: Sequence[Line]) -> None:
    """The doctor's lines, by section."""
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    marks = {"ok": "[green]ok", "missing": "[yellow]missing", "info": ""}
    previous = ""
    for line in lines:
        section = line.section if line.section != previous else ""
        previous = line.section
        mark = marks.get(line.status, line.status)
        table.add_row(Text(section, style="bold"), Text(line.item), Text(line.value), mark)
    answer_console().print(table)
