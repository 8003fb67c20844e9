"""The command line: parse, call, print. Bad input ends in one line and exit code 2."""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

import zobench

app = typer.Typer(
    name="zobench",
    help="Measure what zeroth-order fine-tuning of a language model costs here, beside what the papers report.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Changes = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a field; repeatable.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
Results = Annotated[Path, typer.Option("--results", metavar="DIR", help="Where results are kept.")]
DiskDir = Annotated[Path | None, typer.Option(metavar="DIR", help="Folder of the disk tier [system's temporary].")]
Budget = Annotated[str | None, typer.Option(metavar="TIME", help="Skip cells that do not fit: 90s, 10m, 2h.")]
Timeout = Annotated[str | None, typer.Option(metavar="TIME", help="End a cell after this long: 90s, 10m, 2h.")]
Retry = Annotated[str, typer.Option(metavar="LIST", help="Outcomes to run again, as oom,failed; or none.")]
Json = Annotated[
    str | None, typer.Option("--json", metavar="FILE", help="Write the result as JSON; - prints just that.")
]
DeviceMemory = Annotated[
    str | None, typer.Option(metavar="SIZE", help="Device memory that a cell may use: 8GB, 512MB, 4GiB.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the plan and stop.")]


def _print_version(wanted: bool) -> None:
    if wanted:
        print(zobench.__version__)
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print it.")
    ] = False,
) -> None:
    """Measure what zeroth-order fine-tuning of a language model costs here, beside what the papers report."""


@app.command()
def sweep(
    name: Annotated[str, typer.Argument(metavar="NAME|FILE", help="A matrix of `zobench list`, or a .toml file.")],
    changes: Changes = None, device: Device = "auto", results: Results = Path("results"), budget: Budget = None,
    timeout: Timeout = None, retry: Retry = "failed,contaminated", disk_dir: DiskDir = None, dry_run: DryRun = False,
    device_memory: DeviceMemory = None,
) -> None:  # fmt: skip
    """Run a matrix of cells and print its tables.

    Each cell that fits this machine runs in a fresh process. Finished cells are not run again: the same command goes
    on where it stopped.
    """
    changes = _named(changes, device_memory=device_memory)
    _sweep(name, changes, device, results, budget, timeout, retry, disk_dir, dry_run)


@app.command()
def ablate(
    changes: Changes = None, device: Device = "auto", results: Results = Path("results"), budget: Budget = None,
    timeout: Timeout = None, retry: Retry = "failed,contaminated", disk_dir: DiskDir = None, dry_run: DryRun = False,
) -> None:  # fmt: skip
    """Sweep the matrix `ablation`: ZO2 less one mechanism each."""
    _sweep("ablation", changes, device, results, budget, timeout, retry, disk_dir, dry_run)


@app.command()
def run(
    model: Annotated[str | None, typer.Option(help="A model of `zobench list models`.")] = None,
    engine: Annotated[str | None, typer.Option(help="resident (MeZO) or offload (ZO2).")] = None,
    changes: Changes = None, device: Device = "auto", device_memory: DeviceMemory = None,
    output: Json = None, timeout: Timeout = None, disk_dir: DiskDir = None,
) -> None:  # fmt: skip
    """Measure one cell in a fresh process."""
    from zobench import console, footprint, matrix
    from zobench.execute import plan
    from zobench.execute.process import failed, run_in_process
    from zobench.measure.device import choose_device
    from zobench.result import Outcome
    from zobench.spec import SEQ_LEN

    values = _values(_named(changes, model=model, engine=engine, device_memory=device_memory))
    bound, quiet = _seconds("--timeout", timeout), output == "-"
    _check_folder("--disk-dir", disk_dir)
    if output is not None and not quiet:
        _check_file("--json", Path(output))
    chosen, why = choose_device(str(values.pop("device", device)))
    spec = matrix.single(values, chosen)
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
    if quiet:
        print(text)
    elif output is not None:
        Path(output).write_text(text + "\n")
    raise typer.Exit(0 if result.outcome is Outcome.OK else 1)


