"""Commands that measure: sweep, ablate, run, doctor, selftest, calibrate, campaign; status and cancel of sweeps."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from zobench import recipes
from zobench.cli import common, completion, console
from zobench.cli.common import ELSEWHERE, KEPT, MEASURE, app, changed, named
from zobench.cli.matrices import Terminal, run_matrix
from zobench.machine.device import check_devices
from zobench.machine.network import meet_at
from zobench.machine.processes import leads
from zobench.measure.environment import fingerprint_without_torch
from zobench.result import Outcome, Result
from zobench.result.repeats import number_of
from zobench.runspec import check_effect
from zobench.session import inputs
from zobench.store import Store, machine_of, without_place

if TYPE_CHECKING:
    from zobench.session.submitted import ExecutorOptions

Kept = Annotated[
    Path | None,
    typer.Option("--results", metavar="DIR", rich_help_panel=KEPT, help="Keep the result there, as a sweep does."),
]


@app.command(rich_help_panel=MEASURE)
def sweep(
    name: Annotated[str, typer.Argument(
        metavar="NAME|FILE", help="A matrix of `zobench list`, or a .toml file.", autocompletion=completion.matrices
    )],
    seq_len: common.SeqLen = None, dtype: common.Dtype = None, batch_size: common.BatchSize = None,
    changes: common.Changes = None, device: common.Device = "auto", results: common.Results = Path("results"),
    budget: common.Budget = None,
    timeout: common.Timeout = None, retry: common.Retry = "failed,contaminated", disk_dir: common.DiskDir = None,
    dry_run: common.DryRun = False,
    device_memory: common.DeviceMemory = None, executor: common.Executor = "here", jobs: common.Jobs = None,
    partition: common.Partition = None,
    gres: common.Gres = None, time: common.Time = None, slurm: common.Slurm = None,
    rendezvous: common.Rendezvous = None, task: common.Task = None,
    repeats: common.Repeats = None, until: common.Until = None, turns: common.Turns = False,
    detect_warm_up: common.DetectWarmUp = False, price: common.Price = None, verbose: common.Verbose = False,
    quiet: common.Quiet = False,
) -> None:  # fmt: skip
    """Run a matrix of cells and print its tables, or hand it over (--executor local, slurm).

    Each cell that fits this machine runs in a fresh process. Finished cells are not run again: the same command goes
    on where it stopped. A matrix may say itself how often its cells run.
    """
    from zobench.session.submitted import ExecutorOptions

    changes = named(
        changes, device_memory=device_memory, task=task, seq_len=seq_len, dtype=dtype, batch_size=batch_size
    )
    options = ExecutorOptions(
        name=executor, jobs=jobs, partition=partition, gres=gres, time=time, slurm=tuple(slurm or ())
    )
    submitted = options.submits(budget)
    if submitted and rendezvous is not None:
        raise ValueError(
            f"`--rendezvous` needs --executor here, but got --executor {executor}; leave it out: jobs on several nodes "
            "find a place of their own"
        )
    inputs.check_price(price)
    of_rounds = (repeats, until, turns, detect_warm_up, price)
    if submitted and of_rounds != (None, None, False, False, None):
        raise ValueError(
            "`--repeats` needs --executor here, whose rounds are of one machine, and so do --until, --turns, "
            f"--detect-warm-up and --price, but got --executor {executor}; leave them out"
        )
    meet_at(rendezvous)
    if submitted:
        submit_matrix(name, changes, device, results, timeout, retry, disk_dir, dry_run, options)
        return
    run_matrix(
        name, changes, device, results, disk_dir, dry_run=dry_run, verbose=verbose, budget=budget, timeout=timeout,
        retry=retry, repeats=repeats, until=until, turns=turns, detect_warm_up=detect_warm_up, price=price,
    )  # fmt: skip


@app.command(rich_help_panel=MEASURE)
@common.with_options_of(sweep, without=("name", "rendezvous", "task"))
def ablate(model: common.Model = None, name: common.Name = None, **options: Any) -> None:
    """Sweep the matrix `ablation`: ZO2 less one mechanism each, of the matrix's models or of one."""
    sweep("ablation", changes=named(options.pop("changes"), model=model, name=name), **options)


