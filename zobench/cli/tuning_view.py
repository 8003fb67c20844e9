"""Shows fine-tuning in a terminal: a bar with the newest step, a line per evaluation, a table at the end."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn
from rich.progress import Progress as Bars
from rich.text import Text

from zobench.cli.console import MIB, bar_width, columns, show_warnings
from zobench.machine.texts import ReportClock, duration, reporting
from zobench.result import Result
from zobench.runspec import RunSpec
from zobench.runspec.registries import METRICS
from zobench.stats.significance import Difference
from zobench.store import printable
from zobench.training.assess import Assessed
from zobench.training.callbacks import Callback, Evaluation, RunStart, StepReport
from zobench.training.cautions import only_lost
from zobench.training.search import Trial


class TuningBar(Callback):
    """A bar on a terminal, a line per evaluation anywhere, of one run after the other. Where no bar is seen, a line now
    and then of what is under way; ``verbose``: a line for every step."""

    def __init__(self, console: Console, *, verbose: bool = False) -> None:
        self._console, self._label, self._verbose = console, "", verbose
        name, numbers = TextColumn("[bold]{task.description}"), TextColumn("{task.fields[scores]}")
        self._named = console.width >= _WIDE
        self._bars = Bars(
            *[name] * self._named, BarColumn(bar_width(console)), MofNCompleteColumn(), numbers,
            console=console, transient=True, disable=not console.is_terminal,
        )  # fmt: skip
        self._task: TaskID | None = None
        self._best = ""
        self._begun = (0, 0.0)
        self._total = 0
        self._clock, self._doing = ReportClock(), ""
        self._waiting = reporting(lambda _: self._report(), "", _TICK)

    def of(self, spec: RunSpec) -> TuningBar:
        """The bar, for the run of ``spec``; prints which run it is."""
        self._console.print(Text(spec.label, style="bold"), soft_wrap=True)
        self._label, self._best = f"{spec.model} {spec.task_name} {spec.method}", ""
        self._clock, self._doing = ReportClock(), "preparing the run"
        return self

    def __enter__(self) -> TuningBar:
        self._bars.start()
        self._waiting.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._waiting.__exit__(None, None, None)
        self._bars.stop()

    def _report(self) -> None:
        if not (self._console.is_terminal and self._task is not None) and (spent := self._clock.due()) is not None:
            self._console.print(f"{self._doing}; {duration(spent)} so far", soft_wrap=True)

    def on_line(self, text: str) -> None:
        self._console.print(printable(text), style="dim", markup=False, soft_wrap=True)

    def on_start(self, start: RunStart) -> None:
        """Shows the best evaluation of a run that goes on; of one that is trained and only to be tested it shows
        nothing."""
        done, total = len(start.steps), start.spec.steps
        if start.evaluations and start.evaluations[-1].step == total:
            return
        self._total, self._begun, self._clock = total, (done, time.monotonic()), ReportClock()
        if self._task is not None:
            self._bars.remove_task(self._task)
        self._task = self._bars.add_task(self._label, total=total, completed=done, scores="")
        for best in [evaluation for evaluation in start.evaluations if evaluation.best][-1:]:
            self.on_evaluation(best)

    def on_step(self, step: StepReport) -> None:
        assert self._task is not None
        done, since = self._begun
        rate = (step.step - done) / max(time.monotonic() - since, 1e-9)
        left = duration((self._total - step.step) / rate)
        shown = {
            "loss": f"loss {step.loss:.4f}", "g": f"g {step.g:+.3g}", "lr": f"lr {step.lr:.3g}",
            "best": self._best, "skipped": f"{step.skipped} skipped" if step.skipped else "",
            "rate": f"{rate:.3g} steps/s", "left": f"about {left} left",
        }  # fmt: skip
        self._bars.update(self._task, completed=step.step, scores=self._fitting(shown), refresh=False)
        self._doing = f"step {step.step} of {self._total}: {_joined(shown)}"
        if self._verbose:
            self._console.print(self._doing, soft_wrap=True)

    def _fitting(self, shown: Mapping[str, str]) -> str:
        """As much of what is ``shown`` as stands beside the bar, the least important left out first."""
        taken = bar_width(self._console) + 2 * len(str(self._total)) + len(self._label) * self._named + 4
        kept = dict(shown)
        for name in _DISPENSABLE:
            if len(_joined(kept)) > self._console.width - taken:
                kept.pop(name)
        return _joined(kept)

    def on_evaluation(self, evaluation: Evaluation) -> None:
        if evaluation.best:
            self._best = f"least dev loss {evaluation.loss:.4f} ({score(evaluation.names[0], evaluation.accuracy)})"
        mark = (" (best)" if evaluation.gained else " (best after the start)") if evaluation.best else ""
        shown = ", ".join(f"{_words(name)} {score(name, value)}" for name, value in evaluation.scores.items())
        earlier = "best so far, " if evaluation.split == "dev" and evaluation.step < self._begun[0] else ""
        moment = f"{earlier}step {evaluation.step}: {evaluation.split}"
        self._console.print(f"{moment} {shown}, loss {evaluation.loss:.4f}{mark}", soft_wrap=True)


_TICK = 0.5  # seconds between two looks whether a line is due
_WIDE = 100  # characters of a terminal in which the bar has the run's name too, which stands above it already
_DISPENSABLE = ("g", "lr", "rate", "skipped", "best")


def _joined(shown: Mapping[str, str]) -> str:
    return ", ".join(filter(None, shown.values()))


def show_result(console: Console, result: Result) -> None:
    """Start, best on dev and test, beside the share of the most frequent answer; then what the run cost."""
    evaluation = result.evaluation
    numbers = ("step", *map(_words, result.scores), "loss", "majority")
    table = columns("", *numbers, numbers=numbers)
    lost = only_lost(result)
    best = "dev, diverged" if result.ending == "diverged" else "dev at its best"
    best = "dev, best after the start" if lost else best
    rows = (("dev at the start", "start", "dev"), (best, "best", "dev"), ("test, with the best", "test", "test"))
    for name, key, split in (row for row in rows if row[1] in evaluation):
        row = evaluation[key]
        share = evaluation["majority"][split]
        values = (score(name, row[name]) for name in result.scores)
        table.add_row(name, str(row["step"]), *values, _number(row["loss"]), "—" if share is None else f"{share:.1%}")
    console.print(table)
    show_warnings(console, map(printable, (*result.warnings, *lost)))
    console.print(Text(", ".join(_costs(result))))


def show_assessed(console: Console, assessed: Assessed) -> None:
    """One row: the scores on the split, the 95 % interval of an accuracy, the loss, the majority's share."""
    seen, interval = assessed.seen, assessed.interval
    ends = "" if interval is None else f"{interval[0]:.1%} to {interval[1]:.1%}"
    cells = {
        "": seen.split, **{_words(name): score(name, value) for name, value in seen.scores.items()},
        "95 % interval": ends, "loss": _number(seen.loss),
        "majority": "—" if assessed.majority is None else f"{assessed.majority:.1%}",
        "tokens" if seen.names[0] == "perplexity" else "examples": str(seen.count),
    }  # fmt: skip
    shown = {name: cell for name, cell in cells.items() if cell}
    table = columns(*shown, numbers=[name for name in shown if name])
    table.add_row(*shown.values())
    console.print(table)


