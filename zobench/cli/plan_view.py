"""A plan in a terminal: a line for each kind of cell, or a row for each cell."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from zobench.execute.plan import Step, duration, gigabytes
from zobench.predict import Estimate

NAMED = 4
"""Cells of a kind that a short plan names."""


def show_short_plan(
    console: Console, title: str, steps: Sequence[Step], budget: float | None, *, foretold: bool = False
) -> None:
    """What runs, what is kept, what the budget and the machine leave out and why; a line each. ``foretold``: a table
    that follows predicts what is left out."""
    run, over = within(steps, budget)
    kept = [step for step in steps if step.action == "keep"]
    unfit = [step for step in steps if step.action == "skip"]
    shared = shared_words([step.spec.label for step in steps])
    count = f"{len(steps)} cells" if len(steps) > 1 else "1 cell"
    alike = f", all {' '.join(shared)}" if shared else ""
    console.print(Text(f"{title}: {count}{alike}", style="bold"), soft_wrap=True)
    limit = "" if budget is None else f" of {duration(budget)}"
    ahead = ["predicted below"] * foretold
    lines = [
        ("run", run, f"{duration(sum(map(seconds, run)))}{limit} (predicted)"),
        ("done before", kept, ""),
        ("over the budget", over, f"{duration(min(map(seconds, over), default=0))} and more; they end early, or wait"),
        ("not here", unfit, "; ".join([*dict.fromkeys(_there_is(step.reason) for step in unfit), *ahead])),
    ]  # fmt: skip
    for kind, cells, told in lines:
        if cells:
            names = [_apart(step, shared) for step in cells]
            more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
            text = Text.assemble((f"  {kind:<16}", "dim"), f"{len(cells):>3}  {', '.join(names[:NAMED])}{more}")
            console.print(text.append(f"  {told}" if told else "", style="dim"), soft_wrap=True)


def within(steps: Sequence[Step], budget: float | None) -> tuple[list[Step], list[Step]]:
    """(the cells to run that are predicted to fit the budget, in order; those that are not)."""
    run, over, spent = list[Step](), list[Step](), 0.0
    for step in steps:
        if step.action == "run":
            fits = budget is None or spent + seconds(step) <= budget
            (run if fits else over).append(step)
            spent += seconds(step) if fits else 0
    return run, over


def seconds(step: Step) -> float:
    """What the cell should take; 0 for one without an estimate."""
    return step.estimate.seconds if step.estimate else 0.0


def show_plan(console: Console, title: str, steps: Sequence[Step], budget: float | None) -> None:
    """One line per cell: what it needs, how long it should take, and whether it runs, is kept or is skipped and why."""
    shared = shared_words([step.spec.label for step in steps])
    heading = f"{title}; all cells: {' '.join(shared)}" if shared else title
    console.print(Text(heading, style="bold"))
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name, side in (("cell", "left"), ("device", "right"), ("disk", "right"), ("time", "right"), ("plan", "left")):
        table.add_column(name, justify=side, header_style="dim", no_wrap=name not in ("cell", "plan"))  # type: ignore[arg-type]
    run, over = within(steps, budget)
    for step in steps:
        words, style = step.reason, {"run": "", "keep": "green", "skip": "dim"}[step.action]
        if step.action == "run":
            words, style = ("over the budget", "dim") if step in over else ("run", "")
        elif step.action == "skip" and words.startswith("needs "):
            words = words.partition(", ")[0].replace(" of ", " ")
        cell = _apart(step, shared)
        table.add_row(*(Text(text, style=style) for text in (cell, *_needs(step.estimate), words)))
    console.print(table)
    lacking = dict.fromkeys(_there_is(step.reason) for step in steps if step.reason.startswith("needs "))
    if lacking:
        console.print(Text(f"not enough here: {'; '.join(lacking)}", style="dim"))
    limit = "" if budget is None else f" within the budget of {duration(budget)}"
    total = f"{len(run)} of {len(steps)} cells to run{limit}: about {duration(sum(map(seconds, run)))} (predicted)"
    console.print(Text(total, style="bold"))


def _there_is(reason: str) -> str:
    """What a reason like "needs 9 GB of host memory, 5 GB are free" or "needs 4 GPUs, 2 are visible" says is here."""
    _, of, rest = reason.partition(" of ")
    return rest if of else reason.partition(", ")[2]


def _needs(guess: Estimate | None) -> list[str]:
    if guess is None:
        return ["", "", ""]
    disk = gigabytes(guess.disk_bytes) if guess.disk_bytes else ""
    return [gigabytes(guess.device_bytes), disk, duration(guess.seconds)]


def _apart(step: Step, shared: Sequence[str]) -> str:
    """What a cell's label says that those of the others do not."""
    return " ".join(word for word in step.spec.label.split() if word not in shared) or "this one"


def shared_words(labels: Sequence[str]) -> list[str]:
    """The words that all labels have in common, to be shown once."""
    if len(labels) < 2:
        return []
    return [word for word in labels[0].split() if all(word in label.split() for label in labels)]
