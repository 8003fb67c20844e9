"""The parts that the commands share: the application, its help in groups, options of several commands, and how they are
read."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

from zobench import recipes
from zobench.cli import completion
from zobench.cli.console import quieten, say
from zobench.runspec import FIELDS, check_key, parse_value
from zobench.runspec.fields import field_suggestion

CELL = "What runs"
WHERE = "Where it runs"
SLURM = "On Slurm"
LONG = "How often and how long"
KEPT = "What is kept and shown"
"""The groups of options, in the words of the help."""
MEASURE, TUNE, LOOK, FORESEE, ELSEWHERE = "Measure", "Fine-tune", "Look", "Predict", "Elsewhere"
"""The groups of commands, in the order of the help."""
_LONGEST = 200  # characters of a command's line, which is folded and not cut
_RARE = ("campaign", "calibrate")  # commands that stand below the others of their group
_TYPE = re.compile(r"<[^<>]+>$")
"""How Typer writes a type of Python, as ``<list[Path]>``, which says nothing to people."""


class CommandGroup(TyperGroup):
    """Commands under the headings that they name, what is usual first."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        groups: dict[str, list[tuple[str, str]]] = {name: [] for name in (MEASURE, TUNE, LOOK, FORESEE, ELSEWHERE)}
        for name in self.list_commands(ctx):
            command: Any = self.get_command(ctx, name)
            heading = getattr(command, "rich_help_panel", None) or "Commands"
            groups.setdefault(heading, []).append((name, command.get_short_help_str(_LONGEST)))
        for rows in groups.values():
            rows.sort(key=lambda row: row[0] in _RARE)
        _write_groups(formatter, groups)


