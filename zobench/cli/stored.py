"""Commands about stored runs: results, compare, verify, evaluate, trace, verdict."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from zobench.cli import common, completion, console
from zobench.cli.common import LOOK, TUNE, DataDir, Device, Quiet, Stored, app, changed, named, stored_folder
from zobench.cli.matrices import Terminal
from zobench.recipes.reference import Reference
from zobench.runspec import RunSpec, check_choice, suggestion
from zobench.session import inputs
from zobench.store import Store, printable
from zobench.store.files import RESULT

if TYPE_CHECKING:
    from zobench.store.compare import Comparison


@app.command("results", rich_help_panel=LOOK)
def results_(
    named: Annotated[
        list[Path] | None, typer.Argument(metavar="DIR", help="Results folders [results]; to merge, also archives.")
    ] = None,
    results: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The same of one folder, as other commands have it.")
    ] = None,
    where: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="Only these; repeatable.")] = None,
    output: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write all columns: .csv or .parquet.")
    ] = None,
    merge_into: Annotated[Path | None, typer.Option(metavar="DIR", help="Merge the folders into this one.")] = None,
    pack: Annotated[
        Path | None, typer.Option(metavar="FILE.tar.gz", help="Write an archive to send, without host data.")
    ] = None,
    keep_text: Annotated[
        bool, typer.Option("--keep-text", help="Pack, or take from archives, texts too: reasons, warnings, notes.")
    ] = False,
) -> None:
    """List, filter, export, merge and pack stored runs."""
    from zobench.store import query

    if results is not None and named:
        raise ValueError(f"`--results` names the folder, but got {str(named[0])!r} too; leave one of them out")
    given = map(stored_folder, named or ([] if results is None else [results]))
    folders = list({folder.resolve(): folder for folder in given}.values())
    wanted, places = query.conditions(where or []), folders or [Path("results")]
    for folder in folders:
        inputs.check_folder("DIR", folder, or_archive=merge_into is not None)
    if keep_text and pack is None and merge_into is None:
        raise ValueError("`--keep-text` needs --pack or --merge-into, but got neither; leave it out")
    if merge_into is not None:
        if where or output or pack:
            raise ValueError("`--merge-into` needs whole folders, but got another option; merge first, then list")
        merge_stores(places, merge_into, keep_text=keep_text)
        return
    if pack is not None:
        if where or output or len(places) > 1:
            raise ValueError("`--pack` needs one whole folder, but got more; merge folders first (--merge-into)")
        pack_store(places[0], pack, keep_text=keep_text)
        return
    if output is not None:
        query.check_export(output)
        inputs.check_file("--out", output)
    from zobench.cli import listing

    loaded = console.loaded(*places)
    chosen = query.select(loaded, wanted)
    if not loaded:
        console.show_empty(places)
    elif not chosen:
        print(f"none of {len(loaded)} runs fulfils every --where", file=sys.stderr)
    if output is not None:
        query.export(chosen, output)
        print(f"{output}: {len(chosen)} run{'' if len(chosen) == 1 else 's'}")
    elif chosen:
        listing.show_runs(console.answer_console(), query.usual_order(chosen))


Before = Annotated[
    str | None,
    typer.Argument(metavar="A", help="A results folder, or a machine, commit or KEY=VALUE,... in --results."),
]
After = Annotated[str | None, typer.Argument(metavar="B", help="What is compared with it.")]
Tolerance = Annotated[str, typer.Option(metavar="PERCENT", help="How close SAME is.")]
Limit = Annotated[
    str | None, typer.Option("--fail-on-regression", metavar="PERCENT", help="Exit 1 if B is worse by more.")
]
AcrossMachines = Annotated[bool, typer.Option("--across-machines", help="Also different hardware.")]
SelfTest = Annotated[
    bool, typer.Option("--self-test", help="Compare a cell A (a run, or KEY=VALUE,...) with itself, here and now.")
]
Comparisons = Annotated[int | None, typer.Option("--comparisons", metavar="N", help="Of the self-test [20].")]
Slowdown = Annotated[
    str | None, typer.Option(metavar="PERCENT", help="That the self-test plants and should find [5%].")
]
SelfTestBudget = Annotated[str | None, typer.Option(metavar="TIME", help="Of the self-test: 90s, 10m, 2h30m.")]
_SELF_TESTED = "model=opt-mini,seq_len=512,batch_size=2,steps=30,warmup=3"
"""The cell that is compared with itself where none is named: steps of some hundredths of a second on a CPU."""


@app.command(rich_help_panel=LOOK)
def compare(
    before: Before = None, after: After = None, results: Stored = Path("results"), tolerance: Tolerance = "2%",
    limit: Limit = None, across_machines: AcrossMachines = False, self_test: SelfTest = False,
    count: Comparisons = None, slowdown: Slowdown = None, budget: SelfTestBudget = None,
) -> None:  # fmt: skip
    """Compare two sets of runs, cell by cell: which steps became faster or slower, and on what evidence.

    Cells are matched by everything that was asked of them; only the device's index may differ, and the fields that A
    and B name as KEY=VALUE. With --self-test: how small a difference this machine can show.
    """
    if self_test:
        if (tolerance, limit, across_machines) != ("2%", None, False):
            raise ValueError(
                "`--tolerance`, `--fail-on-regression` and `--across-machines` are not for --self-test; leave them out"
            )
        _compare_with_itself(before, after, results, count, slowdown, budget)
    if before is None or after is None:
        raise ValueError("`compare` needs A and B, but got one of them at most; name both, or add --self-test")
    if (count, slowdown, budget) != (None, None, None):
        raise ValueError("`--comparisons`, `--slowdown` and `--budget` are of --self-test; leave them out")
    close = inputs.parse_percent("--tolerance", tolerance)
    bound = None if limit is None else inputs.parse_percent("--fail-on-regression", limit)
    inputs.check_there(results)
    from zobench.cli import listing
    from zobench.session.session import compare as compared

    comparison = compared(
        before, after, results=results, tolerance=close, across_machines=across_machines, monitor=Terminal()
    )
    listing.show_comparison(console.answer_console(), comparison, (before, after))
    raise typer.Exit(1 if bound is not None and _regressed(comparison, bound) else 0)


def _compare_with_itself(
    cell: str | None, other: str | None, results: Path, count: int | None, slowdown: str | None, budget: str | None
) -> NoReturn:
    """Runs and prints the comparisons. Ends in ``typer.Exit``: 1 after too many false alarms or missed slowdowns."""
    from zobench.execute.selfcompare import COMPARISONS, SLOWDOWN
    from zobench.session.single import compare_with_itself

    if other is not None:
        raise ValueError(f"`--self-test` compares one cell with itself, but got a second, {other!r}; leave it out")
    if count is not None and count < 1:
        raise ValueError(f"`--comparisons >= 1` must hold, but got {count}; leave it out for 20")
    share = SLOWDOWN if slowdown is None else inputs.parse_percent("--slowdown", slowdown)
    if share == 0:
        raise ValueError("`--slowdown` must be above 0%, but got 0%; leave it out for 5%")
    inputs.check_results(results)
    screen = Terminal()
    done = compare_with_itself(
        _cell(cell or _SELF_TESTED, results), results, screen, count=COMPARISONS if count is None else count,
        slowdown=share, budget=inputs.parse_seconds("--budget", budget),
        show=lambda number, comparison: screen.say(f"{number:>2}  {comparison.line}", "default"),
    )  # fmt: skip
    print(done.page())
    raise typer.Exit(int(not done.is_passed))


def _cell(word: str, results: Path) -> RunSpec:
    """The cell of a stored run, or of ``KEY=VALUE,KEY=VALUE``."""
    from zobench.recipes import matrix
    from zobench.store import query

    if "=" not in word or os.path.exists(word):
        return query.named_run(word, results).spec
    values = changed(word.split(","))
    return matrix.single(values, console.chosen_device(str(values.pop("device", "auto")))[0])


def _regressed(comparison: Comparison, bound: float) -> bool:
    """Tells what is worse in B by more than ``bound``, a share; whether anything is."""
    from zobench.store.compare import regressions
    from zobench.store.judging import Verdict

    errors, worse = console.error_console(), regressions(comparison, bound)
    if all(pair.judgement.verdict is Verdict.AMBIGUOUS for pair in comparison.pairs):
        errors.print("warning: no cell could be judged, so no regression could be found", style="yellow")
    for line in worse:
        errors.print(printable(f"regression: {line}"), style="red", markup=False, soft_wrap=True)
    return bool(worse)


_SPLITS = ("test", "dev")
Base = Annotated[str, typer.Option("--model", metavar="PLACE", help="Its base weights, if they lie elsewhere now.")]
TaskFile = Annotated[str, typer.Option("--task", metavar="FILE", help="Its task's file, if that lies elsewhere now.")]
Target = Annotated[str, typer.Option(metavar="PERCENT", help="An accuracy that the test set should show it exceeds.")]


@app.command(rich_help_panel=TUNE)
def verify(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run's folder, or a stored result with its journal.")],
    model: Base = "", task: TaskFile = "", data_dir: DataDir = None, device: Device = "auto", target: Target = "",
    quiet: Quiet = False,
) -> None:  # fmt: skip
    """Replay a fine-tuning run's journal on its base weights, evaluate, and compare with what its result says.

    Nothing is searched or trained. A journal of which one bit was changed, other base weights, other data, or another
    accuracy in any digit are refused. With --target: exit code 1 unless the test set shows it exceeded, p < 0.01.
    """
    share = inputs.parse_percent("--target", target) if target else None
    if share is not None and not 0 < share < 1:
        raise ValueError(f"`--target` must be above 0% and below 100%, but got {target}; for example 85%")
    inputs.check_folder("RUN", run.parent if run.suffix == ".json" else run)
    if os.path.isdir(run) and not os.path.isfile(run / RESULT):  # before PyTorch is loaded; of a name of any length
        raise ValueError(
            "`RUN` must be the folder of a run that has ended, or a stored result with its journal, but "
            f"{run / RESULT} is not there; name another"
        )
    inputs.check_folder("--data-dir", data_dir)
    with console.waiting("loading PyTorch"):
        from zobench.training import usual_data_dir
        from zobench.training.assess import verify as verified

    folder = data_dir or usual_data_dir()
    verification = verified(run, model=model, task_file=task, device=device, data_dir=folder, say=console.say)
    for line in verification.lines:
        print(printable(line))
    shown = True
    if share is not None:
        shown, line = verification.exceeds(share)
        print(line)
    print(f"verified: {run}")
    if not shown:
        raise typer.Exit(1)


@app.command(rich_help_panel=TUNE)
def evaluate(
    run: Annotated[Path | None, typer.Argument(metavar="RUN", help="A fine-tuning run's folder, or --model.")] = None,
    model: common.Model = None, name: common.Name = None, task: common.Task = None,
    split: Annotated[str, typer.Option(help="test or dev.")] = "test",
    data_dir: common.DataDir = None, weights_path: common.WeightsPath = None, seq_len: common.SeqLen = None,
    dtype: common.Dtype = None,
    batch_size: common.BatchSize = None, changes: common.Changes = None, device: common.Device = "auto",
    output: common.Json = None,
    quiet: common.Quiet = False,
) -> None:  # fmt: skip
    """Evaluate a model, or the best weights of a run, on a task. Nothing is trained or stored."""
    fields = {"model": model, "name": name, "task": task, "seq_len": seq_len, "dtype": dtype, "batch_size": batch_size}
    values = changed(named(changes, **fields, weights_path=weights_path))
    inputs.check_folder("--data-dir", data_dir)
    inputs.check_json(output)
    inputs.check_words(values)
    if split not in _SPLITS:
        raise ValueError(f"`--split` must be test or dev, but got {split!r}; {suggestion(split, _SPLITS)}")
    if (run is None) == ("model" not in values):
        raise ValueError("`evaluate` needs RUN or --model, but got both or neither; name one of them")
    inputs.check_folder("RUN", run)
    console.say("loading PyTorch")
    with console.waiting("loading PyTorch"):
        from zobench.cli.tuning_view import show_assessed
        from zobench.measure.threads import settle
        from zobench.session.tuning import evaluated_spec
        from zobench.training import usual_data_dir
        from zobench.training.assess import EndedRun, assess

    kept = None if run is None else EndedRun.of(run)
    spec, why = evaluated_spec(values, kept, device)
    console.say(why, settle(), f"seq_len: {spec.seq_len}")
    with console.busy(f"evaluating {spec.model} on {spec.task_name}"):
        assessed = assess(spec, split, run=kept, data_dir=data_dir or usual_data_dir(), say=console.say)
    if not console.write_json(output, assessed.to_dict()):
        show_assessed(console.answer_console(), assessed)


@app.command(rich_help_panel=LOOK)
def trace(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A result file, or the first digits of a run's hash.")],
    results: Stored = Path("results"),
    output: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Write to a file.")] = None,
) -> None:
    """Write the last step of a run as a trace for ui.perfetto.dev or chrome://tracing."""
    from zobench.store import query
    from zobench.store.trace import trace as traced

    if output is not None:
        inputs.check_file("--out", output)
    inputs.check_there(results)
    console.write_json("-" if output is None else str(output), traced(query.named_run(run, results)))


