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
from zobench.cost.budget import price
from zobench.execute.campaign import Outlook, ahead, part_progress
from zobench.machine.texts import duration
from zobench.measure.environment import fingerprint_without_torch
from zobench.recipes import campaign as campaigns
from zobench.recipes.campaign import Campaign, PartOn
from zobench.result import Result
from zobench.store import Store


def show_campaigns(screen: Console, results: Path) -> None:
    """Every campaign, with how many of its runs the store in ``results`` has of this machine."""
    machine = fingerprint_without_torch().machine
    runs = Store(results).runs(machine)
    names = recipes.names("campaigns")
    states = [_state(name, runs) for name in names]
    show(screen, [
        ListColumn("campaign", names, kept=True),
        ListColumn("parts done", [done for done, _, _ in states], right=True),
        ListColumn("runs done", [done for _, done, _ in states], right=True),
        ListColumn("what it is", [title for _, _, title in states]),
    ])  # fmt: skip
    told = f"done: by {machine}, kept in {results}; zobench campaign NAME --plan shows the parts"
    screen.print(Text(told, style="dim"))


def _state(name: str, runs: Sequence[Result]) -> tuple[str, str, str]:
    """(parts done, runs done, title) of a campaign; of one that cannot be read, why."""
    try:
        found = campaigns.load(recipes.find("campaigns", name))
        parts = [on for on in found.on("cuda:0" if found.device == "cuda" else found.device, price) if not on.part.more]
        known = [part_progress(on, runs) for on in parts]
    except ValueError as error:  # one bad file of the user's must not hide the others
        return "", "", f"cannot be read: {error}"
    done, wanted = sum(one.done for one in known), sum(len(one.wanted) for one in known)
    return f"{sum(not one.left for one in known)} of {len(known)}", f"{done} of {wanted}", found.title


def show_parts(
    screen: Console, found: Campaign, known: Sequence[Outlook], runs: Sequence[Result], *, cells: bool = False
) -> None:
    """The parts of a campaign on this machine, whose runs are ``runs``; with a row for each of their ``cells``, if that
    is asked for, and of its protocols what they can show."""
    screen.print(Text(found.title, style="bold"))
    left = [one for one in known if not one.is_done]
    show(screen, [
        ListColumn("part", [one.on.part.name for one in known], kept=True),
        ListColumn("cells", [str(len(one.steps) - len(one.unfit)) for one in known], right=True),
        ListColumn("rounds", [str(one.on.part.repeats) for one in known], right=True),
        ListColumn("runs done", [f"{one.progress.done} of {len(one.progress.wanted)}" for one in known], right=True),
        ListColumn("whole", [_time(one.whole) for one in known], right=True),
        ListColumn("left", [_left(one) for one in known], right=True, kept=True),
        ListColumn("what it is for", [_reason(one) for one in known]),
    ])  # fmt: skip
    seconds = sum(one.left for one in left)
    times = plan_view.UNPRICED if math.isnan(seconds) else "times are predicted for this machine"
    whole = ", ".join(filter(None, [f"{len(left)} of {len(known)} parts are left", _time(seconds)]))
    screen.print(Text(f"{whole if left else 'all parts are done'}; {times}{_hidden(found, known)}", style="dim"))
    most = sum(outlook.most for outlook in left)
    if most > seconds:
        screen.print(Text(f"{_time(most)} at most, if every grid grows as far as its protocol lets it", style="dim"))
    for line in _powers([outlook.on for outlook in known], runs):
        screen.print(line, markup=False, highlight=False, soft_wrap=True)
    for one in known if cells else ():
        screen.print()
        plan_view.show_plan(screen, f"{one.on.part.name}, one round", one.steps, None)


def _powers(parts: Sequence[PartOn], runs: Sequence[Result]) -> list[str]:
    """What the protocols of the parts can show, a line for each model and task."""
    from zobench.report import power

    specs = {part.contest.cells[0]: part.contest for part in parts if part.contest}
    by_model = {f"{spec.model}, {spec.task_name}": contest for spec, contest in specs.items()}
    return [f"{which}: {power.of_contest(contest, runs)}" for which, contest in by_model.items()]


def _hidden(found: Campaign, known: Sequence[Outlook]) -> str:
    """How many parts of the campaign only ``--more`` runs, unless they are shown."""
    shown = {one.on.part.name for one in known}
    count = sum(part.more and part.name not in shown for part in found.parts)
    return f"; {beyond(count)}: --more" if count else ""


def beyond(count: int) -> str:
    return f"{count} more {'part goes' if count == 1 else 'parts go'} beyond what it is for"


def _time(seconds: float) -> str:
    """A duration; "" for one of which nothing is known."""
    return "" if math.isnan(seconds) else duration(seconds)


def _left(one: Outlook) -> str:
    if not one.progress.wanted:
        return "not here"
    if one.is_done:
        return "done"
    return f"{_time(one.left)} to {_time(one.most)}" if one.most > one.left else _time(one.left)


def _reason(one: Outlook) -> str:
    """What the part is for, and what of it this machine is too small for."""
    if not one.unfit:
        return one.on.part.reason
    cells = "1 cell" if len(one.unfit) == 1 else f"{len(one.unfit)} cells"
    return f"{one.on.part.reason}; not here: {cells}, the first {one.unfit[0].reason}"


def show_ahead(screen: Console, found: Campaign, parts: Sequence[PartOn], gpu: str) -> None:
    """The parts of a campaign as predicted for a GPU that need not be here. Raises ``ValueError`` for one of a CPU."""
    if found.device != "cuda":
        raise ValueError(f"`--gpu` is for campaigns of a GPU, but {found.name} is of a CPU; leave it out")
    place = hardware.load(gpu)
    known = [ahead(on, place) for on in parts]
    screen.print(Text(f"{found.title}; predicted for {place.name}", style="bold"))
    show(screen, [
        ListColumn("part", [on.part.name for on in parts], kept=True),
        ListColumn("cells", [str(len(one.cells)) for one in known], right=True),
        ListColumn("rounds", [str(on.part.repeats) for on in parts], right=True),
        ListColumn("predicted", [duration(one.seconds) if one.cells else "-" for one in known], right=True, kept=True),
        ListColumn("what it is for", [
            on.part.reason + (f"; too large: {', '.join(one.unfit)}" if one.unfit else "")
            for on, one in zip(parts, known, strict=True)
        ]),
    ])  # fmt: skip
    whole = sum(one.seconds for one in known)
    told = f"all parts: {duration(whole)}, predicted; none is meant to take longer than {found.longest}"
    screen.print(Text(told, style="dim"))
