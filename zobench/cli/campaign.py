"""The command campaign: a list of sweeps over several evenings, each when it fits, on a machine that is idle."""

from __future__ import annotations

import shlex
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from zobench.cli.checks import check_folder, check_results
from zobench.cli.common import DiskDir, Results, Retry, app, parse_outcomes, parse_seconds
from zobench.cli.usage import MEASURE

if TYPE_CHECKING:
    from zobench.execute.campaign import Outlook
    from zobench.execute.sweep import Summary
    from zobench.recipes.campaign import Campaign, PartOn
    from zobench.result import Result


@app.command(rich_help_panel=MEASURE)
def campaign(
    name: Annotated[str | None, typer.Argument(metavar="[NAME|FILE]", help="A campaign [list them].")] = None,
    plan: Annotated[
        bool, typer.Option("--plan", "--dry-run", help="Show the parts, what is done and predicted, and stop.")
    ] = False,
    part: Annotated[str | None, typer.Option(metavar="PART", help="Only this part.")] = None,
    more: Annotated[bool, typer.Option("--more", help="Also the parts beyond what the campaign is for.")] = False,
    gpu: Annotated[
        str | None, typer.Option(metavar="GPU", help="Show the parts as predicted for a GPU that is not here.")
    ] = None,
    budget: Annotated[
        str | None, typer.Option(metavar="TIME", help="Stop before a part that would not fit: 90s, 10m, 2h30m.")
    ] = None,
    busy: Annotated[bool, typer.Option("--busy", help="Measure also while others use the machine.")] = False,
    retry: Retry = "none", results: Results = Path("results"), disk_dir: DiskDir = None,
) -> None:  # fmt: skip
    """Measure every cost of the papers at the size of this machine, part by part, over several evenings.

    The same command goes on where it stopped: a round of a part that was interrupted is run anew. Without a name: which
    campaigns there are, and how far they are here.
    """
    from zobench import recipes
    from zobench.cli import campaign_view, console
    from zobench.cli.matrices import refuse_torchrun
    from zobench.recipes import campaign as campaigns

    check_results(results)
    check_folder("--disk-dir", disk_dir)
    seconds = parse_seconds("--budget", budget)
    if name is None:
        if part is not None or gpu is not None or budget is not None or more:
            raise ValueError(
                "`--part`, `--more`, `--gpu` and `--budget` are of one campaign, but none is named; add its NAME"
            )
        campaign_view.show_campaigns(console.answer_console(), results)
        return
    found = campaigns.load(recipes.find("campaigns", name))
    for word in ("timeout", "longest", "selftest"):
        parse_seconds(f"{found.name}: {word}", getattr(found, word))
    if gpu is not None:
        campaign_view.show_ahead(console.answer_console(), found, _chosen(found, "cuda:0", part, more), gpu)
        return
    run = Run(found, name, results, disk_dir, retry=parse_outcomes(retry), busy=busy, dry=plan, more=more)
    known = run.outlooks(part)
    campaign_view.show_parts(console.answer_console(), found, known, run.runs, cells=part is not None)
    if not plan:
        refuse_torchrun()
        run.go(known, seconds)


def _chosen(found: Campaign, device: str, wanted: str | None, more: bool) -> list[PartOn]:
    """The parts of a campaign on ``device``, with those beyond what it is for if ``more``; or the one called
    ``wanted``."""
    from zobench.predict.budget import price
    from zobench.runspec import suggestion

    names = [part.name for part in found.parts]
    if wanted is not None and wanted not in names:
        raise ValueError(f"`--part` must be one of the campaign's, but got {wanted!r}; {suggestion(wanted, names)}")
    parts = found.on(device, price)
    if wanted is not None:
        return [on for on in parts if on.part.name == wanted]
    return [on for on in parts if more or not on.part.more]


