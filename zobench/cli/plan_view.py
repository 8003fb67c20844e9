"""A plan in a terminal: a line for each kind of cell, or a row for each cell; submitted sweeps and their cells;
campaigns, how far they are, and the parts of one with what they should take."""

from __future__ import annotations

import datetime
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from zobench import recipes
from zobench.cli.console import columns
from zobench.cli.listing import ListColumn, show
from zobench.execute import jobs, slurm
from zobench.execute.campaign import Outlook
from zobench.execute.jobs import CellState, Submission
from zobench.execute.plan import Step, within
from zobench.machine.texts import alike, duration
from zobench.measure.environment import fingerprint_without_torch
from zobench.recipes.campaign import Campaign
from zobench.report import power
from zobench.result import Result
from zobench.runspec import RunSpec, distinct
from zobench.session import campaigns
from zobench.store import Store, printable

NAMED = 4  # cells of a kind that a short plan names
UNPRICED = "how long is predicted from this machine's rates, which the first run measures"
"""The text in place of times, where this machine's rates are not measured."""


def show_short_plan(
    console: Console, title: str, steps: Sequence[Step], budget: float | None, *, foretold: bool = False
) -> None:
    """A line each of what runs, is kept, and is left out, and why. ``foretold``: a table that follows predicts what is
    left out."""
    run, over = within(steps, budget)
    kept = [step for step in steps if step.action == "keep"]
    unfit = [step for step in steps if step.action == "skip"]
    shared, names = distinct([step.spec for step in steps])
    count = f"{len(steps)} cells" if len(steps) > 1 else "1 cell"
    alike = f", all {' '.join(shared)}" if shared else ""
    console.print(Text(f"{title}: {count}{alike}", style="bold"), soft_wrap=True)
    limit = "" if budget is None else f" of {duration(budget)}"
    below = ["predicted below"] * foretold
    least = duration(min((step.seconds for step in over), default=0))
    lines = [
        ("run", run, f"{duration(sum(step.seconds for step in run))}{limit} (predicted)"),
        ("done before", kept, ""),
        ("over the budget", over, f"{least} and more; they end early, or wait"),
        ("not here", unfit, "; ".join([*_lacking(unfit), *below])),
    ]  # fmt: skip
    for kind, cells, note in lines:
        if cells:
            labelled = [names[step.spec.hash] for step in cells]
            more = f" and {len(cells) - NAMED} more" if len(cells) > NAMED else ""
            text = Text.assemble((f"  {kind:<16}", "dim"), f"{len(cells):>3}  {', '.join(labelled[:NAMED])}{more}")
            console.print(text.append(f"  {note}" if note else "", style="dim"), soft_wrap=True)
    _show_intervals(console, run, names)


def show_plan(console: Console, title: str, steps: Sequence[Step], budget: float | None) -> None:
    """One line per cell: what it needs, how long it should take, and whether it runs, is kept or is skipped and why."""
    shared, names = distinct([step.spec for step in steps])
    heading = f"{title}; all cells: {' '.join(shared)}" if shared else title
    console.print(Text(heading, style="bold"))
    run, over = within(steps, budget)
    styles = [{"run": "", "keep": "green", "skip": "dim"}["skip" if step in over else step.action] for step in steps]
    guesses = [step.estimate for step in steps]
    needs = {
        "device": alike([guess.device_bytes if guess else 0 for guess in guesses]),
        "disk": alike([guess.disk_bytes if guess else 0 for guess in guesses]),
        "time": [_time(step) for step in steps],
    }
    sizes = [ListColumn(name, cells, right=True, styles=styles) for name, cells in needs.items() if any(cells)]
    words = [printable("over the budget" if step in over else _planned(step)) for step in steps]
    cells = [printable(names[step.spec.hash]) for step in steps]
    show(console, [ListColumn("cell", cells, styles=styles), *sizes, ListColumn("plan", words)])
    if available := _lacking(steps):
        console.print(Text(f"not enough here: {'; '.join(available)}", style="dim"))
    _show_intervals(console, run, names)
    limit = "" if budget is None else f" within the budget of {duration(budget)}"
    text = f"about {duration(sum(step.seconds for step in run))} (predicted)"
    if any(step.estimate is not None and math.isnan(step.estimate.seconds) for step in run):
        text = UNPRICED
    console.print(Text(f"{len(run)} of {len(steps)} cells to run{limit}: {text}", style="bold"))


def _lacking(steps: Sequence[Step]) -> list[str]:
    """Returns the room that is too small for any skipped cell, each once."""
    return list(dict.fromkeys(step.lacks.available for step in steps if step.action == "skip" and step.lacks))


def _planned(step: Step) -> str:
    """Returns the cell's fate in few words; the memory or disk that is lacking is said once, below."""
    if step.action == "skip" and step.reason.startswith("needs "):
        return step.reason.partition(", ")[0].replace(" of ", " ")
    return "run" if step.action == "run" else step.reason


def _show_intervals(console: Console, steps: Sequence[Step], names: Mapping[str, str]) -> None:
    """Prints when the cells to run write pending updates, where this machine's rates choose that, and why."""
    for step in steps:
        if step.estimate is not None and step.estimate.consolidation is not None:
            text = f"  {names[step.spec.hash]}: {step.estimate.consolidation.reason}"
            console.print(Text(text, style="dim"), soft_wrap=True)


def _time(step: Step) -> str:
    """Returns the predicted time of a cell that is not kept, where it is known."""
    guess = step.estimate
    return "" if step.action == "keep" or guess is None or math.isnan(guess.seconds) else duration(guess.seconds)


STATE_STYLES = {"done": "green", "running": "bold", "queued": "", "failed": "red", "lost": "red"}
"""The style of each state; any other state is a warning."""