@app.command(rich_help_panel=LOOK)
def verdict(
    paper: Annotated[str, typer.Argument(
        metavar="PAPER", help="zo-offloading-neurips24, zo-offloading-iclr25, zo2, distzo2 or zo-bench.",
        autocompletion=completion.papers,
    )],
    results: Stored = Path("results"),
    form: Annotated[str | None, typer.Option("--format", help="terminal, markdown, json or svg (a badge).")] = None,
    output: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="File; its ending is a format.")] = None,
) -> None:  # fmt: skip
    """Say of each claim of a paper: reproduced, shape holds, not shown or contradicted, with the evidence.

    Exit code 1: something is contradicted. --results results/published judges by the runs that come with zobench.
    """
    from zobench.report import verdict as judge

    width = max(console.NARROWEST, console.answer_console().width)
    writers: Mapping[str, Callable[[str, Sequence[judge.JudgedArtifact]], str]] = {
        "terminal": partial(judge.as_text, width=width), "markdown": judge.as_markdown, "json": judge.as_json,
        "svg": judge.as_badge,
    }  # fmt: skip
    check_choice("--format", form := inputs.form_of(form, output), writers)
    if output is not None:
        inputs.check_file("--out", output)
    inputs.check_there(results)
    stored = console.loaded(results)
    with console.waiting("judging"):
        items = judge.verdicts(paper, stored, Reference.load())
    if not stored:
        console.show_empty([results], "judged by the paper's own values only")
    console.write_text(output, writers[form](paper, items))
    raise typer.Exit(int(judge.counts(judge.all_claims(items))[judge.ClaimOutcome.CONTRADICTED] > 0))


