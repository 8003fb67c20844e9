"""Commands of sweeps that run elsewhere: submitting one to Slurm or to the local pool, status, cancel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from zobench import recipes
from zobench.cli import console
from zobench.cli.common import Results, app, changed
from zobench.cli.matrices import Terminal
from zobench.cli.usage import ELSEWHERE
from zobench.runspec import suggestion
from zobench.session.inputs import check_folder, check_results, parse_outcomes, parse_seconds
from zobench.store import Store

Name = Annotated[str | None, typer.Argument(metavar="[NAME]", help="A submitted sweep's name or id [all].")]


@app.command(rich_help_panel=ELSEWHERE)
def status(name: Name = None, results: Results = Path("results")) -> None:
    """Show the cells of submitted sweeps: queued, running, done."""
    from zobench.cli import plan_view
    from zobench.session.submitted import submissions

    check_results(results)
    sweeps = submissions(results, name)
    for submission, states in sweeps:
        plan_view.show_submission(console.answer_console(), submission, states)
    if not sweeps:
        print(f"no sweep was submitted into {results}")


@app.command(rich_help_panel=ELSEWHERE)
def cancel(name: Name = None, results: Results = Path("results")) -> None:
    """End the jobs of submitted sweeps; finished cells stay."""
    from zobench.cli import plan_view
    from zobench.execute import jobs
    from zobench.session import submitted

    check_results(results)
    ended = 0
    sweeps = submitted.submissions(results, name)
    for submission, states in sweeps:
        if left := [state for state in states if state.state in (*jobs.ACTIVE, "unknown")]:
            submitted.cancel(submission)
            print(f"cancelled {submission.name} {submission.id}: {plan_view.counts(left)}")
            ended += len(left)
    if not sweeps:
        print(f"no sweep was submitted into {results}")
    if not ended:
        print("nothing is queued or running")


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """The options of ``sweep`` on where it runs, as they were typed."""

    executor: str
    jobs: int | None
    partition: str | None
    gres: str | None
    time: str | None
    slurm: Sequence[str]


def submits(wanted: Wanted, budget: str | None) -> bool:
    """Whether the sweep is submitted and does not run here. Raises ``ValueError`` for options of another executor."""
    known = ("here", "local", "slurm")
    if wanted.executor not in known:
        told = suggestion(wanted.executor, known)
        raise ValueError(f"`--executor` must be here, local or slurm, but got {wanted.executor!r}; {told}")
    for option in ("partition", "gres", "time", "slurm"):
        if getattr(wanted, option) and wanted.executor != "slurm":
            raise ValueError(f"`--{option}` needs --executor slurm, but got --executor {wanted.executor}; leave it out")
    if wanted.executor == "here" and wanted.jobs is not None:
        raise ValueError("`--jobs` needs --executor local or slurm, but got --executor here; leave it out")
    if wanted.jobs is not None and wanted.jobs < 1:
        raise ValueError(f"`--jobs >= 1` must hold, but got {wanted.jobs}; leave it out for the usual number")
    if wanted.executor != "here" and budget is not None:
        raise ValueError(
            "`--budget` is for cells that run one after the other, but got "
            f"--executor {wanted.executor}; use --timeout{' or --time' if wanted.executor == 'slurm' else ''}"
        )
    return wanted.executor != "here"


def submit_matrix(
    name: str, changes: list[str] | None, device: str, results: Path, timeout: str | None, retry: str,
    disk_dir: Path | None, dry_run: bool, wanted: Wanted,
) -> None:  # fmt: skip
    """Plans the matrix ``name`` and submits the cells that are not done; with ``dry_run`` only shows the plan."""
    from zobench.execute import slurm
    from zobench.session.machine import LocalMachine
    from zobench.session.submitted import Handover, results_option

    values = changed(changes)
    device = str(values.pop("device", device))
    handover = Handover(
        path=recipes.find("runners", name), changes=values, retry=parse_outcomes(retry),
        timeout=parse_seconds("--timeout", timeout), disk_dir=disk_dir, dry=dry_run,
    )  # fmt: skip
    check_results(results)
    if device.startswith("cuda:") and device != "cuda:0":
        raise ValueError(
            f"`device` must be auto, cpu or cuda with --executor {wanted.executor}, which gives each cell its GPUs, "
            f"but got {device}; use --device cuda, and CUDA_VISIBLE_DEVICES or --gres to say which"
        )
    store, screen = Store(results), Terminal(dry=dry_run, verbose=True)
    if wanted.executor == "slurm":
        request = slurm.Request(
            partition=wanted.partition, gres=wanted.gres, time=parse_seconds("--time", wanted.time) or slurm.TIME,
            side_by_side=wanted.jobs, more=slurm.parse_options(wanted.slurm),
        )  # fmt: skip
        handed_over = handover.to_slurm(store, device, request, screen)
    else:
        check_folder("--disk-dir", disk_dir)
        session = LocalMachine(store, device, disk_dir=disk_dir, monitor=screen, dry=dry_run)
        handed_over = handover.to_pool(session, wanted.jobs)
    if handed_over is not None:
        submission, where = handed_over
        again = f"{submission.name}{results_option(results)}"
        count = len(submission.cells)
        print(
            f"{count} cell{'' if count == 1 else 's'} handed over {where}; "
            f"`zobench status {again}` shows them, `zobench cancel {again}` ends them"
        )