@app.command(rich_help_panel=MEASURE)
def run(
    model: common.Model = None,
    name: common.Name = None,
    engine: common.Engine = None,
    seq_len: common.SeqLen = None, dtype: common.Dtype = None, batch_size: common.BatchSize = None,
    changes: common.Changes = None, device: common.Device = "auto", device_memory: common.DeviceMemory = None,
    output: common.Json = None, timeout: common.Timeout = None, disk_dir: common.DiskDir = None,
    rendezvous: common.Rendezvous = None,
    task: common.Task = None, results: Kept = None, quiet: common.Quiet = False,
) -> None:  # fmt: skip
    """Measure one cell in a fresh process."""
    from zobench.execute.process import check_start
    from zobench.recipes import matrix
    from zobench.session.single import choices, measured

    fields = {"model": model, "name": name, "engine": engine, "device_memory": device_memory, "task": task}
    values = changed(named(changes, **fields, seq_len=seq_len, dtype=dtype, batch_size=batch_size))
    bound, silent = inputs.parse_seconds("--timeout", timeout), output == "-"
    inputs.check_disk(disk_dir)
    inputs.check_json(output)
    if results is not None:
        inputs.check_out("--results", results)
    wanted = str(values.pop("device", device))
    draft = matrix.asked(values)
    check_effect(draft, values)
    chosen, why = console.chosen_device(wanted)
    spec = draft.resolve(chosen)
    if rendezvous is not None and spec.nodes == 1:
        raise ValueError("`--rendezvous` needs nodes > 1, but got nodes=1; leave it out, or add --set nodes=2")
    meet_at(rendezvous)
    check_start(spec, bound)
    check_devices(spec)
    if not silent:
        console.say(why, *choices(spec, seq_len_given="seq_len" in values))
    result = measured(spec, Terminal(), timeout=bound, disk_dir=disk_dir, silent=silent)
    errors = console.error_console()
    if not (silent and result.is_ok):
        screen = errors if result.is_ok else console.alarm(errors)
        screen.print(console.outcome_line(result), soft_wrap=True)
        console.show_warnings(errors, result.warnings)
    if leads():
        console.write_json(output, without_place(result).to_dict())
        if results is not None:
            _keep(result, Store(results))
    raise typer.Exit(0 if result.is_ok else 1)


def _keep(result: Result, store: Store) -> None:
    """Stores ``result``, unless an earlier run of the cell says more: that ended ok, or this was skipped."""
    earlier = None if result.is_ok else store.find(result.spec, machine_of(result), number_of(result))
    if earlier is not None and (earlier.is_ok or result.outcome is Outcome.SKIPPED):
        console.say(f"{store.root} keeps the earlier run of this cell, which ended {earlier.outcome}")
    else:
        store.save(result)


@app.command(rich_help_panel=MEASURE)
def doctor(device: common.Device = "auto", disk_dir: common.DiskDir = None, quiet: common.Quiet = False) -> None:
    """Say what is here, what is missing, and how fast it is."""
    from zobench.measure import doctor as examination

    inputs.check_disk(disk_dir)
    chosen, why = console.chosen_device(device)
    console.say(why)
    with console.busy("measuring this machine"):
        rows = examination.report(chosen, disk_dir)
    console.show_doctor(rows)


