"""Commands of sweeps that run elsewhere: submitting one to Slurm or to the local pool, status, cancel."""

from __future__ import annotations

import contextlib
import datetime
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from zobench.cli.common import Results, app, changed, check_folder, check_results, parse_outcomes, parse_seconds

if TYPE_CHECKING:
    from rich.console import Console

    from zobench.execute.jobs import CellState, Submission
    from zobench.execute.slurm import Request
    from zobench.spec import RunSpec
    from zobench.store import Store

Name = Annotated[str | None, typer.Argument(metavar="[NAME]", help="A submitted sweep's name or id [all].")]


@app.command()
def status(name: Name = None, results: Results = Path("results")) -> None:
    """Show the cells of submitted sweeps: queued, running, done."""
    from zobench import console

    check_results(results)
    for submission, states in _chosen(results, name):
        _show(console.answer_console(), submission, states)


@app.command()
def cancel(name: Name = None, results: Results = Path("results")) -> None:
    """End the jobs of submitted sweeps; finished cells stay."""
    from zobench.execute import jobs

    check_results(results)
    ended = 0
    for submission, states in _chosen(results, name):
        if left := [state for state in states if state.state in jobs.ACTIVE]:
            jobs.mark_cancelled(submission)
            _backend(submission).cancel(submission)
            print(f"cancelled {submission.name} {submission.id}: {_counts(left)}")
            ended += len(left)
    if not ended:
        print("nothing is queued or running")


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """The options of ``sweep`` that a submitted one has beside those of every sweep, as they were typed."""

    executor: str
    jobs: int | None
    partition: str | None
    gres: str | None
    time: str | None
    slurm: Sequence[str]


def submits(wanted: Wanted, budget: str | None) -> bool:
    """Whether the sweep is handed over. Raises ``ValueError`` for options that do not go with its executor."""
    from zobench.spec import suggestion

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
    """Plans the matrix ``name`` and hands over the cells that are not done; with ``dry_run`` only says so."""
    from zobench import recipe
    from zobench.cli.measure import matrix_cells
    from zobench.execute import slurm
    from zobench.store import Store

    values, bound, again = changed(changes), parse_seconds("--timeout", timeout), parse_outcomes(retry)
    path = recipe.find("runners", name)
    check_results(results)
    request = slurm.Request(
        partition=wanted.partition, gres=wanted.gres, time=parse_seconds("--time", wanted.time) or slurm.TIME,
        side_by_side=wanted.jobs, more=slurm.parse_options(wanted.slurm),
    )  # fmt: skip
    device = str(values.pop("device", device))
    store, common = Store(results), {"name": path.stem, "retry": tuple(sorted(again)), "submitted": time.time()}
    common["disk_dir"] = None if disk_dir is None else str(disk_dir.absolute())
    if wanted.executor == "slurm":
        chosen, why = _device_there(device, request)
        cells, specs, note = matrix_cells(path, chosen, values)
        seconds = min(bound or request.cell_seconds, request.cell_seconds)
        with contextlib.nullcontext() if dry_run else store.lock():
            _to_slurm(specs, store, request, common | {"timeout": seconds}, (cells.title, why, note), dry_run)
    else:
        from zobench.measure.device import choose_device

        check_folder("--disk-dir", disk_dir)
        chosen, why = choose_device(device)
        cells, specs, note = matrix_cells(path, chosen, values)
        with contextlib.nullcontext() if dry_run else store.lock():
            _to_pool(
                specs, store, wanted.jobs, common | {"timeout": bound}, (cells.title, why, note), disk_dir, dry_run
            )


