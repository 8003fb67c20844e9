"""Commands for GPUs that are not here: plan, predict. Every number that they print is a prediction, and says so."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from zobench import recipes
from zobench.cli import common, completion, console
from zobench.cli.common import FORESEE, app, changed, named
from zobench.session.inputs import check_file, check_folder, check_json, check_results, check_words, parse_bytes

if TYPE_CHECKING:
    from zobench.cost.choices import TargetMachine

GpuName = Annotated[
    str,
    typer.Option(
        "--gpu", metavar="GPU", help="Of `zobench list gpus`, a FILE.toml, or all.", autocompletion=completion.gpus
    ),
]
Link = Annotated[str | None, typer.Option(metavar="GENxLANES", help="The host's slot, as 4x16 [the card's own].")]
Disk = Annotated[str | None, typer.Option(metavar="SPEED", help="A disk for the blocks, by its speed: 5GB/s.")]
Anchor = Annotated[
    list[Path] | None,
    typer.Option("--anchor", metavar="RESULT", help="A stored run on this GPU, to fit to; repeatable."),
]


@app.command(rich_help_panel=FORESEE)
def plan(
    model: common.Model = None,
    name: common.Name = None,
    gpu: GpuName = "all",
    host: Annotated[str | None, typer.Option(metavar="SIZE", help="The host's memory [64GB].")] = None,
    seq_len: common.SeqLen = None, dtype: common.Dtype = None, batch_size: common.BatchSize = None,
    disk: Disk = None, link: Link = None, anchor: Anchor = None, changes: common.Changes = None,
    methods: Annotated[
        bool, typer.Option("--methods", help="Compare ZO, SGD and Adam, of all weights and of LoRA, each at its best.")
    ] = False,
    trace: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a step of the best settings for ui.perfetto.dev.")
    ] = None,
    output: common.Json = None,
) -> None:  # fmt: skip
    """Say whether a model can be tuned on a GPU, how fast, and with which settings; predicted, nothing runs."""
    from zobench.cli import forecast_view
    from zobench.cost import choices
    from zobench.cost.choices import TargetMachine
    from zobench.session import forecasts

    check_json(output)
    values = {"dtype": "fp16"} | changed(
        named(changes, model=model, name=name, seq_len=seq_len, dtype=dtype, batch_size=batch_size)
    )
    check_words(values)
    if trace is not None:
        check_file("--trace", trace)
        if gpu == "all":
            raise ValueError("`--trace` needs one GPU, but got --gpu all; name one of `zobench list gpus`")
    if methods and (gpu == "all" or trace is not None or {"method", "scheme"} & values.keys()):
        raise ValueError(
            "`--methods` needs one GPU and no --trace, and names method and scheme itself; add --gpu NAME and leave "
            "out --trace, --set method=... and --set scheme=..."
        )
    sizes = {"host": parse_bytes("--host", host or "64GB"), "disk": parse_bytes("--disk", disk, per_second=True)}
    cards = forecasts.gpus(gpu, link, anchor or (), console.say)
    console.say("" if host else "host memory: 64 GB, because --host was not given")
    if methods:
        _compare(values, TargetMachine(gpu=cards[0], **sizes), output)
        return
    rows = []
    with console.busy("reading the model") as change:
        for number, card in enumerate(cards):
            if number:  # the model is read with the first
                change(f"predicting for {card.name}")
            target = TargetMachine(gpu=card, **sizes)
            ranked = choices.choices(values, target)
            rows.append((target, ranked[0], choices.alternatives(ranked[0], target), ranked[1:]))
    if trace is not None:
        console.write_json(str(trace), forecasts.timeline(rows[0][1].prediction, sizes["disk"]))
    plans = [choices.plan_dict(target, best, others) for target, best, others, _ in rows]
    if console.write_json(output, plans if gpu == "all" else plans[0]):
        return
    screen = console.answer_console()
    if len(rows) == 1:
        forecast_view.show_one(screen, *rows[0])
    else:
        rows.sort(key=lambda row: (bool(row[1].lacks), row[1].prediction.step_seconds))
        forecast_view.show_all(screen, [(target, best) for target, best, _, _ in rows])


def _compare(values: Mapping[str, Any], target: TargetMachine, output: str | None) -> None:
    """Shows, or writes, the best settings of each way to tune the model of ``values`` at ``target``."""
    from zobench.cli import forecast_view
    from zobench.cost import choices

    with console.busy("predicting"):
        setups = [(way, choices.choices({**values, **fields}, target)[0]) for way, fields in choices.METHODS_COMPARED]
    plans = [{"tuned": way, **choices.plan_dict(target, best, ())} for way, best in setups]
    if not console.write_json(output, plans):
        forecast_view.show_methods(console.answer_console(), target, setups)


@app.command(rich_help_panel=FORESEE)
def predict(
    name: Annotated[str, typer.Argument(
        metavar="NAME|FILE", help="A matrix of `zobench list`, or a .toml file.", autocompletion=completion.matrices
    )],
    gpu: Annotated[str, typer.Option(
        "--gpu", metavar="GPU", help="Of `zobench list gpus`, or a FILE.toml.", autocompletion=completion.gpus,
    )],
    seq_len: common.SeqLen = None, dtype: common.Dtype = None, batch_size: common.BatchSize = None,
    link: Link = None, disk: Disk = None, anchor: Anchor = None, changes: common.Changes = None,
    results: common.Stored = Path("results"),
    form: Annotated[str, typer.Option("--format", help="terminal, markdown or latex.")] = "terminal",
    register: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Register them: a file with their day and SHA-256.")
    ] = None,
    output: common.Json = None,
) -> None:  # fmt: skip
    """Fill the tables of a matrix with predictions for a GPU, beside what was measured here and the paper's values."""
    from zobench.cli import forecast_view
    from zobench.cost import choices, registered
    from zobench.cost.gpu import predict as predicted
    from zobench.session import forecasts
    from zobench.session.machine import matrix_cells

    check_json(output)
    check_results(results)
    check_folder("--register", register)
    speed = parse_bytes("--disk", disk, per_second=True)
    if gpu == "all":
        raise ValueError("`--gpu` must be one GPU here, but got all; `zobench plan --gpu all` compares them")
    (card,) = forecasts.gpus(gpu, link, anchor or (), console.say)
    values = changed(named(changes, seq_len=seq_len, dtype=dtype, batch_size=batch_size))
    matrix, cells, _ = matrix_cells(recipes.find("runners", name), "cuda:0", values)
    cells = tuple(
        cell for cell in cells if cell.checkpoint == "none" and cell.task == "none"
    )  # what they add is not known
    if not cells:
        raise ValueError(f"{name} must have a cell without a task and without checkpoints, but has none to predict")
    needing = [cell for cell in cells if cell.tier in ("disk", "checkpoint")] if not speed else []
    if needing:
        raise ValueError(f"`--disk` must be given for {len(needing)} cells with a tier on a disk; add --disk 5GB/s")
    predictions = [predicted(cell, card, speed) for cell in cells]
    if register is not None:
        body = registered.registered(Path(name).stem, predictions, datetime.date.today())
        path = registered.write(register, body)
        console.error_console().print(f"registered: {path}, SHA-256 {body[registered.STAMP]}", soft_wrap=True)
    rows = [{**choices.prediction_dict(each), "fits": each.fits} for each in predictions]
    if not console.write_json(output, rows):
        print(forecast_view.tables(matrix.tables, predictions, card, results, form), end="")
