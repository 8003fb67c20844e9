"""Shows submitted sweeps in a terminal: the plan of one, and the state of its cells."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.text import Text

from zobench.cli.console import columns
from zobench.cli.plan_view import distinct
from zobench.machine.texts import duration
from zobench.runspec import RunSpec
from zobench.store import printable

if TYPE_CHECKING:
    from rich.console import Console

    from zobench.execute.jobs import CellState, Submission

STYLES = {"done": "green", "running": "bold", "queued": "", "failed": "red", "lost": "red"}
"""By state; any other is a warning."""


def _asked_for(asked: Mapping[str, Any]) -> str:
    """``--time=60 --gres=gpu:1``: what a job asks for beyond one process on one node."""
    plain = {"nodes": 1, "ntasks_per_node": 1}
    rest = {key.replace("_", "-"): value for key, value in asked.items() if value != plain.get(key, False)}
    return " ".join(f"--{key}" if value is True else f"--{key}={value}" for key, value in rest.items())


def show_plan(
    screen: Console, title: str, specs: Sequence[RunSpec], cells: Sequence[RunSpec], asked: Sequence[Mapping[str, Any]]
) -> None:
    """One line per cell, done or to submit; then what the jobs ask for."""
    shared, names = distinct(specs)
    screen.print(Text(f"{title}; all cells: {' '.join(shared)}" if shared else title, style="bold"))
    table = columns("cell", "plan")
    for spec in specs:
        words, style = ("submit", "") if spec in cells else ("done", "green")
        table.add_row(Text(names[spec.hash], style=style), Text(words, style=style))
    screen.print(table)
    for words, count in Counter(map(_asked_for, asked)).items():
        jobs = "1 job" if count == 1 else f"{count} jobs"
        screen.print(Text(f"{jobs} of one cell each: {words}", style="dim"), soft_wrap=True)
    screen.print(Text(f"{len(cells)} of {len(specs)} cells to submit", style="bold"))


def show(screen: Console, submission: Submission, states: Sequence[CellState]) -> None:
    """One sweep: how many cells are in which state, then one line per cell."""
    shared, names = distinct([state.spec for state in states])
    when = datetime.datetime.fromtimestamp(submission.submitted).strftime("%Y-%m-%d %H:%M")
    screen.print(Text(f"{submission.name} {submission.id}: {counts(states)}", style="bold"), soft_wrap=True)
    told = f"{submission.executor}, {submission.place or 'default partition'}, since {when}"
    screen.print(Text(f"{told}; all cells: {' '.join(shared)}" if shared else told, style="dim"), soft_wrap=True)
    table = columns("cell", "job", "state", "where", "time", "why")
    for state in states:
        spent = "" if state.seconds is None else duration(state.seconds)
        texts = (names[state.spec.hash], state.job, state_word(state), state.host, spent, state.reason)
        table.add_row(*(Text(printable(text), style=STYLES.get(state_word(state), "yellow")) for text in texts))
    screen.print(table)
    if any(state.state in ("lost", "failed") for state in states):
        screen.print(Text(f"what the jobs said: {submission.log}", style="dim"), soft_wrap=True)


def state_word(state: CellState) -> str:
    return "done" if state.state == "ok" else state.state


def counts(states: Sequence[CellState]) -> str:
    """``7 done, 2 running, 3 queued``."""
    words = [state_word(state) for state in states]
    order = ("done", "running", "queued", *words)
    return ", ".join(f"{words.count(word)} {word}" for word in dict.fromkeys(order) if word in words)
