"""Commands that measure: sweep, ablate, run, doctor, selftest."""

from __future__ import annotations

import json
import os
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from zobench.cli import completion
from zobench.cli.checks import check_json
from zobench.cli.common import (
    BatchSize,
    Budget,
    Changes,
    DetectWarmUp,
    Device,
    DeviceMemory,
    DiskDir,
    DryRun,
    Dtype,
    Engine,
    Executor,
    Gres,
    Interleave,
    Jobs,
    Json,
    Model,
    Name,
    Partition,
    Price,
    Quiet,
    Rendezvous,
    Repeats,
    Results,
    Retry,
    SeqLen,
    Slurm,
    Task,
    Time,
    Timeout,
    Turns,
    Until,
    Verbose,
    app,
    changed,
    named,
)
from zobench.cli.matrices import run_matrix
from zobench.cli.usage import KEPT, MEASURE
from zobench.session.inputs import check_folder, check_price, check_results, parse_seconds

if TYPE_CHECKING:
    from zobench.cost import Estimate
    from zobench.result import Result
    from zobench.runspec import RunSpec

Kept = Annotated[
    Path | None,
    typer.Option("--results", metavar="DIR", rich_help_panel=KEPT, help="Keep the result there, as a sweep does."),
]


@app.command(rich_help_panel=MEASURE)
def sweep(
    name: Annotated[str, typer.Argument(
        metavar="NAME|FILE", help="A matrix of `zobench list`, or a .toml file.", autocompletion=completion.matrices
    )],
    seq_len: SeqLen = None, dtype: Dtype = None, batch_size: BatchSize = None,
    changes: Changes = None, device: Device = "auto", results: Results = Path("results"), budget: Budget = None,
    timeout: Timeout = None, retry: Retry = "failed,contaminated", disk_dir: DiskDir = None, dry_run: DryRun = False,
    device_memory: DeviceMemory = None, executor: Executor = "here", jobs: Jobs = None, partition: Partition = None,
    gres: Gres = None, time: Time = None, slurm: Slurm = None, rendezvous: Rendezvous = None, task: Task = None,
    repeats: Repeats = None, until: Until = None, interleave: Interleave = None, turns: Turns = False,
    detect_warm_up: DetectWarmUp = False, price: Price = None, verbose: Verbose = False, quiet: Quiet = False,
) -> None:  # fmt: skip
    """Run a matrix of cells and print its tables, or hand it over (--executor local, slurm).

    Each cell that fits this machine runs in a fresh process. Finished cells are not run again: the same command goes
    on where it stopped. A matrix may say itself how often its cells run.
    """
    from zobench.cli.jobs import Wanted, submit_matrix, submits

    changes = named(
        changes, device_memory=device_memory, task=task, seq_len=seq_len, dtype=dtype, batch_size=batch_size
    )
    wanted = Wanted(executor=executor, jobs=jobs, partition=partition, gres=gres, time=time, slurm=tuple(slurm or ()))
    submitted = submits(wanted, budget)
    if submitted and rendezvous is not None:
        raise ValueError(
            f"`--rendezvous` needs --executor here, but got --executor {executor}; leave it out: jobs on several nodes "
            "find a place of their own"
        )
    check_price(price)
    of_rounds = (repeats, until, interleave, turns, detect_warm_up, price)
    if submitted and of_rounds != (None, None, None, False, False, None):
        raise ValueError(
            "`--repeats` needs --executor here, whose rounds are of one machine, and so do --until, --interleave, "
            f"--turns, --detect-warm-up and --price, but got --executor {executor}; leave them out"
        )
    meet_at(rendezvous)
    if submitted:
        submit_matrix(name, changes, device, results, timeout, retry, disk_dir, dry_run, wanted)
        return
    run_matrix(
        name, changes, device, results, disk_dir, dry_run=dry_run, verbose=verbose, budget=budget, timeout=timeout,
        retry=retry, repeats=repeats, until=until, interleave=interleave, turns=turns, detect_warm_up=detect_warm_up,
        price=price,
    )  # fmt: skip