@app.command(rich_help_panel=MEASURE)
def selftest(
    device: common.Device = "auto",
    minutes: Annotated[float, typer.Option(help="About how long it takes.")] = 10.0,
    only: Annotated[list[str] | None, typer.Option(metavar="CHECK", help="Run this check alone; repeatable.")] = None,
    changes: common.Changes = None, output: common.Json = None, disk_dir: common.DiskDir = None,
    quiet: common.Quiet = False,
) -> None:  # fmt: skip
    """Check on this device that zobench is right and fast: a verdict of one page, and a JSON to attach to an issue."""
    from zobench.selftest import run as checks

    if not 0 < minutes < float("inf"):
        raise ValueError(f"`--minutes > 0` must hold, but got {minutes:g}; leave it out for 10")
    wanted, values = checks.chosen(only or []), changed(changes)
    inputs.check_disk(disk_dir)
    inputs.check_json(output)
    chosen, why = console.chosen_device(str(values.pop("device", device)))
    console.say(why)
    with console.busy("checking") as change:
        verdict = checks.selftest(
            chosen, minutes * 60, wanted, values, disk_dir, lambda check: change(f"checking {check.name}")
        )
    if not console.write_json(output, verdict.to_dict()):
        console.answer_console().print(verdict.page(), markup=False, soft_wrap=True)
    raise typer.Exit(1 if verdict.failed else 0)


_Card = Annotated[
    str | None, typer.Option("--gpu", metavar="GPU", help="The card, of `zobench list gpus`; needed on a GPU.")
]
_SECONDS = 12.0  # of measuring; more than before a sweep, because the file is for later and for others


@app.command(rich_help_panel=MEASURE)
def calibrate(
    out: Annotated[Path, typer.Option("--out", metavar="FILE.toml", help="The file to write.")],
    gpu: _Card = None, device: common.Device = "auto",
) -> None:  # fmt: skip
    """Measure what this machine's GPU or CPU reaches, and write it as a file that plan and predict take as --gpu."""
    from zobench.cost.hardware import load, measured
    from zobench.execute.rates import BUSY_CORES

    if out.suffix != ".toml":
        raise ValueError(f"`--out` must end in .toml, but got {str(out)!r}; plan and predict know such a file by it")
    inputs.check_file("--out", out)
    chosen, why = console.chosen_device(device)
    if not chosen.startswith("cpu") and gpu is None:
        raise ValueError("`--gpu` must name the card, whose data sheet the file begins with, but is missing")
    if gpu is not None:
        if chosen.startswith("cpu"):
            raise ValueError(f"`--gpu` needs a GPU to be measured, but got --gpu {gpu} for {chosen}; leave it out")
        load(gpu)
    from zobench.measure import calibrate as measuring

    facts = fingerprint_without_torch()
    console.say(f"{why}; {facts.description}")
    with console.busy("measuring this machine"):
        rates = measuring.calibrate(chosen, _SECONDS)
    if (others := rates["other_cpu_cores"] or 0.0) > BUSY_CORES:
        raise ValueError(
            f"the machine must be idle to be measured, but other processes kept {others:.1f} cores busy; "
            "run it again when they are done"
        )
    console.write_text(out, measured.text_of(chosen, gpu, facts.description, rates))
    print(f"{out}: `zobench plan --model OPT-13B --gpu {out}`")


