"""The command campaign: a list of sweeps over several evenings, each when it fits, on a machine that is idle."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from zobench import recipes
from zobench.cli import console
from zobench.cli.common import DiskDir, Results, Retry, app
from zobench.cli.usage import MEASURE
from zobench.session.inputs import check_folder, check_results, parse_outcomes, parse_seconds
from zobench.store import Store

if TYPE_CHECKING:
    from zobench.recipes.campaign import Campaign
    from zobench.session.campaigns import CampaignRun
    from zobench.session.machine import LocalMachine


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
    from zobench.cli import campaign_view
    from zobench.cli.matrices import Terminal
    from zobench.recipes import campaign as campaigns
    from zobench.session.campaigns import CampaignRun, campaign_session, chosen_parts
    from zobench.session.matrices import refuse_torchrun

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
    definition = campaigns.load(recipes.find("campaigns", name))
    if gpu is not None:
        parts = chosen_parts(definition, "cuda:0", part, more=more)
        campaign_view.show_ahead(console.answer_console(), definition, parts, gpu)
        return
    parse_outcomes(retry)
    session = campaign_session(definition, Store(results), disk_dir=disk_dir, monitor=Terminal(), dry=plan)
    run = CampaignRun(session, definition, retry=retry, busy=busy, more=more)
    outlooks, runs = run.outlooks(part)
    campaign_view.show_parts(console.answer_console(), definition, outlooks, runs, cells=part is not None)
    if plan:
        return
    refuse_torchrun()
    summary = run.go(outlooks, seconds)
    if summary.interrupted:
        session.say("stopped; the same command goes on from here", "yellow")
        raise typer.Exit(130)
    _close(session, run, definition, name)
    raise typer.Exit(int(summary.is_broken))


def _close(session: LocalMachine, run: CampaignRun, definition: Campaign, given: str) -> None:
    """Says what is left of the whole campaign, which was named as ``given``, and how the results are shown and sent."""
    from zobench.cli.campaign_view import beyond
    from zobench.execute.campaign import fitting, part_progress

    results = session.store.root
    runs, parts = session.store.runs(session.machine), run.parts()
    waiting = [on.part.name for on in parts if part_progress(on, runs).left]
    skipped = sum(len(on.cells) - len(fitting(on.cells, runs)) for on in parts)
    folder = shlex.quote(str(results))
    where = "" if results == Path("results") else f" --results {folder}"
    again = f"zobench campaign {shlex.quote(given)}{where}"
    hidden = len(definition.parts) - len(parts)
    lines = [f"left: {', '.join(waiting)}; to go on: {again}{' --more' * run.more}"] if waiting else []
    if skipped:
        which = "cell was skipped, as it" if skipped == 1 else "cells were skipped, as they"
        when = "when it was" if skipped == 1 else "when they were"
        lines.append(f"{skipped} {which} did not fit {when} planned; --plan looks again")
    lines += [f"all tables, figures and machines: zobench report{where} --out report"]
    if hidden:
        lines.append(f"{beyond(hidden)}: {again} --more")
    if not waiting:
        archive = f"{session.machine}-{definition.name}.tar.gz"
        lines.append(f"to send it: zobench results {folder} --pack {archive} (docs/campaigns.md)")
    for line in lines:
        session.say(line, "default")