class Command(TyperCommand):
    """A command whose options stand under the headings that they name (``rich_help_panel``)."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        groups: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                section = "Arguments" if param.param_type_name == "argument" else "Options"
                shown = "" if section == "Arguments" else max(param.opts, key=len).strip("-").upper()
                record = (_TYPE.sub(shown, record[0]).rstrip(), record[1])
                groups.setdefault(getattr(param, "rich_help_panel", None) or section, []).append(record)
        _write_groups(formatter, groups)


def _write_groups(formatter: Any, groups: Mapping[str, list[tuple[str, str]]]) -> None:
    for heading, rows in groups.items():
        if rows:
            with formatter.section(heading):
                formatter.write_dl(rows)


Function = TypeVar("Function", bound=Callable[..., None])
app = typer.Typer(
    name="zobench",
    help="Measure what zeroth-order fine-tuning of a language model costs here, beside what the papers report.",
    cls=CommandGroup,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
_cell, _where, _slurm, _long, _kept = (
    functools.partial(typer.Option, rich_help_panel=group) for group in (CELL, WHERE, SLURM, LONG, KEPT)
)


def stored_folder(path: Path) -> Path:
    """``path``, or the published runs for ``results/published``: of an installed package a few, with a line on that."""
    folder = recipes.results(path)
    if recipes.is_sample(folder):
        say("results/published: the package's 18 runs of OPT-350M; a clone has all of them")
    return folder


Changes = Annotated[
    list[str] | None,
    _cell("--set", metavar="KEY=VALUE", help="Change a field; repeatable.", autocompletion=completion.changes),
]
Model = Annotated[
    str | None,
    _cell(
        help="Of `zobench list models`, or a folder, a hub id (owner/name), a file.gguf.",
        autocompletion=completion.models,
    ),
]
Engine = Annotated[str | None, _cell(help="resident (MeZO) or offload (ZO2).")]
Method = Annotated[str | None, _cell(help="zo-sgd, zo-adam, fo-adam, ... [zo-sgd].", autocompletion=completion.methods)]
Scheme = Annotated[str | None, _cell(help="full, lora, prefix or prompt [full].", autocompletion=completion.schemes)]
SeqLen = Annotated[str | None, _cell("--seq-len", metavar="N", help="Tokens of a sequence; with a task the most.")]
Dtype = Annotated[str | None, _cell(metavar="TYPE", help="Of the weights: fp32, fp16 or bf16.")]
BatchSize = Annotated[str | None, _cell("--batch-size", metavar="N", help="Sequences of a step.")]
Steps = Annotated[str | None, _cell(metavar="N", help="Steps [ZO-Bench's: 20000, or 625 of first-order].")]
WeightsPath = Annotated[
    str | None, _cell(metavar="DIR", help="Folder or hub id of weights and tokenizer [the model's on the hub].")
]
DataDir = Annotated[Path | None, _where(metavar="DIR", help="Folder of the tasks' files [from the hub].")]
RunFolder = Annotated[Path | None, _kept("--out", metavar="DIR", help="The run's own folder [runs/NAME].")]
Log = Annotated[
    list[str] | None, _kept("--log", metavar="NAME", help="tensorboard, wandb or mlflow, beside CSV; repeatable.")
]
EachStep = Annotated[bool, _kept("-v", "--verbose", help="A line for each step.")]
Name = Annotated[str | None, _cell(help="What tables call a model that is a folder or file [its name].")]
Device = Annotated[str, _where(help="auto, cpu, cuda or cuda:N.")]
Results = Annotated[Path, _kept("--results", metavar="DIR", help="Where results are kept.")]
Stored = Annotated[Path, _kept(
    "--results", metavar="DIR", callback=stored_folder,
    help="Where results are kept; results/published: those that come with zobench.",
)]  # fmt: skip
DiskDir = Annotated[Path | None, _where(metavar="DIR", help="Folder of the disk tier [system's temporary].")]
Budget = Annotated[str | None, _long(metavar="TIME", help="Skip cells that do not fit: 90s, 10m, 2h30m.")]
Timeout = Annotated[str | None, _long(metavar="TIME", help="End a cell after this long: 90s, 10m, 2h30m.")]
Retry = Annotated[str, _long(metavar="LIST", help="Outcomes to run again, as oom,failed; or none.")]
Json = Annotated[str | None, _kept("--json", metavar="FILE", help="Write the result as JSON; - prints just that.")]
DeviceMemory = Annotated[str | None, _cell(metavar="SIZE", help="Device memory that a cell may use: 8GB, 512MB, 4GiB.")]
Executor = Annotated[str, _where(metavar="WHERE", help="here, local (in the background, a cell per GPU) or slurm.")]
Jobs = Annotated[int | None, _where(metavar="N", help="Cells at once, of local [one per GPU] or slurm [all].")]
Partition = Annotated[str | None, _slurm(metavar="P", help="The partition.")]
Gres = Annotated[str | None, _slurm(metavar="G", help="What a cell's job gets, as gpu:1.")]
Time = Annotated[str | None, _slurm("--time", metavar="TIME", help="Time of one cell's job [1h].")]
Slurm = Annotated[
    list[str] | None, _slurm("--slurm", metavar="KEY=VALUE", help="Another option of sbatch; repeatable.")
]
Rendezvous = Annotated[
    str | None, _where(metavar="HOST:PORT", help="Where the nodes of a cell meet: an address of the first one.")
]
Task = Annotated[
    str | None,
    _cell(
        help="A task of `zobench list tasks`, or your own FILE.toml (docs/data.md).", autocompletion=completion.tasks
    ),
]
Repeats = Annotated[int | None, _long(metavar="N", help="Run all cells in N rounds, each in a fresh process [1].")]
Until = Annotated[
    str | None, _long(metavar="PERCENT", help="Repeat until each median's 95 % interval is so narrow: 2%.")
]
Price = Annotated[float | None, _kept("--price", metavar="PRICE", help="Of an hour of this machine, for `cost`.")]
DetectWarmUp = Annotated[bool, _long("--detect-warm-up", help="First steps that are slower count as warm-up.")]
Turns = Annotated[bool, _long("--turns", help="The cells of a round side by side, in turns of a step (CPU).")]
COMMAND_LINE: list[str] = []
"""The words after ``zobench``, as they were given."""
FIELDS_ARE_LISTED = "`zobench list fields`"  # where a user finds what can be set

Verbose = Annotated[bool, _kept("-v", "--verbose", help="A row of the plan for each cell.")]
Quiet = Annotated[bool, _kept("-q", "--quiet", help="Only the answer, warnings and errors.", callback=quieten)]
DryRun = Annotated[bool, _kept("--dry-run", help="Print the plan and stop.")]


def named(changes: list[str] | None, **options: str | None) -> list[str]:
    """``changes`` (KEY=VALUE), with those ``options`` in front that are given, as ``--model``."""
    return [*(f"{key}={value}" for key, value in options.items() if value is not None), *(changes or [])]


def changed(changes: list[str] | None) -> dict[str, Any]:
    """Field to value of every ``--set KEY=VALUE``."""
    values = {}
    for change in changes or []:
        key, sign, text = change.partition("=")
        if not sign:
            raise ValueError(
                f"`--set` needs KEY=VALUE, but got {change!r}; for example --set steps=5, see {FIELDS_ARE_LISTED}"
            )
        if key.strip() in values:
            raise ValueError(f"`{key.strip()}` must be given once, but got it twice; leave one out")
        values[key.strip()] = value_of(key.strip(), text)
    return values


def value_of(key: str, text: str) -> Any:
    """The value of ``--set key=text``."""
    try:
        check_key(key)
    except ValueError:
        hint = field_suggestion(key, FIELDS)
        near = f"{hint} " if hint.endswith("?") else ""  # not the names of all fields
        raise ValueError(f"unknown key {key!r}; {near}see {FIELDS_ARE_LISTED}") from None
    return parse_value(key, text)


def with_options_of(command: Callable[..., None], *, without: Collection[str]) -> Callable[[Function], Function]:
    """Makes a function whose last parameter is ``**options`` take those of ``command`` there, but for ``without``."""
    shared = [
        each for each in inspect.signature(command, eval_str=True).parameters.values() if each.name not in without
    ]

    def decorated(function: Function) -> Function:
        *parameters, _ = inspect.signature(function, eval_str=True).parameters.values()
        function.__signature__ = inspect.Signature([*parameters, *shared])  # type: ignore[attr-defined]
        return function

    return decorated