@app.command(rich_help_panel=MEASURE)
def ablate(
    model: Model = None, name: Name = None,
    seq_len: SeqLen = None, dtype: Dtype = None, batch_size: BatchSize = None,
    changes: Changes = None, device: Device = "auto", results: Results = Path("results"), budget: Budget = None,
    timeout: Timeout = None, retry: Retry = "failed,contaminated", disk_dir: DiskDir = None, dry_run: DryRun = False,
    device_memory: DeviceMemory = None, executor: Executor = "here", jobs: Jobs = None, partition: Partition = None,
    gres: Gres = None, time: Time = None, slurm: Slurm = None,
    repeats: Repeats = None, until: Until = None, interleave: Interleave = None, turns: Turns = False,
    detect_warm_up: DetectWarmUp = False, price: Price = None, verbose: Verbose = False, quiet: Quiet = False,
) -> None:  # fmt: skip
    """Sweep the matrix `ablation`: ZO2 less one mechanism each, of the matrix's models or of one."""
    sweep(
        "ablation", changes=named(changes, model=model, name=name), seq_len=seq_len, dtype=dtype,
        batch_size=batch_size, device=device, results=results, budget=budget,
        timeout=timeout, retry=retry, disk_dir=disk_dir, dry_run=dry_run, device_memory=device_memory,
        executor=executor, jobs=jobs, partition=partition, gres=gres, time=time, slurm=slurm, repeats=repeats,
        until=until, interleave=interleave, turns=turns, detect_warm_up=detect_warm_up, price=price, verbose=verbose,
        quiet=quiet,
    )  # fmt: skip


@app.command(rich_help_panel=MEASURE)
def run(
    model: Model = None,
    name: Name = None,
    engine: Engine = None,
    seq_len: SeqLen = None, dtype: Dtype = None, batch_size: BatchSize = None,
    changes: Changes = None, device: Device = "auto", device_memory: DeviceMemory = None,
    output: Json = None, timeout: Timeout = None, disk_dir: DiskDir = None, rendezvous: Rendezvous = None,
    task: Task = None, results: Kept = None, quiet: Quiet = False,
) -> None:  # fmt: skip
    """Measure one cell in a fresh process."""
    from zobench.cost import footprint
    from zobench.execute.process import check_start, leads
    from zobench.machine.device import check_devices, choose_device
    from zobench.recipes import matrix
    from zobench.result import Outcome
    from zobench.runspec import check_effect
    from zobench.store import Store

    given = {"model": model, "name": name, "engine": engine, "device_memory": device_memory, "task": task}
    values = changed(named(changes, **given, seq_len=seq_len, dtype=dtype, batch_size=batch_size))
    bound, silent = parse_seconds("--timeout", timeout), output == "-"
    check_folder("--disk-dir", disk_dir)
    check_json(output)
    if results is not None:
        check_results(results)
    wanted = str(values.pop("device", device))
    asked = matrix.asked(values)
    check_effect(asked, values)
    chosen, why = choose_device(wanted)
    spec = asked.resolve(chosen)
    if rendezvous is not None and spec.nodes == 1:
        raise ValueError("`--rendezvous` needs nodes > 1, but got nodes=1; leave it out, or add --set nodes=2")
    meet_at(rendezvous)
    check_start(spec, bound)
    check_devices(spec)
    need = footprint.memory(spec)
    if not silent:
        _say_choices(spec, why, seq_len_given="seq_len" in values)
    result = _measured(spec, need, bound, disk_dir, silent)
    if results is not None and leads():
        Store(results).save(result)
    _show(result, output)
    raise typer.Exit(0 if result.outcome is Outcome.OK else 1)


def meet_at(endpoint: str | None) -> None:
    """Sets ``endpoint`` (HOST:PORT), if given, as where the nodes of a cell meet. Raises ``ValueError`` for others."""
    from zobench.machine.network import parse_endpoint

    if endpoint is not None:
        parse_endpoint(endpoint, "--rendezvous")
        os.environ["ZOBENCH_RENDEZVOUS"] = endpoint


def _say_choices(spec: RunSpec, why: str, *, seq_len_given: bool) -> None:
    """Says what was chosen for the cell: its device (``why``), what lies in device memory, its sequence length."""
    from zobench.cli import console
    from zobench.cost import footprint
    from zobench.runspec import SEQ_LEN

    errors = console.error_console()
    errors.print(why, style="dim")
    if reason := footprint.fit(spec)[1]:
        errors.print(reason, style="dim")
    if spec.config_hash and spec.weights == "random":
        told = f"weights: random, as {spec.model}'s config.json says; its own with --set weights=pretrained"
        errors.print(told, style="dim", markup=False, soft_wrap=True)
    if not seq_len_given and spec.seq_len < SEQ_LEN:
        errors.print(f"seq_len: {spec.seq_len}, because {spec.model} has {spec.seq_len} positions", style="dim")


_LONG = {"cpu": 1e13, "cuda": 1e15}
"""Operations that may take a minute: then it is worth the seconds in which the machine's rates are measured, once."""
_MINUTE = 60.0