@app.command()
def table(
    name: Annotated[str, typer.Argument(metavar="NAME|FILE", help="A table of `zobench list`, or a .toml file.")],
    results: Results = Path("results"),
    form: Annotated[str, typer.Option("--format", help="terminal, markdown, latex or csv.")] = "terminal",
    machine: Annotated[str | None, typer.Option(help="Only this machine's results.")] = None,
    output: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Write to a file.")] = None,
) -> None:
    """Print a table of stored results beside the paper's."""
    if output is not None:
        _check_file("--out", output)
    text = _table(name, results, form, machine)
    if output is None:
        print(text, end="")
    else:
        output.write_text(text)


@app.command("list")
def list_(
    what: Annotated[str, typer.Argument(metavar="[models|matrices|tables]", help="Leave it out to list all.")] = "",
) -> None:
    """List models, matrices and tables."""
    from zobench import console

    console.show_lists(what)


@app.command()
def doctor(device: Device = "auto", disk_dir: DiskDir = None) -> None:
    """Say what is here, what is missing, and how fast it is."""
    from zobench import console
    from zobench.measure import doctor as examination
    from zobench.measure.device import choose_device

    chosen, why = choose_device(device)
    errors = console.error_console()
    errors.print(why, style="dim")
    with errors.status("measuring, a few seconds"):
        rows = examination.report(chosen, disk_dir)
    console.show_doctor(rows)


_UsageError: type[Exception] = typer.BadParameter.__mro__[1]  # of every wrong command, option and argument


