"""Commands of sweeps that run elsewhere: submitting one to Slurm or to the local pool, status, cancel."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from zobench.cli.common import Results, app, changed
from zobench.cli.usage import ELSEWHERE
from zobench.session.inputs import check_folder, check_results, parse_outcomes, parse_seconds
from zobench.session.submitted import backend, cell_states, refuse_twice, results_option

if TYPE_CHECKING:
    from zobench.execute.jobs import CellState, Submission
    from zobench.execute.slurm import Request
    from zobench.runspec import RunSpec
    from zobench.store import Store

Name = Annotated[str | None, typer.Argument(metavar="[NAME]", help="A submitted sweep's name or id [all].")]


@app.command(rich_help_panel=ELSEWHERE)
def status(name: Name = None, results: Results = Path("results")) -> None:
    """Show the cells of submitted sweeps: queued, running, done."""
    from zobench.cli import console, jobs_view

    check_results(results)
    for submission, states in _chosen(results, name):
        jobs_view.show(console.answer_console(), submission, states)


@app.command(rich_help_panel=ELSEWHERE)
def cancel(name: Name = None, results: Results = Path("results")) -> None:
    """End the jobs of submitted sweeps; finished cells stay."""
    from zobench.cli import jobs_view
    from zobench.execute import jobs

    check_results(results)
    ended = 0
    for submission, states in _chosen(results, name):
        if left := [state for state in states if state.state in (*jobs.ACTIVE, "unknown")]:
            _check_reach(submission)
            jobs.mark_cancelled(submission)
            backend(submission).cancel(submission)
            print(f"cancelled {submission.name} {submission.id}: {jobs_view.counts(left)}")
            ended += len(left)
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
    from zobench.runspec import suggestion

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
    from zobench import recipes
    from zobench.execute import slurm
    from zobench.session.cells import matrix_cells
    from zobench.store import Store

    values, bound, again = changed(changes), parse_seconds("--timeout", timeout), parse_outcomes(retry)
    path, device = recipes.find("runners", name), str(values.pop("device", device))
    check_results(results)
    if device.startswith("cuda:") and device != "cuda:0":
        raise ValueError(
            f"`device` must be auto, cpu or cuda with --executor {wanted.executor}, which gives each cell its GPUs, "
            f"but got {device}; use --device cuda, and CUDA_VISIBLE_DEVICES or --gres to say which"
        )
    request = slurm.Request(
        partition=wanted.partition, gres=wanted.gres, time=parse_seconds("--time", wanted.time) or slurm.TIME,
        side_by_side=wanted.jobs, more=slurm.parse_options(wanted.slurm),
    )  # fmt: skip
    _refuse_protocol(path, wanted.executor)
    store, common = Store(results), {"name": path.stem, "retry": tuple(sorted(again)), "submitted": time.time()}
    common["disk_dir"] = None if disk_dir is None else str(disk_dir.absolute())
    if wanted.executor == "slurm":
        chosen, why = _device_there(device, request)
        cells, specs, note = matrix_cells(path, chosen, values)
        seconds = min(bound or request.cell_seconds, request.cell_seconds)
        with contextlib.nullcontext() if dry_run else store.lock():
            _to_slurm(specs, store, request, common | {"timeout": seconds}, (cells.title, why, note), dry_run)
    else:
        from zobench.machine.device import choose_device

        check_folder("--disk-dir", disk_dir)
        chosen, why = choose_device(device)
        cells, specs, note = matrix_cells(path, chosen, values)
        with contextlib.nullcontext() if dry_run else store.lock():
            _to_pool(
                specs, store, wanted.jobs, common | {"timeout": bound}, (cells.title, why, note), disk_dir, dry_run
            )


def _refuse_protocol(path: Path, executor: str) -> None:
    """Raises ``ValueError`` for a protocol: which runs come second is known when the first are done."""
    from zobench.recipes import matrix

    if matrix.protocol_of(path) is not None:
        raise ValueError(
            f"the protocol {path.name} must run with --executor here, because its winners are known only when its "
            f"grids have run, but got --executor {executor}; leave it out"
        )


def _to_slurm(
    specs: Sequence[RunSpec], store: Store, request: Request, common: dict[str, Any], told: tuple[str, str, str],
    dry_run: bool,
) -> None:  # fmt: skip
    from zobench.cli import console, jobs_view
    from zobench.execute import jobs, slurm

    if not dry_run:
        slurm.check()
    earlier = jobs.submissions(store.root)
    kept = jobs.kept(specs, store, jobs.machines(earlier, "slurm", request.place), common["retry"])
    cells = tuple(spec for spec in specs if spec not in kept)
    screen = console.answer_console() if dry_run else console.error_console()
    jobs_view.say(screen, told[1:])
    jobs_view.show_plan(
        screen, told[0], specs, cells, [jobs_view.asks(slurm.resources(request, spec)) for spec in cells]
    )
    refuse_twice(store.root, cells)
    if dry_run or not cells:
        return
    submission = jobs.Submission(
        folder=jobs.new_folder(store.root), executor="slurm", cells=cells, groups=slurm.groups(cells),
        place=request.place, **common,
    )  # fmt: skip
    submission.write()
    try:
        ids = slurm.submit(submission, request)
    except ValueError:
        shutil.rmtree(submission.folder)
        raise
    _handed_over(submission, store.root, f"to Slurm as job {', '.join(ids)}")


def _to_pool(
    specs: Sequence[RunSpec], store: Store, side_by_side: int | None, common: dict[str, Any],
    told: tuple[str, str, str], disk_dir: Path | None, dry_run: bool,
) -> None:  # fmt: skip
    from zobench.cli import console, jobs_view, plan_view
    from zobench.execute import jobs, plan, pool
    from zobench.execute.rates import are_known
    from zobench.execute.submitit import submitit_or_remedy
    from zobench.measure.environment import fingerprint_without_torch

    submitit_or_remedy()
    device, facts = specs[0].device, fingerprint_without_torch()
    gpus = plan.gpu_uuids() if device.startswith("cuda") else ()
    screen = console.answer_console() if dry_run else console.error_console()
    jobs_view.say(screen, (f"{told[1]}; machine {facts['machine']} ({facts['description']})", told[2]))
    where = (specs, store, facts["machine"], device, common["retry"], disk_dir)
    if dry_run and not are_known(store.root, facts["machine"], device, disk_dir):
        steps = plan.unpriced(*where).steps
    else:
        with console.error_console().status("measuring this machine's rates, once"):
            steps = plan.here(*where).steps
    plan_view.show_plan(screen, told[0], steps, None)
    cells = tuple(step.spec for step in steps if step.action != "keep")
    refuse_twice(store.root, cells)
    if dry_run or not cells:
        return
    submission = jobs.Submission(
        folder=jobs.new_folder(store.root), executor="local", cells=cells, groups=(tuple(range(len(cells))),),
        place=pool.here(), gpus=gpus, **common,
    )  # fmt: skip
    submission.write()
    names = pool.submit(submission, pool.workers(cells, gpus, side_by_side))
    _handed_over(submission, store.root, f"to {jobs_view.number(len(names), 'worker')} in the background")


def _device_there(wanted: str, request: Request) -> tuple[str, str]:
    """(device, reason) of the jobs, by what they ask Slurm for: this machine's devices need not be the nodes'."""
    from zobench.execute.slurm import wants_gpus

    if wanted == "auto":
        gpus = wants_gpus(request)
        return ("cuda:0", "device: cuda:0, because the jobs ask for GPUs") if gpus else (
            "cpu", "device: cpu, because the jobs ask for no GPU (--gres gpu:1 does)")  # fmt: skip
    if wanted.startswith("cuda") and not wants_gpus(request):
        raise ValueError(f"`device={wanted}` needs jobs with a GPU, but got no --gres; add --gres gpu:1")
    return ("cuda:0" if wanted == "cuda" else wanted), f"device: {wanted}, as asked"


def _chosen(results: Path, name: str | None) -> list[tuple[Submission, list[CellState]]]:
    """The newest sweep of every name, and older ones that have cells to come; or those of ``name`` alone."""
    from zobench.execute import jobs
    from zobench.runspec import suggestion

    sweeps = jobs.submissions(results)
    known = dict.fromkeys([one.name for one in sweeps] + [one.id for one in sweeps])
    if name is not None and name not in known:
        remedy = suggestion(name, known) if known else "submit one with `zobench sweep NAME --executor slurm`"
        raise ValueError(f"no sweep {name!r} was submitted into {results}; {remedy}")
    if not sweeps:
        print(f"no sweep was submitted into {results}")
    newest = {one.name: one.id for one in sweeps}
    rows = []
    for one in sweeps:
        if name is None or name in (one.name, one.id):
            states = cell_states(one)
            if one.id in (newest[one.name], name) or any(state.state in jobs.ACTIVE for state in states):
                rows.append((one, states))
    return rows


def _check_reach(submission: Submission) -> None:
    """Raises ``ValueError`` if the sweep's jobs cannot be ended from this machine."""
    from zobench.execute import pool, slurm

    if submission.executor == "slurm":
        slurm.check()
    else:
        pool.check(submission)


def _handed_over(submission: Submission, results: Path, where: str) -> None:
    from zobench.cli import jobs_view

    typed = f"{submission.name}{results_option(results)}"
    print(
        f"{jobs_view.number(len(submission.cells), 'cell')} handed over {where}; "
        f"`zobench status {typed}` shows them, `zobench cancel {typed}` ends them"
    )