def _to_slurm(
    specs: Sequence[RunSpec], store: Store, request: Request, common: dict[str, Any], told: tuple[str, str, str],
    dry_run: bool,
) -> None:  # fmt: skip
    from zobench import console
    from zobench.execute import jobs, slurm

    if not dry_run:
        slurm.check()
    earlier = jobs.submissions(store.root)
    kept = jobs.kept(specs, store, jobs.machines(earlier, "slurm", request.place), common["retry"])
    cells = tuple(spec for spec in specs if spec not in kept)
    screen = console.answer_console() if dry_run else console.error_console()
    _say(screen, told[1:])
    _show_plan(screen, told[0], specs, cells, [_asks(slurm.resources(request, spec)) for spec in cells])
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
    _handed_over(submission, f"to Slurm as job {', '.join(ids)}")


def _to_pool(
    specs: Sequence[RunSpec], store: Store, side_by_side: int | None, common: dict[str, Any],
    told: tuple[str, str, str], disk_dir: Path | None, dry_run: bool,
) -> None:  # fmt: skip
    from zobench import console, predict
    from zobench.execute import jobs, plan, pool, slurm
    from zobench.measure.environment import fingerprint_without_torch

    slurm.submitit_or_remedy()
    device, facts = specs[0].device, fingerprint_without_torch()
    gpus = plan.gpu_uuids() if device.startswith("cuda") else ()
    count = pool.workers(specs, gpus, side_by_side)
    screen = console.answer_console() if dry_run else console.error_console()
    _say(screen, (f"{told[1]}; machine {facts['machine']} ({facts['description']})", told[2]))
    with console.error_console().status("measuring this machine's rates, once"):
        measured = plan.calibration(store.root, facts["machine"], device, disk_dir)
    room = plan.limits(device, disk_dir)
    steps = plan.make(specs, store, facts["machine"], predict.Rates.of(measured), room, common["retry"])
    console.show_plan(screen, told[0], steps, None)
    cells = tuple(step.spec for step in steps if step.action != "keep")
    refuse_twice(store.root, cells)
    if dry_run or not cells:
        return
    submission = jobs.Submission(
        folder=jobs.new_folder(store.root), executor="local", cells=cells, groups=(tuple(range(len(cells))),),
        place=pool.here(), gpus=gpus, **common,
    )  # fmt: skip
    submission.write()
    names = pool.submit(submission, min(count, len(cells)))
    _handed_over(submission, f"to {len(names)} {'workers' if len(names) > 1 else 'worker'} in the background")


def refuse_twice(results: Path, cells: Sequence[RunSpec]) -> None:
    """Raises :class:`zobench.store.BusyError` if a submitted sweep has one of ``cells`` queued or running."""
    from zobench.execute import jobs
    from zobench.store import BusyError

    wanted = {spec.hash for spec in cells}
    for submission in jobs.submissions(results):
        twice = [s for s in _states(submission) if s.state in jobs.ACTIVE and s.spec.hash in wanted]
        if twice:
            name = submission.name
            raise BusyError(
                f"a cell must be in one sweep at a time, but {len(twice)} of these are queued or running in {name} "
                f"{submission.id}; wait for it (zobench status), end it (zobench cancel {submission.id}), "
                "or name another --results"
            )


def _device_there(wanted: str, request: Request) -> tuple[str, str]:
    """(device, reason) on the nodes: what this machine has says nothing about them."""
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
    from zobench.spec import suggestion

    found = jobs.submissions(results)
    known = dict.fromkeys([one.name for one in found] + [one.id for one in found])
    if name is not None and name not in known:
        remedy = suggestion(name, known) if known else "submit one with `zobench sweep NAME --executor slurm`"
        raise ValueError(f"no sweep {name!r} was submitted into {results}; {remedy}")
    if not found:
        print(f"no sweep was submitted into {results}")
    newest = {one.name: one.id for one in found}
    rows = []
    for one in found:
        if name is None or name in (one.name, one.id):
            states = _states(one)
            if one.id in (newest[one.name], name) or any(state.state in jobs.ACTIVE for state in states):
                rows.append((one, states))
    return rows


def _states(submission: Submission) -> list[CellState]:
    from zobench.execute import jobs

    said = [jobs.progress(submission, cell) for cell in range(len(submission.cells))]
    over = all(one is not None and one.outcome for one in said)
    return jobs.states(submission, {} if over else _backend(submission).look(submission))


