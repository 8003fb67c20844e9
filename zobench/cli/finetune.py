"""Commands that fine-tune: finetune, search."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from zobench.cli import common, console
from zobench.cli.common import TUNE, app, changed, named, value_of
from zobench.cli.console import alarm
from zobench.machine.processes import leads, torchrun_ranks
from zobench.result import Outcome, Result
from zobench.runspec import RunSpec
from zobench.session.inputs import check_json, check_places, check_tuned
from zobench.store import Store, without_place

if TYPE_CHECKING:
    from rich.console import Console

    from zobench.cli.tuning_view import TuningBar
    from zobench.training import Callback


@app.command(rich_help_panel=TUNE)
def finetune(
    model: common.Model = None, name: common.Name = None, task: common.Task = None, method: common.Method = None,
    scheme: common.Scheme = None, steps: common.Steps = None, seq_len: common.SeqLen = None, dtype: common.Dtype = None,
    batch_size: common.BatchSize = None, data_dir: common.DataDir = None, weights_path: common.WeightsPath = None,
    changes: common.Changes = None, out: common.RunFolder = None, results: common.Results = Path("results"),
    device: common.Device = "auto", output: common.Json = None,
    resume: Annotated[bool, typer.Option("--resume", help="Only go on with the run in the folder.")] = False,
    seeds: Annotated[
        int | None, typer.Option(metavar="N", help="N runs, with the seeds from --set seed (0) on; their mean.")
    ] = None,
    log: common.Log = None, verbose: common.EachStep = False, quiet: common.Quiet = False,
) -> None:  # fmt: skip
    """Fine-tune a model on a task; keep the best weights on dev, and test them once.

    Its folder holds the curve so far (curve.csv, curve.jsonl), the journal, snapshots and in the end the saved model.
    After Ctrl-C, kill -9 or a power loss the same command goes on from there, bit for bit.
    """
    fields = {"model": model, "name": name, "task": task, "method": method, "scheme": scheme, "steps": steps}
    fields |= {"seq_len": seq_len, "dtype": dtype, "batch_size": batch_size, "weights_path": weights_path}
    values = changed(options := named(changes, **fields))
    check_tuned(values, data_dir, resumed=out if resume else None)
    check_places(out, data_dir, results)
    silent = output == "-" or not leads()
    if not silent:
        check_json(output)
        console.say("loading PyTorch")
    with nullcontext() if silent else console.waiting("loading PyTorch"):
        from zobench.cli.tuning_view import TuningBar, show_result
        from zobench.measure.threads import settle
        from zobench.session.tuning import as_ranks, check_fits, checked_folder, seeds_of, spec_of_run
        from zobench.training import usual_data_dir
        from zobench.training.callbacks import loggers
        from zobench.training.cautions import trained
        from zobench.training.choices import chosen

    logged, alone, results_of_seeds = loggers(log or ()), seeds is None, list[Result]()
    data_dir, runs = data_dir or usual_data_dir(), dict[Path, tuple[RunSpec, list[str]]]()
    for seed in seeds_of(values, seeds):
        of_seed, named_folder = (values, out) if alone else ({**values, "seed": seed}, out and out / f"seed-{seed}")
        spec, notes = spec_of_run(of_seed, device, named_folder if resume else None)
        runs[checked_folder(named_folder, spec, data_dir, results)] = spec, notes  # the same command finds it
    if leads():
        check_fits({folder: spec for folder, (spec, _) in runs.items()})
    for folder, (spec, notes) in runs.items():
        threads = settle() if spec.gpus == 1 else ""
        are_started = spec.gpus > 1 and not torchrun_ranks()  # this process only starts the ranks, which say it
        if not (silent or are_started):
            console.say(*notes, threads)
        spec = chosen(spec, values, folder, data_dir, lambda text: None if silent else console.say(text))
        if are_started:
            places = {"--out": folder, "--data-dir": data_dir, "--results": results, "--json": output}
            flags = {"--resume": resume, "--verbose": verbose, "--quiet": quiet}
            raise typer.Exit(as_ranks(spec, options, device, places, flags, log or ()))
        bar = None if silent else TuningBar(console.error_console(), verbose=verbose)
        results_of_seeds.append(result := _trained(spec, folder, data_dir, resume, bar, logged))
        if leads():
            Store(results).save(result)
            if not console.write_json(output if alone else None, without_place(result).to_dict()) and output != "-":
                show_result(console.answer_console(), result)
                console.say(f"saved model: {folder / 'model'}")
    if seeds is not None:
        _show_seeds(results_of_seeds, output)
    if leads() and not all(trained(result.evaluation["curve"]) for result in results_of_seeds):
        raise typer.Exit(1)  # one diverged, as its warnings say


def _trained(
    spec: RunSpec, folder: Path, data_dir: Path | None, resume: bool, bar: TuningBar | None,
    logged: Callable[[], list[Callback]],
) -> Result:  # fmt: skip
    """Trains with a ``bar`` that shows how it goes, if there is one."""
    from zobench.training import finetune as tune

    if bar:
        console.say(f"folder: {folder}")
    with _with_hints(console.error_console(), folder, spec.device), bar or nullcontext():
        shown = [bar.of(spec)] if bar else []
        return tune(spec, folder=folder, data_dir=data_dir, resume=resume, callbacks=[*shown, *logged()])


def _show_seeds(results: Sequence[Result], output: str | None) -> None:
    """Shows the mean over runs that differ in their seed alone, with its 95 % interval; as JSON with every run."""
    from zobench.cli.tuning_view import show_seeds
    from zobench.report.paired import over_seeds
    from zobench.session.tuning import seeds_dict

    means = over_seeds(results)
    if output is not None:
        console.write_json(output, seeds_dict(results, means))
    if output != "-":
        show_seeds(console.answer_console(), results, means)


@app.command(rich_help_panel=TUNE)
def search(
    model: common.Model = None, name: common.Name = None, task: common.Task = None, method: common.Method = None,
    scheme: common.Scheme = None, steps: common.Steps = None,
    seq_len: common.SeqLen = None, dtype: common.Dtype = None, batch_size: common.BatchSize = None,
    grid: Annotated[Path | None, typer.Option(metavar="FILE", help="TOML of lists [by method and scheme].")] = None,
    data_dir: common.DataDir = None, weights_path: common.WeightsPath = None, changes: common.Changes = None,
    out: common.RunFolder = None, results: common.Results = Path("results"), device: common.Device = "auto",
    log: common.Log = None, verbose: common.EachStep = False, quiet: common.Quiet = False,
) -> None:  # fmt: skip
    """Fine-tune over a grid, choose on dev, and test only the winner.

    `--set lr=1e-6,1e-7` varies a field; the whole grid and the winner are kept in the folder's search.json.
    """
    single, axes = _axes(changes or [])
    fields = {"model": model, "name": name, "task": task, "method": method, "scheme": scheme, "steps": steps}
    fields |= {"seq_len": seq_len, "dtype": dtype, "batch_size": batch_size, "weights_path": weights_path}
    values = changed(named(single, **fields))
    check_tuned(values, data_dir)
    check_places(out, data_dir, results)
    console.say("loading PyTorch")
    with console.waiting("loading PyTorch"):
        from zobench.cli.tuning_view import TuningBar, show_result, show_search
        from zobench.measure.threads import settle
        from zobench.session.tuning import check_fits, checked_folder, tuned_spec
        from zobench.training import grids, usual_data_dir
        from zobench.training.callbacks import loggers
        from zobench.training.search import cells
        from zobench.training.search import search as searched

    logged = loggers(log or ())
    errors = console.error_console()
    chosen = grids.load(grid) if grid is not None else grids.shipped(*grids.asked(values))
    varied = grids.checked({**{key: row for key, row in chosen.axes.items() if key not in values}, **axes})
    spec, notes = tuned_spec({**values, **{key: row[0] for key, row in varied.items()}}, device)
    if spec.gpus > 1:
        raise ValueError(f"`search` must have one device, but got gpus={spec.gpus}; use finetune, or gpus=1")
    data_dir = data_dir or usual_data_dir()
    folder = checked_folder(out, spec, data_dir, results, "search")
    check_fits({folder / cell.hash: cell for cell in cells(spec, varied)}, is_search=True)
    source = chosen.source + (f", but {', '.join(axes)} given" if axes else "")
    search_grid = grids.SearchGrid(varied, source if varied.keys() - axes else "given")
    console.say(*notes, f"grid: {search_grid.text}", settle(), f"folder: {folder}")
    with _with_hints(errors, folder, spec.device), TuningBar(errors, verbose=verbose) as bar:
        trials, winner = searched(
            spec, varied, folder=folder, data_dir=data_dir, callbacks=lambda cell: [bar.of(cell), *logged()]
        )
    Store(results).save(winner.result)
    show_search(console.answer_console(), trials, winner)
    show_result(console.answer_console(), winner.result)


def _axes(changes: list[str]) -> tuple[list[str], Mapping[str, list[Any]]]:
    """(the ``--set KEY=VALUE`` with one value, field to values of those with several)."""
    single, axes = [], {}
    for change in changes:
        key, _, text = change.partition("=")
        if "," in text:
            axes[key.strip()] = [value_of(key.strip(), word) for word in text.split(",")]
        else:
            single.append(change)
    return single, axes


@contextmanager
def _with_hints(errors: Console, folder: Path, device: str) -> Iterator[None]:
    """Turns an interrupt inside the block into a line on how to go on and exit code 130, lack of memory into 1."""
    from zobench.parallel.world import PeerGoneError
    from zobench.programs.cell import classify
    from zobench.training import Interrupted

    try:
        yield
    except KeyboardInterrupt as error:
        last = str(error) if isinstance(error, Interrupted) else "stopped at once; the same command goes on"
        if leads():
            alarm(errors).print(f"{last} ({folder})", style="yellow", markup=False, soft_wrap=True)
        raise typer.Exit(130) from None
    except PeerGoneError:
        if leads():  # one line is enough
            raise
        raise typer.Exit(1) from None
    except (RuntimeError, MemoryError) as error:
        outcome, reason = classify(error, device)
        if outcome is not Outcome.OOM:
            raise
        alarm(errors).print(f"oom: {reason}", style="red", markup=False, soft_wrap=True)
        raise typer.Exit(1) from None
