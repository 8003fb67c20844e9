"""What the commands share: the application, options of more than one command, and the checks of their values."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(
    name="zobench",
    help="Measure what zeroth-order fine-tuning of a language model costs here, beside what the papers report.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Changes = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a field; repeatable.")]
Model = Annotated[
    str | None, typer.Option(help="Of `zobench list models`, or a folder, a hub id (owner/name), a file.gguf.")
]
Name = Annotated[str | None, typer.Option(help="What tables call such a folder or file [its own name].")]
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
Executor = Annotated[
    str, typer.Option(metavar="WHERE", help="here, local (in the background, a cell per GPU) or slurm.")
]
Jobs = Annotated[int | None, typer.Option(metavar="N", help="Cells at once, of local [one per GPU] or slurm [all].")]
Partition = Annotated[str | None, typer.Option(metavar="P", help="Of slurm: the partition.")]
Gres = Annotated[str | None, typer.Option(metavar="G", help="Of slurm: what a cell's job gets, as gpu:1.")]
Time = Annotated[str | None, typer.Option(metavar="TIME", help="Of slurm: time of one cell's job [1h].")]
Slurm = Annotated[
    list[str] | None, typer.Option("--slurm", metavar="KEY=VALUE", help="Another option of sbatch; repeatable.")
]
Rendezvous = Annotated[
    str | None, typer.Option(metavar="HOST:PORT", help="Where the nodes of a cell meet: an address of the first one.")
]
Task = Annotated[str | None, typer.Option(help="A task of `zobench list tasks`, or your own FILE.toml (docs/data.md).")]
FIELDS_ARE_LISTED = "`zobench list fields`"
"""Where a user finds what can be set."""

Verbose = Annotated[bool, typer.Option("-v", "--verbose", help="A row of the plan for each cell.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the plan and stop.")]


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
    from zobench.runspec import FIELDS, check_key, parse_value, suggestion

    try:
        check_key(key)
    except ValueError:
        hint = suggestion(key, FIELDS)
        near = f"{hint} " if hint.endswith("?") else ""  # not the names of all fields
        raise ValueError(f"unknown key {key!r}; {near}see {FIELDS_ARE_LISTED}") from None
    return parse_value(key, text)


def check_folder(option: str, folder: Path | None) -> None:
    """Raises ``ValueError`` unless ``folder`` is one that exists, or None."""
    if folder is not None and not folder.is_dir():
        remedy = "it is a file; name a folder" if folder.exists() else "create it first"
        raise ValueError(f"`{option}` must be a folder, but got {str(folder)!r}; {remedy}")


def check_results(folder: Path) -> None:
    """Raises ``ValueError`` if ``folder`` is a file, or lies in one; it need not exist yet."""
    check_folder("--results", next(place for place in (folder, *folder.absolute().parents) if place.exists()))


def check_file(option: str, path: Path) -> None:
    """Raises ``ValueError`` unless ``path`` can be written as a file."""
    if path.is_dir() or not path.parent.is_dir():
        remedy = "it is a folder; add a file name" if path.is_dir() else "create the folder"
        raise ValueError(f"`{option}` must be a file in a folder that exists, but got {str(path)!r}; {remedy}")


def parse_seconds(option: str, text: str | None) -> float | None:
    """Seconds of ``90s``, ``10m``, ``2h`` or a plain number. Raises ``ValueError`` with ``option``'s name."""
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


def parse_outcomes(text: str) -> frozenset[str]:
    """The outcomes of ``--retry oom,failed``. Raises ``ValueError`` for an unknown one."""
    from zobench.result import Outcome
    from zobench.runspec import suggestion

    known = [str(outcome) for outcome in Outcome if outcome is not Outcome.OK]
    words = [word.strip() for word in text.split(",") if word.strip() not in ("", "none")]
    for word in words:
        if word not in known:
            raise ValueError(f"`--retry` takes {', '.join(known)} or none, but got {word!r}; {suggestion(word, known)}")
    return frozenset(words)