def show_seeds(console: Console, results: Sequence[Result], means: Mapping[str, Difference]) -> None:
    """A row for each run, and for each score the mean over the seeds with its 95 % interval."""
    names = results[0].scores
    scores = [f"{split} {_words(name)}" for split in ("dev", "test") for name in names]
    headings = ("seed", *scores, "test loss")
    table = columns(*headings, numbers=headings)
    for result in results:
        best, test = result.evaluation["best"], result.evaluation.get("test", {})
        cells = [score(name, row.get(name)) for row in (best, test) for name in names]
        table.add_row(str(result.spec.seed), *cells, _number(test.get("loss")))
    console.print(table)
    for name, mean in means.items():
        ends = f"95 % interval {score(name, mean.low)} to {score(name, mean.high)}"
        ends = ends if math.isfinite(mean.low) else "no interval, because all are equal"
        text = f"test {_words(name)}: {score(name, mean.value)}, mean of {len(results)} seeds, {ends}"
        console.print(Text(text, style="bold"))


def score(name: str, value: float | None) -> str:
    """A score in the first unit of its metric: ``62.5%``."""
    unit, size = next(iter(METRICS.get(name).units.items()))
    return "not finite" if value is None or not math.isfinite(value) else f"{value / size:.1f}{unit}"


def _words(name: str) -> str:
    return {"f1": "F1"}.get(name, name.replace("_", " "))


def _costs(result: Result) -> Iterable[str]:
    seconds = result.measured_seconds
    yield f"{len(seconds)} step{'s' * (len(seconds) != 1)} in {duration(sum(seconds))}"
    yield f"{statistics.median(seconds):.3g} s a step"
    peak = result.memory.get("device_peak_bytes")
    yield "memory not available" if peak is None else f"{peak / MIB:.0f} MiB device memory"
    yield f"{result.skipped_updates} updates skipped"


def _number(value: float | None) -> str:
    return "not finite" if value is None or not math.isfinite(value) else f"{value:.4f}"


def show_search(console: Console, cells: Sequence[Trial], winner: Trial) -> None:
    """One row per run, and the test's accuracy in the winner's alone."""
    first = winner.result.scores[0]
    score_names = f"dev {_words(first)}", f"test {_words(first)}"
    headings = (*winner.changes, "step", "dev loss", score_names[0], "skipped", score_names[1])
    table = columns(*headings, numbers=headings)
    for cell in cells:
        row, won = cell.row(), cell.changes == winner.changes
        seen = winner.result.evaluation.get("test")
        test = score(first, seen[first]) if won and seen else ""
        dev = score(first, row[f"dev_{first}"])
        texts = (str(row["step"]), _number(row["dev_loss"]), dev, str(row["skipped"]), test)
        table.add_row(*map(str, cell.changes.values()), *texts, style="bold" if won else None)
    console.print(table)