def _backend(submission: Submission) -> Any:
    from zobench.execute import pool, slurm

    return {"slurm": slurm, "local": pool}[submission.executor]


def _handed_over(submission: Submission, where: str) -> None:
    print(
        f"{len(submission.cells)} cells handed over {where}; "
        f"`zobench status {submission.name}` shows them, `zobench cancel {submission.name}` ends them"
    )


def _say(screen: Console, lines: Sequence[str]) -> None:
    for line in lines:
        if line:
            screen.print(line, style="dim", markup=False, soft_wrap=True)


def _asks(asked: dict[str, Any]) -> str:
    """``--time=60 --gres=gpu:1``: what a job asks for beyond one process on one node."""
    plain = {"nodes": 1, "ntasks_per_node": 1}
    rest = {key.replace("_", "-"): value for key, value in asked.items() if value != plain.get(key, False)}
    return " ".join(f"--{key}" if value is True else f"--{key}={value}" for key, value in rest.items())


def _show_plan(
    screen: Console, title: str, specs: Sequence[RunSpec], cells: Sequence[RunSpec], asked: Sequence[str]
) -> None:
    """One line per cell, done or to submit; then what the jobs ask for."""
    from rich.text import Text

    from zobench.console import columns, shared_words

    shared = shared_words([spec.label for spec in specs])
    screen.print(Text(f"{title}; all cells: {' '.join(shared)}" if shared else title, style="bold"))
    table = columns("cell", "plan")
    for spec in specs:
        words, style = ("submit", "") if spec in cells else ("done", "green")
        cell = " ".join(word for word in spec.label.split() if word not in shared) or "this one"
        table.add_row(Text(cell, style=style), Text(words, style=style))
    screen.print(table)
    for words in dict.fromkeys(asked):
        screen.print(Text(f"{asked.count(words)} jobs of one cell each: {words}", style="dim"), soft_wrap=True)
    screen.print(Text(f"{len(cells)} of {len(specs)} cells to submit", style="bold"))


STYLES = {"done": "green", "running": "bold", "queued": "", "failed": "red", "lost": "red"}


def _show(screen: Console, submission: Submission, states: Sequence[CellState]) -> None:
    """One sweep: how many cells are where, then one line per cell."""
    from rich.text import Text

    from zobench.console import columns, shared_words
    from zobench.execute.plan import duration
    from zobench.store import printable

    shared = shared_words([state.spec.label for state in states])
    when = datetime.datetime.fromtimestamp(submission.submitted).strftime("%Y-%m-%d %H:%M")
    screen.print(Text(f"{submission.name} {submission.id}: {_counts(states)}", style="bold"), soft_wrap=True)
    told = f"{submission.executor}, {submission.place or 'default partition'}, since {when}"
    screen.print(Text(f"{told}; all cells: {' '.join(shared)}" if shared else told, style="dim"), soft_wrap=True)
    table = columns("cell", "job", "state", "where", "time", "why")
    for state in states:
        cell = " ".join(word for word in state.spec.label.split() if word not in shared) or "this one"
        spent = "" if state.seconds is None else duration(state.seconds)
        texts = (cell, state.job, _word(state), state.host, spent, state.reason)
        table.add_row(*(Text(printable(text), style=STYLES.get(_word(state), "yellow")) for text in texts))
    screen.print(table)
    if any(state.state in ("lost", "failed") for state in states):
        screen.print(Text(f"what the jobs said: {submission.log}", style="dim"), soft_wrap=True)


def _word(state: CellState) -> str:
    return "done" if state.state == "ok" else state.state


def _counts(states: Sequence[CellState]) -> str:
    """``7 done, 2 running, 3 queued``."""
    words = [_word(state) for state in states]
    order = ("done", "running", "queued", *words)
    return ", ".join(f"{words.count(word)} {word}" for word in dict.fromkeys(order) if word in words)