def main(arguments: Sequence[str] | None = None) -> None:
    """The command ``zobench``; always ends in ``SystemExit``."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends like Ctrl-C: children gone, results kept
    try:
        code = app(args=given or ["--help"], prog_name="zobench", standalone_mode=False)
    except _UsageError as error:
        context, told = getattr(error, "ctx", None), getattr(error, "format_message", error.__str__)()
        code = _fail(2, f"{told} (see `{context.command_path if context else 'zobench'} --help`)")
    except ValueError as error:
        code = _fail(2, str(error))
    except OSError as error:
        code = _fail(1, str(error))
    raise SystemExit(code or 0)


def _fail(code: int, text: str) -> int:
    print(f"zobench: {' '.join(text.split())}", file=sys.stderr)
    return code


def _sweep(
    name: str, changes: list[str] | None, device: str, results: Path, budget: str | None, timeout: str | None,
    retry: str, disk_dir: Path | None, dry_run: bool,
) -> None:  # fmt: skip
    from zobench import console, matrix, predict, recipe
    from zobench.execute import plan
    from zobench.execute import sweep as runner
    from zobench.measure.device import choose_device
    from zobench.measure.environment import fingerprint_without_torch
    from zobench.report import load_table
    from zobench.result import Outcome
    from zobench.store import Store, StoreError

    values = _values(changes)
    bound, again = _seconds("--timeout", timeout), _outcomes(retry)
    path = recipe.find("runners", name)
    _check_folder("--disk-dir", disk_dir)
    _check_results(results)
    chosen, why = choose_device(str(values.pop("device", device)))
    cells = matrix.load(path, chosen, values)
    seconds = _seconds("--budget", budget or cells.budget)
    for recipe_name in cells.tables:  # a mistake in them should not wait for the end of the sweep
        load_table(recipe.find("tables", recipe_name))
    facts, errors, store = fingerprint_without_torch(), console.error_console(), Store(results)
    errors.print(f"{why}; machine {facts['machine']} ({facts['description']})", style="dim", soft_wrap=True)
    with errors.status("measuring this machine's rates, once"):
        measured = plan.calibration(results, facts["machine"], chosen, disk_dir)
    rates = predict.Rates.of(measured)
    steps = plan.make(cells.cells, store, facts["machine"], rates, plan.limits(chosen, disk_dir), again)
    for problem in store.problems:
        errors.print(f"not read: {problem}", style="yellow", markup=False, soft_wrap=True)
    console.show_plan(console.answer_console() if dry_run else errors, cells.title, steps, seconds)
    if dry_run:
        return
    with ExitStack() as during:
        try:
            during.enter_context(store.lock())
        except StoreError as error:
            errors.print(
                f"warning: nothing will be kept: {error.strerror}", style="yellow", markup=False, soft_wrap=True
            )
        bar = during.enter_context(console.SweepProgress(errors, steps))
        progress = runner.Progress(begin=bar.begin, tick=bar.tick, end=bar.end)
        summary = runner.sweep(
            steps, store, budget=seconds, timeout=bound, disk_dir=disk_dir, calibration=measured, progress=progress
        )
    console.show_summary(errors, summary.results, summary.unsaved, summary.interrupted)
    for recipe_name in cells.tables:
        print("\n" + _table(recipe_name, results, "terminal", facts["machine"], summary.results), end="")
    if summary.interrupted:
        raise typer.Exit(130)
    broken = summary.unsaved or any(result.outcome is Outcome.FAILED for result in summary.results)
    raise typer.Exit(1 if broken else 0)


def _table(name: str, results: Path, form: str, machine: str | None, fresh: Sequence[Any] = ()) -> str:
    """The rendered table of the stored results, with ``fresh`` ones in place of what is stored of the same cell."""
    from rich.console import Console

    from zobench import recipe
    from zobench.report import load_table, render
    from zobench.store import Store

    recipe_path = recipe.find("tables", name)
    _check_results(results)
    store = Store(results)
    replaced = {result.spec.hash for result in fresh}
    found = [result for result in store.load(machine) if result.spec.hash not in replaced] + list(fresh)
    screen = Console()
    for problem in store.problems if not fresh else ():
        print(f"not read: {problem}", file=sys.stderr)
    text = render(
        load_table(recipe_path), found, form, machine=machine if found else None, width=max(80, screen.width),
        color=screen.is_terminal,
    )  # fmt: skip
    if not found:
        print(f"no results in {results}: only the paper's values are shown", file=sys.stderr)
    return text


def _named(changes: list[str] | None, **options: str | None) -> list[str]:
    """``changes`` and those that have an option of their own."""
    return [*(f"{key}={value}" for key, value in options.items() if value is not None), *(changes or [])]


def _values(changes: list[str] | None) -> dict[str, Any]:
    from zobench.spec import parse_value

    values = {}
    for change in changes or []:
        key, sign, text = change.partition("=")
        if not sign:
            raise ValueError(f"`--set` needs KEY=VALUE, but got {change!r}; for example --set steps=5")
        if key.strip() in values:
            raise ValueError(f"`{key.strip()}` must be given once, but got it twice; leave one out")
        values[key.strip()] = parse_value(key.strip(), text)
    return values


def _check_folder(option: str, folder: Path | None) -> None:
    if folder is not None and not folder.is_dir():
        remedy = "it is a file; name a folder" if folder.exists() else "create it first"
        raise ValueError(f"`{option}` must be a folder, but got {str(folder)!r}; {remedy}")


def _check_results(folder: Path) -> None:
    """A folder, or one that can be made: it is made when there is something to put into it."""
    _check_folder("--results", next(place for place in (folder, *folder.absolute().parents) if place.exists()))


def _check_file(option: str, path: Path) -> None:
    if path.is_dir() or not path.parent.is_dir():
        remedy = "it is a folder; add a file name" if path.is_dir() else "create the folder"
        raise ValueError(f"`{option}` must be a file in a folder that exists, but got {str(path)!r}; {remedy}")


def _seconds(option: str, text: str | None) -> float | None:
    """``90s``, ``10m``, ``2h`` or plain seconds."""
    if text is None:
        return None
    number, unit = (text[:-1], text[-1]) if text[-1:] in ("s", "m", "h") else (text, "s")
    try:
        seconds = float(number) * {"s": 1, "m": 60, "h": 3600}[unit]
    except ValueError:
        raise ValueError(f"`{option}` must be a time, but got {text!r}; write 90s, 10m or 2h") from None
    if not 0 < seconds < float("inf"):
        raise ValueError(f"`{option} > 0` must hold, but got {text!r}; write 90s, 10m or 2h")
    return seconds


def _outcomes(text: str) -> frozenset[str]:
    from zobench.result import Outcome
    from zobench.spec import suggestion

    known = [str(outcome) for outcome in Outcome if outcome is not Outcome.OK]
    words = [word.strip() for word in text.split(",") if word.strip() not in ("", "none")]
    for word in words:
        if word not in known:
            raise ValueError(f"`--retry` takes {', '.join(known)} or none, but got {word!r}; {suggestion(word, known)}")
    return frozenset(words)