def merge_stores(folders: list[Path], into: Path, *, keep_text: bool) -> None:
    """Merges other stores into this one and prints how many results were new. Ends in ``typer.Exit`` with 1 if anything
    was left out, as packing does. Registered predictions of what it then holds are scored."""
    from zobench.cost import registered
    from zobench.store.merge import merge

    inputs.check_results(into, "--merge-into")
    merged = merge(folders, into, keep_text=keep_text)
    console.show_problems(merged.problems)
    for line in merged.choices:
        print(printable(line))
    print(f"{into}: {merged.added} added, {merged.equal} there already, {len(merged.choices)} chosen between")
    for line in registered.lines(Store(into).load()):
        print(printable(line))
    if merged.problems:
        raise typer.Exit(1)


def pack_store(folder: Path, archive: Path, *, keep_text: bool) -> None:
    """Packs a store to be sent, and says what is left out. Ends in ``typer.Exit`` with 1 if anything is."""
    from zobench.store.pack import ENDING, pack

    if not archive.name.endswith(ENDING):
        raise ValueError(f"`--pack` must be a file {ENDING}, but got {str(archive)!r}; name it runs{ENDING}")
    inputs.check_file("--pack", archive)
    packed = pack(folder, archive, keep_text=keep_text)
    for line in packed.left_out:
        print(printable(f"left out: {line}"), file=sys.stderr)
    print(f"{archive}: {packed.runs} {'run' if packed.runs == 1 else 'runs'}, {len(packed.left_out)} left out")
    if packed.left_out:
        raise typer.Exit(1)