@app.command(rich_help_panel=MEASURE)
def campaign(
    name: Annotated[str | None, typer.Argument(metavar="[NAME|FILE]", help="A campaign [list them].")] = None,
    plan: Annotated[
        bool, typer.Option("--plan", "--dry-run", help="Show the parts, what is done and predicted, and stop.")
    ] = False,
    part: Annotated[str | None, typer.Option("--part", metavar="PART", help="Only this part.")] = None,
    more: Annotated[bool, typer.Option("--more", help="Also the parts beyond what the campaign is for.")] = False,
    budget: Annotated[
        str | None, typer.Option(metavar="TIME", help="Stop before a part that would not fit: 90s, 10m, 2h30m.")
    ] = None,
    busy: Annotated[bool, typer.Option("--busy", help="Measure also while others use the machine.")] = False,
    retry: common.Retry = "none", results: common.Results = Path("results"), disk_dir: common.DiskDir = None,
) -> None:  # fmt: skip
    """Measure every cost of the papers at the size of this machine, part by part, over several evenings.

    The same command goes on where it stopped. Times are compared within a round, so one that was interrupted is run
    again; a cell with a task counts by itself. Without a name: which campaigns there are, and how far they are here.
    """
    from zobench.cli import plan_view
    from zobench.recipes import campaign as campaigns
    from zobench.session.campaigns import CampaignRun, campaign_session

    inputs.check_results(results)
    inputs.check_disk(disk_dir)
    seconds = inputs.parse_seconds("--budget", budget)
    if name is None:
        if part is not None or budget is not None or more or busy or retry != "none" or disk_dir is not None:
            raise ValueError(
                "`--part`, `--more`, `--budget`, `--busy`, `--retry` and `--disk-dir` are of one campaign, but none is "
                "named; add its NAME"
            )
        plan_view.show_campaigns(console.answer_console(), results)
        return
    definition = campaigns.load(recipes.find("campaigns", name))
    session = campaign_session(definition, Store(results), disk_dir=disk_dir, monitor=Terminal(), dry=plan)
    run = CampaignRun(session, definition, retry=retry, busy=busy, more=more)
    outlooks, runs = run.outlooks(part)
    plan_view.show_parts(console.answer_console(), definition, outlooks, runs, cells=part is not None)
    if plan:
        return
    summary = run.go(outlooks, seconds)
    if summary.interrupted:
        session.say("stopped; the same command goes on from here", "yellow")
        raise typer.Exit(130)
    for line in run.closing(name):
        session.say(line, "default")
    raise typer.Exit(int(summary.is_broken))


Submitted = Annotated[str | None, typer.Argument(metavar="[NAME]", help="A submitted sweep's name or id [all].")]


@app.command(rich_help_panel=ELSEWHERE)
def status(name: Submitted = None, results: common.Results = Path("results")) -> None:
    """Show the cells of submitted sweeps: queued, running, done."""
    from zobench.cli import plan_view
    from zobench.session.submitted import submissions

    inputs.check_results(results)
    sweeps = submissions(results, name)
    for submission, states in sweeps:
        plan_view.show_submission(console.answer_console(), submission, states)
    if not sweeps:
        print(f"no sweep was submitted into {results}")


@app.command(rich_help_panel=ELSEWHERE)
def cancel(name: Submitted = None, results: common.Results = Path("results")) -> None:
    """End the jobs of submitted sweeps; finished cells stay."""
    from zobench.execute import jobs
    from zobench.session import submitted

    inputs.check_results(results)
    ended, refused = 0, []
    sweeps = submitted.submissions(results, name)
    for submission, states in sweeps:
        if left := [state for state in states if state.state in (*jobs.ACTIVE, "unknown")]:
            try:
                submitted.cancel(submission)
            except ValueError as error:  # that of another machine does not keep the next from being ended
                refused.append(str(error))
                continue
            print(f"cancelled {submission.name} {submission.id}: {jobs.counts(left)}")
            ended += len(left)
    if refused:
        raise ValueError("; ".join(refused))
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
        path=recipes.find("runners", name), changes=values, retry=inputs.parse_outcomes(retry),
        timeout=inputs.parse_seconds("--timeout", timeout), disk_dir=disk_dir, dry=dry_run,
    )  # fmt: skip
    inputs.check_results(results)
    if device.startswith("cuda:") and device != "cuda:0":
        raise ValueError(
            f"`device` must be auto, cpu or cuda with --executor {executor.name}, which gives each cell its GPUs, "
            f"but got {device}; use --device cuda, and CUDA_VISIBLE_DEVICES or --gres to say which"
        )
    store, screen = Store(results), Terminal(dry=dry_run, verbose=True)
    if executor.name == "slurm":
        handed_over = handover.to_slurm(store, device, executor.request(), screen)
    else:
        inputs.check_disk(disk_dir)
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