class Run:
    """A campaign on this machine: what is left of it, and the doing of that. ``given``: how it was named; ``dry``: it
    is only looked at, and no rates are measured for that; ``more``: with the parts beyond what it is for."""

    def __init__(
        self, found: Campaign, given: str, results: Path, disk_dir: Path | None, *, retry: Collection[str],
        busy: bool, dry: bool, more: bool,
    ) -> None:  # fmt: skip
        from zobench.cli import console
        from zobench.cli.here import Here
        from zobench.store import Store

        self._device, why = _device(found)
        self._campaign, self._given, self._results, self._disk_dir = found, given, results, disk_dir
        self._retry, self._busy, self._more = retry, busy, more
        self._errors, self._store = console.error_console(), Store(results)
        self._here = Here(self._store, self._device, why, disk_dir, self._errors, dry=dry)
        self.runs: list[Result] = []

    def outlooks(self, wanted: str | None) -> list[Outlook]:
        """What is left of the parts: see :func:`_chosen`."""
        from zobench.execute import campaign, plan

        parts = _chosen(self._campaign, self._device, wanted, self._more)
        _check_turns(parts)
        room, rates = plan.limits(self._device, self._disk_dir), self._here.rates_now
        self.runs = runs = self._store.runs(self._here.machine)
        for problem in self._store.problems:
            self._here.say(f"not read: {problem}", "yellow")
        return [campaign.outlook(on, runs, rates, room, self._retry) for on in parts]

    def go(self, known: Sequence[Outlook], budget: float | None) -> None:
        """Runs the parts that are left, in order, as long as ``budget`` seconds hold the next one. Ends in
        ``typer.Exit``: with 130 if it was interrupted, 1 if a run failed or could not be stored."""
        end, broken = None if budget is None else time.monotonic() + budget, False
        left = [outlook for outlook in known if not outlook.is_done]
        if left:
            self._check_idle()
            self._selftest()
        for number, outlook in enumerate(left):
            if number:
                self._check_idle()
            rest = None if end is None else end - time.monotonic()
            if rest is not None and outlook.left > rest:
                self._stop(outlook, rest)
                break
            summary = self._measure(outlook, f"{number + 1} of {len(left)}", rest)
            broken = broken or bool(summary.unsaved) or any(str(one.outcome) == "failed" for one in summary.results)
            if summary.interrupted:
                self._here.say("stopped; the same command goes on from here", "yellow")
                raise typer.Exit(130)
        self._close()
        raise typer.Exit(1 if broken else 0)

    def _check_idle(self) -> None:
        """Raises ``ValueError`` if others use the machine, unless that was allowed."""
        from zobench.execute.idle import lasting_disturbance

        if not self._busy and (why := lasting_disturbance(self._device)):
            raise ValueError(f"a campaign needs an idle machine, but {why}; wait for them, or add --busy")

    def _selftest(self) -> None:
        from zobench.cli.selftest_first import selftest_first

        seconds = parse_seconds(f"{self._campaign.name}: selftest", self._campaign.selftest)
        if seconds is not None:
            here = self._here
            selftest_first(self._results, here.machine, self._device, seconds, self._disk_dir, here.say)

    def _stop(self, outlook: Outlook, rest: float) -> None:
        from zobench.execute.plan import duration

        self._here.say(
            f"stops before {outlook.on.part.name}, which needs {duration(outlook.left)} (predicted): "
            f"{duration(max(0.0, rest))} of the budget are left", "yellow",
        )  # fmt: skip

    def _measure(self, outlook: Outlook, place: str, budget: float | None) -> Summary:
        """Runs what is left of a part, and says what it came to."""
        from zobench.cli.matrices import Asked, measure_part
        from zobench.execute.plan import duration

        part, count = outlook.on.part, len(outlook.progress.left)
        self._here.say(
            f"\npart {place}, {part.name}: {part.reason}; {count} runs, {duration(outlook.left)} (predicted)", "bold"
        )
        asked = Asked(
            name=part.matrix, changes=None, device=self._device, results=self._results, budget=None,
            timeout=self._campaign.timeout, retry=",".join(self._retry), disk_dir=self._disk_dir, dry_run=False,
            part=part.changes, first_round=outlook.on.first, repeats=part.repeats, interleave=True,
            turns=part.turns, tables=(),
        )  # fmt: skip
        begin = time.monotonic()
        summary = measure_part(asked, self._here, budget)
        self._here.say(f"{part.name}: {_counted(summary.results)} in {duration(time.monotonic() - begin)}", "bold")
        for reason in dict.fromkeys(summary.unsaved):
            self._here.say(f"not saved: {reason}", "red")
        return summary

    def _close(self) -> None:
        """Says what is left of the whole campaign, and how the results are shown and sent."""
        from zobench.cli.campaign_view import beyond
        from zobench.execute.campaign import fitting, part_progress

        runs = self._store.runs(self._here.machine)
        parts = _chosen(self._campaign, self._device, None, self._more)
        here = {on.part.name: fitting(on.cells, runs) for on in parts}
        waiting = [on.part.name for on in parts if part_progress(on, runs).left]
        skipped = sum(len(on.cells) - len(here[on.part.name]) for on in parts)
        folder = shlex.quote(str(self._results))
        where = "" if self._results == Path("results") else f" --results {folder}"
        again = f"zobench campaign {shlex.quote(self._given)}{where}"
        told = [f"left: {', '.join(waiting)}; to go on: {again}{' --more' * self._more}"] if waiting else []
        if skipped:
            which = "cell was skipped, as it" if skipped == 1 else "cells were skipped, as they"
            when = "when it was" if skipped == 1 else "when they were"
            told.append(f"{skipped} {which} did not fit {when} planned; --plan looks again")
        told += [f"all tables, figures and machines: zobench report{where} --out report"]
        if hidden := len(self._campaign.parts) - len(parts):
            told.append(f"{beyond(hidden)}: {again} --more")
        if not waiting:
            archive = f"{self._here.machine}-{self._campaign.name}.tar.gz"
            told.append(f"to send it: zobench results {folder} --pack {archive} (docs/campaigns.md)")
        for line in told:
            self._here.say(line, "default")


def _check_turns(parts: Sequence[PartOn]) -> None:
    """Raises ``ValueError``, before anything is measured, for a part in turns with a cell that cannot take them."""
    from zobench.execute import together

    for on in parts:
        try:
            together.check(on.cells if on.part.turns else ())
        except ValueError as error:
            raise ValueError(f"part {on.part.name}: {error}") from None


def _counted(results: Sequence[Result]) -> str:
    counts: dict[str, int] = {}
    for result in results:
        counts[str(result.outcome)] = counts.get(str(result.outcome), 0) + 1
    return "cells " + (", ".join(f"{count} {outcome}" for outcome, count in counts.items()) or "none finished")


def _device(found: Campaign) -> tuple[str, str]:
    """The device that a campaign measures, and the reason. Raises ``ValueError`` without one."""
    from zobench.machine.device import choose_device

    try:
        return choose_device(found.device)
    except ValueError as error:
        raise ValueError(
            f"the campaign {found.name} needs a CUDA device, but none is visible; add --gpu h100-sxm to see what it "
            "would take"
        ) from error