def _foreseen(spec: RunSpec, disk_dir: Path | None, quiet: bool) -> Estimate | None:
    """What a cell that may take a minute is predicted to take; unless ``quiet`` it is said, where it is that long.

    A ``quiet`` one is predicted only where its interval of write-backs follows from that.
    """
    from zobench import cost
    from zobench.cli import console
    from zobench.cost import interval
    from zobench.execute import plan
    from zobench.execute.rates import calibration
    from zobench.measure.environment import fingerprint_without_torch
    from zobench.models import cache

    count, errors = spec.steps + spec.warmup, console.error_console()
    short = count * cost.operations(spec) < _LONG[spec.device.partition(":")[0]]
    if short or (quiet and not interval.is_open(spec)):
        return None
    try:
        with errors.status("measuring this machine's rates, once"):
            machine = fingerprint_without_torch()["machine"]
            rates = calibration(cache.root(), machine, spec.device, disk_dir)
    except OSError as error:
        errors.print(f"time: not predicted ({error})", style="dim", markup=False, soft_wrap=True)
        return None
    guess = cost.estimate(spec, cost.Rates.of(rates))
    told = [guess.consolidation.reason] if guess.consolidation else []
    if guess.seconds > _MINUTE:
        each = plan.duration(guess.step_seconds)
        told.append(f"time: about {plan.duration(guess.seconds)} (predicted): {count} steps of {each}")
    for line in told if not quiet else ():
        errors.print(line, style="dim", markup=False, soft_wrap=True)
    return guess


def _measured(
    spec: RunSpec, need: tuple[int, int, int], timeout: float | None, disk_dir: Path | None, quiet: bool
) -> Result:
    """The cell's result; it is skipped, and no process started, if the (device, host, disk) bytes that it needs are not
    free. Ranks of torchrun's do not look on a GPU: others of them take its memory already. ``timeout`` in seconds.
    """
    from zobench.cli import console
    from zobench.execute import plan
    from zobench.execute.outcome import failed
    from zobench.execute.process import run_in_process, torchrun_ranks
    from zobench.result import Outcome

    alone = spec.device == "cpu" or not torchrun_ranks()
    if alone and (missing := plan.lacking(need, plan.limits(spec.device, disk_dir))):
        return failed(spec, Outcome.SKIPPED, f"{missing}; {plan.remedy(spec)}")
    guess = _foreseen(spec, disk_dir, quiet) if alone else None
    with nullcontext() if quiet else console.error_console().status(f"measuring {spec.label}"):
        written = None if guess is None else guess.consolidation
        return run_in_process(spec, timeout=timeout, disk_dir=disk_dir, written=written)


def _show(result: Result, output: str | None) -> None:
    """Shows the result, and writes it as JSON to the file ``output``; "-" prints only the JSON, and why it failed."""
    from zobench.cli import console
    from zobench.execute.process import leads
    from zobench.result import Outcome
    from zobench.store import without_place

    quiet, errors = output == "-", console.error_console()
    if not quiet or result.outcome is not Outcome.OK:
        screen = errors if result.outcome is Outcome.OK else console.alarm(errors)
        screen.print(console.outcome_line(result), soft_wrap=True)
        console.show_warnings(errors, result.warnings)
    text = json.dumps(without_place(result).to_dict(), indent=1, allow_nan=False)
    if quiet and leads():
        print(text)
    elif output is not None and leads():
        Path(output).write_text(text + "\n")


@app.command(rich_help_panel=MEASURE)
def doctor(device: Device = "auto", disk_dir: DiskDir = None, quiet: Quiet = False) -> None:
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


@app.command(rich_help_panel=MEASURE)
def selftest(
    device: Device = "auto",
    minutes: Annotated[float, typer.Option(help="About how long it takes.")] = 10.0,
    only: Annotated[list[str] | None, typer.Option(metavar="CHECK", help="Run this check alone; repeatable.")] = None,
    changes: Changes = None, output: Json = None, disk_dir: DiskDir = None, quiet: Quiet = False,
) -> None:  # fmt: skip
    """Check on this device that zobench is right and fast: a verdict of one page, and a JSON to attach to an issue."""
    from zobench.cli import console
    from zobench.machine.device import choose_device
    from zobench.selftest import run as checks

    if not 0 < minutes < float("inf"):
        raise ValueError(f"`--minutes > 0` must hold, but got {minutes:g}; leave it out for 10")
    wanted, values = checks.chosen(only or []), changed(changes)
    check_folder("--disk-dir", disk_dir)
    check_json(output)
    chosen, why = choose_device(str(values.pop("device", device)))
    errors = console.error_console()
    errors.print(why, style="dim")
    with errors.status("checking") as line:
        found = checks.selftest(
            chosen, minutes * 60, wanted, values, disk_dir, lambda check: line.update(f"checking: {check.name}")
        )
    text = json.dumps(found.to_dict(), indent=1, allow_nan=False)
    print(text if output == "-" else found.page())
    if output not in (None, "-"):
        Path(str(output)).write_text(text + "\n")
    raise typer.Exit(1 if found.failed else 0)