def show_jobs(
    screen: Console, title: str, specs: Sequence[RunSpec], cells: Sequence[RunSpec],
    requests: Sequence[Mapping[str, Any]],
) -> None:  # fmt: skip
    """One line per cell, done or to submit; then what the jobs ask for."""
    shared, names = distinct(specs)
    screen.print(Text(f"{title}; all cells: {' '.join(shared)}" if shared else title, style="bold"))
    table = columns("cell", "plan")
    for spec in specs:
        words, style = ("submit", "") if spec in cells else ("done", "green")
        table.add_row(Text(names[spec.hash], style=style), Text(words, style=style))
    screen.print(table)
    for words, count in Counter(map(slurm.text_of, requests)).items():
        number = "1 job" if count == 1 else f"{count} jobs"
        screen.print(Text(f"{number} of one cell each: {words}", style="dim"), soft_wrap=True)
    screen.print(Text(f"{len(cells)} of {len(specs)} cells to submit", style="bold"))


def show_submission(screen: Console, submission: Submission, states: Sequence[CellState]) -> None:
    """One sweep: how many cells are in which state, then one line per cell."""
    shared, names = distinct([state.spec for state in states])
    when = datetime.datetime.fromtimestamp(submission.submitted).strftime("%Y-%m-%d %H:%M")
    screen.print(Text(f"{submission.name} {submission.id}: {jobs.counts(states)}", style="bold"), soft_wrap=True)
    heading = f"{submission.executor}, {submission.place or 'default partition'}, since {when}"
    screen.print(Text(f"{heading}; all cells: {' '.join(shared)}" if shared else heading, style="dim"), soft_wrap=True)
    table = columns("cell", "job", "state", "where", "time", "why")
    for state in states:
        spent = "" if state.seconds is None else duration(state.seconds)
        texts = (names[state.spec.hash], state.job, state.word, state.host, spent, state.reason)
        table.add_row(*(Text(printable(text), style=STATE_STYLES.get(state.word, "yellow")) for text in texts))
    screen.print(table)
    if any(state.state in ("lost", "failed") for state in states):
        screen.print(Text(f"what the jobs said: {submission.log}", style="dim"), soft_wrap=True)


def show_campaigns(screen: Console, results: Path) -> None:
    """Every campaign, with how many of its runs the store in ``results`` has of this machine."""
    machine = fingerprint_without_torch().machine
    runs = Store(results).runs(machine)
    names = recipes.names("campaigns")
    states = [campaigns.state(name, runs) for name in names]
    show(screen, [
        ListColumn("campaign", names, kept=True),
        ListColumn("parts done", [done for done, _, _ in states], right=True),
        ListColumn("runs done", [done for _, done, _ in states], right=True),
        ListColumn("what it is", [title for _, _, title in states]),
    ])  # fmt: skip
    footer = f"done: by {machine}, kept in {results}; zobench campaign NAME --plan shows the parts"
    screen.print(Text(footer, style="dim"))


def show_parts(
    screen: Console, campaign: Campaign, outlooks: Sequence[Outlook], runs: Sequence[Result], *, cells: bool = False
) -> None:
    """The parts of a campaign, of which this machine has ``runs``; with a row for each of the ``cells``, if asked."""
    screen.print(Text(campaign.title, style="bold"))
    left, progresses = [outlook for outlook in outlooks if not outlook.is_done], [item.progress for item in outlooks]
    show(screen, [
        ListColumn("part", [outlook.on.part.name for outlook in outlooks], kept=True),
        ListColumn("cells", [str(len(outlook.steps) - len(outlook.unfit)) for outlook in outlooks], right=True),
        ListColumn("rounds", [str(outlook.on.part.repeats) for outlook in outlooks], right=True),
        ListColumn("runs done", [f"{run.done} of {len(run.wanted)}" for run in progresses], right=True),
        ListColumn("whole", [_foreseen(outlook.whole) for outlook in outlooks], right=True),
        ListColumn("left", [_left(outlook) for outlook in outlooks], right=True, kept=True),
        ListColumn("what it is for", [outlook.purpose for outlook in outlooks]),
    ])  # fmt: skip
    seconds = sum(outlook.left for outlook in left)
    times = UNPRICED if math.isnan(seconds) else "times are predicted for this machine"
    whole = ", ".join(filter(None, [f"{len(left)} of {len(outlooks)} parts are left", _foreseen(seconds)]))
    names = {outlook.on.part.name for outlook in outlooks}
    count = sum(part.more and part.name not in names for part in campaign.parts)
    hidden = f"; {campaigns.beyond(count)}: --more" if count else ""
    screen.print(Text(f"{whole if left else 'all parts are done'}; {times}{hidden}", style="dim"))
    most = sum(part.most for part in left)
    if most > seconds:
        grown = f"{_foreseen(most)} at most, if every grid grows as far as its protocol lets it"
        screen.print(Text(grown, style="dim"))
    for line in power.lines(filter(None, (outlook.on.contest for outlook in outlooks)), runs):
        screen.print(line, markup=False, highlight=False, soft_wrap=True)
    for outlook in outlooks if cells else ():
        screen.print()
        show_plan(screen, f"{outlook.on.part.name}, one round", outlook.steps, None)


def _foreseen(seconds: float) -> str:
    """A duration; "" for one of which nothing is known."""
    return "" if math.isnan(seconds) else duration(seconds)


def _left(outlook: Outlook) -> str:
    if not outlook.progress.wanted:
        return "not here"
    if outlook.is_done:
        return "done"
    most = f" to {_foreseen(outlook.most)}" if outlook.most > outlook.left else ""
    return _foreseen(outlook.left) + most
