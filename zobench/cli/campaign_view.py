"""Campaigns in a terminal: which there are and how far they are, and the parts of one with what they should take."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from zobench import recipes
from zobench.cli import plan_view
from zobench.cli.listing import ListColumn, show
from zobench.cost import hardware
from zobench.execute.campaign import Outlook, forecast
from zobench.machine.texts import duration
from zobench.measure.environment import fingerprint_without_torch
from zobench.recipes.campaign import Campaign, PartOn
from zobench.report import power
from zobench.result import Result
from zobench.session.campaigns import beyond, state
from zobench.store import Store


def show_campaigns(screen: Console, results: Path) -> None:
    """Every campaign, with how many of its runs the store in ``results`` has of this machine."""
    machine = fingerprint_without_torch().machine
    runs = Store(results).runs(machine)
    names = recipes.names("campaigns")
    states = [state(name, runs) for name in names]
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
    """The parts of a campaign on this machine, whose runs are ``runs``; with a row for each of their ``cells``, if that
    is asked for, and of its protocols what they can show."""
    screen.print(Text(campaign.title, style="bold"))
    left, progresses = [outlook for outlook in outlooks if not outlook.is_done], [item.progress for item in outlooks]
    show(screen, [
        ListColumn("part", [outlook.on.part.name for outlook in outlooks], kept=True),
        ListColumn("cells", [str(len(outlook.steps) - len(outlook.unfit)) for outlook in outlooks], right=True),
        ListColumn("rounds", [str(outlook.on.part.repeats) for outlook in outlooks], right=True),
        ListColumn("runs done", [f"{run.done} of {len(run.wanted)}" for run in progresses], right=True),
        ListColumn("whole", [_time(outlook.whole) for outlook in outlooks], right=True),
        ListColumn("left", [_left(outlook) for outlook in outlooks], right=True, kept=True),
        ListColumn("what it is for", [outlook.purpose for outlook in outlooks]),
    ])  # fmt: skip
    seconds = sum(outlook.left for outlook in left)
    times = plan_view.UNPRICED if math.isnan(seconds) else "times are predicted for this machine"
    whole = ", ".join(filter(None, [f"{len(left)} of {len(outlooks)} parts are left", _time(seconds)]))
    names = {outlook.on.part.name for outlook in outlooks}
    count = sum(part.more and part.name not in names for part in campaign.parts)
    hidden = f"; {beyond(count)}: --more" if count else ""
    screen.print(Text(f"{whole if left else 'all parts are done'}; {times}{hidden}", style="dim"))
    most = sum(part.most for part in left)
    if most > seconds:
        screen.print(Text(f"{_time(most)} at most, if every grid grows as far as its protocol lets it", style="dim"))
    for line in power.lines(filter(None, (outlook.on.contest for outlook in outlooks)), runs):
        screen.print(line, markup=False, highlight=False, soft_wrap=True)
    for outlook in outlooks if cells else ():
        screen.print()
        plan_view.show_plan(screen, f"{outlook.on.part.name}, one round", outlook.steps, None)


def _time(seconds: float) -> str:
    """A duration; "" for one of which nothing is known."""
    return "" if math.isnan(seconds) else duration(seconds)


def _left(outlook: Outlook) -> str:
    if not outlook.progress.wanted:
        return "not here"
    if outlook.is_done:
        return "done"
    return f"{_time(outlook.left)} to {_time(outlook.most)}" if outlook.most > outlook.left else _time(outlook.left)


def show_ahead(screen: Console, campaign: Campaign, parts: Sequence[PartOn], gpu: str) -> None:
    """The parts of a campaign as predicted for a GPU that need not be here. Raises ``ValueError`` for one of a CPU."""
    if campaign.device != "cuda":
        raise ValueError(f"`--gpu` is for campaigns of a GPU, but {campaign.name} is of a CPU; leave it out")
    target = hardware.load(gpu)
    forecasts = [forecast(on, target) for on in parts]
    times = [duration(forecast.seconds) if forecast.cells else "-" for forecast in forecasts]
    screen.print(Text(f"{campaign.title}; predicted for {target.name}", style="bold"))
    show(screen, [
        ListColumn("part", [on.part.name for on in parts], kept=True),
        ListColumn("cells", [str(len(forecast.cells)) for forecast in forecasts], right=True),
        ListColumn("rounds", [str(on.part.repeats) for on in parts], right=True),
        ListColumn("predicted", times, right=True, kept=True),
        ListColumn("what it is for", [
            on.purpose + (f"; too large: {', '.join(forecast.unfit)}" if forecast.unfit else "")
            for on, forecast in zip(parts, forecasts, strict=True)
        ]),
    ])  # fmt: skip
    whole = sum(forecast.seconds for forecast in forecasts)
    footer = f"all parts: {duration(whole)}, predicted; none is meant to take longer than {campaign.longest}"
    screen.print(Text(footer, style="dim"))
