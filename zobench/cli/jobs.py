"""Commands of sweeps that run elsewhere: submitting one to Slurm or to the local pool, status, cancel."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from zobench import recipes
from zobench.cli import console
from zobench.cli.common import Results, app, changed
from zobench.cli.matrices import Terminal
from zobench.cli.usage import ELSEWHERE
from zobench.session.inputs import check_folder, check_results, parse_outcomes, parse_seconds
from zobench.store import Store

if TYPE_CHECKING:
    from zobench.session.submitted import ExecutorOptions

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
    from zobench.execute import jobs
    from zobench.session import submitted

    check_results(results)
    ended = 0
    sweeps = submitted.submissions(results, name)
    for submission, states in sweeps:
        if left := [state for state in states if state.state in (*jobs.ACTIVE, "unknown")]:
            submitted.cancel(submission)
            print(f"cancelled {submission.name} {submission.id}: {jobs.counts(left)}")
            ended += len(left)
    if not sweeps:
        print(f"no sweep was submitted into {results}")
    if not ended:
        print("nothing is queued or running")


def submit_matrix(
    name: str, changes: list[str] | None, device: str, results: Path, timeout: str | None, retry: str,
    disk_dir: Path | None, dry_run: bool, executor: ExecutorOptions,
) -> None:  # fmt: skip
    """Plans the matrix ``name`` and submits the cells that are not done; with ``dry_run`` only shows the plan."""
    from zobench.session.machine import LocalMachine
    from zobench.session.submitted import Handover, results_option

    values = changed(changes)
    device = str(values.pop("device", device))
    handover = Handover(
        path=recipes.find("runners", name), changes=values, retry=parse_outcomes(retry),
        timeout=parse_seconds("--timeout", timeout), disk_dir=disk_dir, dry=dry_run,
    )  # fmt: skip
    check_results(results)
    executor.check_device(device)
    store, screen = Store(results), Terminal(dry=dry_run, verbose=True)
    if executor.name == "slurm":
        handed_over = handover.to_slurm(store, device, executor.request(), screen)
    else:
        check_folder("--disk-dir", disk_dir)
        session = LocalMachine(store, device, disk_dir=disk_dir, monitor=screen, dry=dry_run)
        handed_over = handover.to_pool(session, executor.jobs)
    if handed_over is not None:
        submission, where = handed_over
        again = f"{submission.name}{results_option(results)}"
        count = len(submission.cells)
        print(
            f"{count} cell{'' if count == 1 else 's'} handed over {where}; "
            f"`zobench status {again}` shows them, `zobench cancel {again}` ends them"
        )
