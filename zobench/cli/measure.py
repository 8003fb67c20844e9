"""Commands that measure: sweep, ablate, run, doctor."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from zobench.cli.common import (
    Budget,
    Changes,
    Device,
    DeviceMemory,
    DiskDir,
    DryRun,
    Executor,
    Gres,
    Jobs,
    Json,
    Partition,
    Rendezvous,
    Results,
    Retry,
    Slurm,
    Time,
    Timeout,
    app,
    changed,
    check_file,
    check_folder,
    check_results,
    named,
    parse_outcomes,
    parse_seconds,
)
from zobench.cli.show import table_text

if TYPE_CHECKING:
    from rich.console import Console

    from zobench.recipes.matrix import Matrix
    from zobench.runspec import RunSpec
    from zobench.store import Store


@app.command()
def sweep(
    name: Annotated[str, typer.Argument(metavar="NAME|FILE", help="A matrix of `zobench list`, or a .toml file.")],
    changes: Changes = None, device: Device = "auto", results: Results = Path("results"), budget: Budget = None,
    timeout: Timeout = None, retry: Retry = "failed,contaminated", disk_dir: DiskDir = None, dry_run: DryRun = False,
    device_memory: DeviceMemory = None, executor: Executor = "here", jobs: Jobs = None, partition: Partition = None,
    gres: Gres = None, time: Time = None, slurm: Slurm = None, rendezvous: Rendezvous = None,
) -> None:  # fmt: skip
    """Run a matrix of cells and print its tables, or hand it over (--executor local, slurm).

    Each cell that fits this machine runs in a fresh process. Finished cells are not run again: the same command goes
    on where it stopped.
    """
    from zobench.cli.jobs import Wanted, submit_matrix, submits

    changes = named(changes, device_memory=device_memory)
    wanted = Wanted(executor=executor, jobs=jobs, partition=partition, gres=gres, time=time, slurm=tuple(slurm or ()))
    submitted = submits(wanted, budget)
    if submitted and rendezvous is not None:
        raise ValueError(
            f"`--rendezvous` needs --executor here, but got --executor {executor}; leave it out: jobs on several nodes "
            "find a place of their own"
        )
    meet_at(rendezvous)
    if submitted:
        submit_matrix(name, changes, device, results, timeout, retry, disk_dir, dry_run, wanted)
        return
    run_matrix(name, changes, device, results, budget, timeout, retry, disk_dir, dry_run)


@app.command()
def ablate(
    changes: Changes = None, device: Device = "auto", results: Results = Path("results"), budget: Budget = None,
    timeout: Timeout = None, retry: Retry = "failed,contaminated", disk_dir: DiskDir = None, dry_run: DryRun = False,
) -> None:  # fmt: skip
    """Sweep the matrix `ablation`: ZO2 less one mechanism each."""
    run_matrix("ablation", changes, device, results, budget, timeout, retry, disk_dir, dry_run)


@app.command()
def run(
    model: Annotated[str | None, typer.Option(help="A model of `zobench list models`.")] = None,
    engine: Annotated[str | None, typer.Option(help="resident (MeZO) or offload (ZO2).")] = None,
    changes: Changes = None, device: Device = "auto", device_memory: DeviceMemory = None,
    output: Json = None, timeout: Timeout = None, disk_dir: DiskDir = None, rendezvous: Rendezvous = None,
) -> None:  # fmt: skip
    """Measure one cell in a fresh process."""
    from zobench.cli import console
    from zobench.execute import plan
    from zobench.execute.process import check_start, failed, leads, run_in_process
    from zobench.machine.device import check_devices, choose_device
    from zobench.predict import footprint
    from zobench.recipes import matrix
    from zobench.result import Outcome
    from zobench.runspec import SEQ_LEN

    values = changed(named(changes, model=model, engine=engine, device_memory=device_memory))
    bound, quiet = parse_seconds("--timeout", timeout), output == "-"
    check_folder("--disk-dir", disk_dir)
    if output is not None and not quiet:
        check_file("--json", Path(output))
    chosen, why = choose_device(str(values.pop("device", device)))
    spec = matrix.single(values, chosen)
    if rendezvous is not None and spec.nodes == 1:
        raise ValueError("`--rendezvous` needs nodes > 1, but got nodes=1; leave it out, or add --set nodes=2")
    meet_at(rendezvous)
    check_start(spec, bound)
    check_devices(spec)
    need, reason = footprint.memory(spec), footprint.fit(spec)[1]
    errors = console.error_console()
    if not quiet:
        errors.print(why, style="dim")
        if reason:
            errors.print(reason, style="dim")
        if "seq_len" not in values and spec.seq_len < SEQ_LEN:
            errors.print(f"seq_len: {spec.seq_len}, because {spec.model} has {spec.seq_len} positions", style="dim")
    if missing := plan.lacking(need, plan.limits("cpu", disk_dir)) if chosen == "cpu" else "":
        result = failed(spec, Outcome.SKIPPED, missing)
    else:
        with nullcontext() if quiet else errors.status(f"measuring {spec.label}"):
            result = run_in_process(spec, timeout=bound, disk_dir=disk_dir)
    if not quiet or result.outcome is not Outcome.OK:
        errors.print(console.outcome_line(result), soft_wrap=True)
        console.show_warnings(errors, result.warnings)
    text = json.dumps(result.to_dict(), indent=1, allow_nan=False)
    if quiet and leads():
        print(text)
    elif output is not None and leads():
        Path(output).write_text(text + "\n")
    raise typer.Exit(0 if result.outcome is Outcome.OK else 1)


@app.command()
def doctor(device: Device = "auto", disk_dir: DiskDir = None) -> None:
    """Say what is here, what is missing, and how fast it is."""
    from zobench.cli import console
    from zobench.machine.device import choose_device
    from zobench.measure import doctor as examination

    chosen, why = choose_device(device)
    errors = console.error_console()
    errors.print(why, style="dim")
    with errors.status("measuring, a few seconds"):
        rows = examination.report(chosen, disk_dir)
    console.show_doctor(rows)


def run_matrix(
    name: str, changes: list[str] | None, device: str, results: Path, budget: str | None, timeout: str | None,
    retry: str, disk_dir: Path | None, dry_run: bool, tables: Sequence[str] | None = None,
    wanted: Callable[[RunSpec], bool] | None = None,
) -> None:  # fmt: skip
    """Plans and runs the matrix ``name``, stores each result, and prints ``tables``, or else the matrix's own.

    Ends in ``typer.Exit``, but for a dry run.
    """
    from zobench import predict, recipes
    from zobench.cli import console
    from zobench.cli.jobs import refuse_twice
    from zobench.execute import plan
    from zobench.execute import sweep as runner
    from zobench.execute.process import torchrun_ranks
    from zobench.machine.device import choose_device
    from zobench.measure.environment import fingerprint_without_torch
    from zobench.report import artifacts
    from zobench.result import Outcome
    from zobench.store import Store

    if torchrun_ranks():
        raise ValueError("a sweep starts the ranks of its cells, but torchrun has started it; leave torchrun out")
    values = changed(changes)
    bound, again = parse_seconds("--timeout", timeout), parse_outcomes(retry)
    path = recipes.find("runners", name)
    check_folder("--disk-dir", disk_dir)
    check_results(results)
    chosen, why = choose_device(str(values.pop("device", device)))
    cells, specs, memory_note = matrix_cells(path, chosen, values)
    if wanted is not None and not (specs := tuple(spec for spec in specs if wanted(spec))):
        raise ValueError(f"the matrix {name} must make a run that is shown, but makes none here; name another runner")
    refuse_twice(results, specs)
    limit = parse_seconds("--budget", budget or cells.budget)
    told = cells.tables if tables is None else tables
    for recipe_name in told:  # a mistake in them should not wait for the end of the sweep
        artifacts.load(recipe_name)
    facts, errors, store = fingerprint_without_torch(), console.error_console(), Store(results)
    errors.print(f"{why}; machine {facts['machine']} ({facts['description']})", style="dim", soft_wrap=True)
    if memory_note:
        errors.print(memory_note, style="dim", soft_wrap=True)
    with errors.status("measuring this machine's rates, once"):
        measured = plan.calibration(results, facts["machine"], chosen, disk_dir)
    for note in measured["notes"]:
        if note.startswith("not kept"):
            errors.print(f"warning: this machine's rates were {note}", style="yellow", markup=False, soft_wrap=True)
    rates = predict.Rates.of(measured)
    steps = plan.make(specs, store, facts["machine"], rates, plan.limits(chosen, disk_dir), again)
    for problem in store.problems:
        errors.print(f"not read: {problem}", style="yellow", markup=False, soft_wrap=True)
    console.show_plan(console.answer_console() if dry_run else errors, cells.title, steps, limit)
    if dry_run:
        return
    with keeping(store, errors):
        refuse_twice(results, specs)  # again: nothing kept a sweep from being submitted before this one had the lock
        with console.SweepProgress(errors, steps) as bar:
            progress = runner.SweepHooks(begin=bar.begin, tick=bar.tick, end=bar.end)
            summary = runner.sweep(
                steps, store, budget=limit, timeout=bound, disk_dir=disk_dir, calibration=measured, progress=progress
            )
    console.show_summary(errors, summary.results, summary.unsaved, summary.interrupted)
    for recipe_name in told:
        print("\n" + table_text(recipe_name, results, "terminal", facts["machine"], summary.results), end="")
    if summary.interrupted:
        raise typer.Exit(130)
    broken = summary.unsaved or any(result.outcome is Outcome.FAILED for result in summary.results)
    raise typer.Exit(1 if broken else 0)


def meet_at(endpoint: str | None) -> None:
    """Lets the processes of cells on several nodes meet at ``endpoint``, if it is given. Raises ``ValueError``."""
    from zobench.machine.network import parse_endpoint

    if endpoint is not None:
        parse_endpoint(endpoint, "--rendezvous")
        os.environ["ZOBENCH_RENDEZVOUS"] = endpoint


@contextmanager
def keeping(store: Store, errors: Console) -> Iterator[None]:
    """Keeps other sweeps out of ``store`` meanwhile, or says that nothing can be kept there."""
    from zobench.store import StoreError

    with ExitStack() as during:
        try:
            during.enter_context(store.lock())
        except StoreError as error:
            told = f"warning: nothing will be kept: {error.strerror}"
            errors.print(told, style="yellow", markup=False, soft_wrap=True)
        yield


def matrix_cells(path: Path, device: str, values: dict[str, Any]) -> tuple[Matrix, tuple[RunSpec, ...], str]:
    """The matrix in ``path`` on ``device``, its cells with ``values``, and what to say of a ``device_memory`` there."""
    from zobench.recipes import matrix

    changes = {key: value for key, value in values.items() if key != "device_memory"}
    cells, size = matrix.load(path, device, changes), values.get("device_memory", 0)
    return cells, *(limited_cells(cells.cells, size, path.name) if size else (cells.cells, ""))


def limited_cells(cells: Sequence[RunSpec], size: int, name: str) -> tuple[tuple[RunSpec, ...], str]:
    """``cells`` with ``device_memory=size`` where a planner has something to choose, each once, and what to say of it.

    Raises ``ValueError`` if none has.
    """
    from zobench.predict.footprint import limited
    from zobench.runspec import size_text

    found = tuple(dict.fromkeys(limited(cell, size) for cell in cells))
    held = sum(cell.device_memory == size for cell in found)
    if not held:
        raise ValueError(
            f"`device_memory` needs a cell with engine=offload and noise=counter, but {name} has none; "
            "leave it out, or add --set engine=offload --set noise=counter"
        )
    others = "; the others are resident or have torch noise, which leaves a planner no choice"
    note = f"device_memory={size_text(size)} holds for {held} of {len(found)} cells"
    return found, note + (others if held < len(found) else "")
