"""Reads and checks what a command is given, before anything is measured or torch is imported."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zobench.data.tasks.prompts import PUBLISHED
from zobench.machine.files import check_extras
from zobench.result import Outcome
from zobench.runspec import DECLARED, RunSpec, check_effect, check_value, parse_size, suggestion
from zobench.runspec.registries import PROGRAMS, SCHEMES, TASKS
from zobench.store.pack import ENDING

_FORMATS = {
    ".md": "markdown", ".tex": "latex", ".csv": "csv", ".parquet": "parquet", ".json": "json", ".svg": "svg"
}  # fmt: skip


def check_words(values: Mapping[str, Any]) -> None:
    """Raises ``ValueError`` for an unknown word or model, the mistakes that show before anything slow is imported."""
    from zobench import models

    for key, value in values.items():
        if key in DECLARED and DECLARED[key].choices:
            check_value(key, value)
    if "model" in values:
        models.identifying_name(str(values["model"]))


def check_tuned(values: Mapping[str, Any], data_dir: Path | None, *, resumed: Path | None = None) -> None:
    """As :func:`check_words`, of a fine-tuning run, which must name task and model, or else the folder of the run that
    is ``resumed``. Raises ``ImportError`` where a package is missing that it needs."""
    if (scheme := values.get("scheme")) in SCHEMES.names() and SCHEMES.get(scheme).peft:
        check_extras(f"`scheme={scheme}`", ["peft"], "tasks")
    if values.get("task") in [task.name for task in PUBLISHED] and not (data_dir or os.environ.get("ZOBENCH_DATA_DIR")):
        check_extras("a task without --data-dir, which is read from the hub,", ["datasets"], "tasks")
    if resumed is not None:
        check_words(values)
        if not resumed.is_dir():
            raise no_run(resumed)
        return
    if values.get("task", "none") == "none":
        raise ValueError(f"`--task` must be given, but is not; use one of {', '.join(TASKS.names())}")
    if "model" not in values:
        raise ValueError("`model` must be given, but got no model; see `zobench list models`")
    if provider := PROGRAMS.provider(values.get("program", "")):
        raise ValueError(
            f"fine-tuning is zobench's own, but got program={values['program']} of {provider}; use zobench run --set "
            f"program={values['program']}"
        )
    check_words(values)
    check_effect(RunSpec.from_dict({"weights": "pretrained", **values}), values)


def no_run(folder: Path) -> ValueError:
    """The error of a folder without a run."""
    return ValueError(f"`--resume` needs a run to go on with, but {folder} holds none; leave --resume out to begin one")


def check_folder(argument: str, folder: Path | None, *, or_archive: bool = False) -> None:
    """Raises ``ValueError`` unless ``folder`` exists or is None. ``or_archive``: an archive of results will do."""
    if or_archive and folder is not None and folder.name.endswith(ENDING) and not os.path.isdir(folder):
        if not os.path.isfile(folder):
            raise ValueError(f"`{argument}` must be a folder or an archive, but there is no {folder}; check the name")
    elif folder is not None and not os.path.isdir(folder):  # which takes a name of any length, as Path does not
        leads_nowhere = os.path.islink(folder) and not os.path.exists(folder)
        remedy = "it is a link that leads nowhere; name a folder" if leads_nowhere else "it is not there; check it"
        remedy = "it is a file; name a folder" if os.path.exists(folder) else remedy
        raise ValueError(f"`{argument}` must be a folder, but got {str(folder)!r}; {remedy}")


def check_disk(folder: Path | None) -> None:
    """As :func:`check_folder`, of ``--disk-dir``, or where that is not given of ``ZOBENCH_DISK_DIR``."""
    named = os.environ.get("ZOBENCH_DISK_DIR")
    if folder is None and named:
        check_folder("ZOBENCH_DISK_DIR", Path(named))
    check_folder("--disk-dir", folder)


def check_results(folder: Path, argument: str = "results") -> None:
    """Raises ``ValueError`` if ``folder``, which need not exist, is a file or a dead link, or lies in one."""
    check_folder(argument, next(path for path in (folder, *folder.absolute().parents) if os.path.lexists(path)))


def check_there(folder: Path) -> None:
    """As :func:`check_results`, for commands that only read; a folder that is not the usual one must be there."""
    check_results(folder)
    if folder != Path("results") and not folder.exists():
        raise ValueError(f"`--results` must be a folder with results, but there is no {folder}; check the name")


def form_of(form: str | None, output: Path | None) -> str:
    """The format that was asked for, else that of the ending of the file ``output``, else the terminal's."""
    return form or _FORMATS.get(output.suffix.lower() if output else "", "terminal")


def check_file(option: str, path: Path) -> None:
    """Raises ``ValueError`` unless ``path`` can be written as a file."""
    if path.is_dir() or not path.parent.is_dir():
        remedy = "it is a folder; add a file name" if path.is_dir() else "create the folder"
        raise ValueError(f"`{option}` must be a file in a folder that exists, but got {str(path)!r}; {remedy}")
    if path.exists() and not path.is_file():
        return  # a device or a pipe, which is not for trying
    is_new, file = not path.exists(), path.resolve()  # of a link that leads to nothing yet, the file it leads to
    try:
        file.open("ab").close()
        if is_new:
            file.unlink()
    except OSError as error:
        raise ValueError(
            f"`{option}` must be a file that can be written, but got {str(path)!r} ({error.strerror}); name another"
        ) from error


def check_json(output: str | None) -> None:
    """Raises ``ValueError`` unless ``--json`` names a file that can be written, or is "-" or not given."""
    if output not in (None, "-"):
        check_file("--json", Path(str(output)))


def check_out(option: str, folder: Path) -> None:
    """Raises ``ValueError`` unless files can be written below ``folder``, which need not exist yet, and is not made."""
    parent = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    check_folder(option, parent)
    try:
        with tempfile.TemporaryFile(dir=parent):
            pass  # the file shows that one can be made here, and is gone at once
    except OSError as error:
        raise ValueError(
            f"`{option}` must be a folder that you may write to, but got {str(folder)!r} ({error.strerror}); choose "
            "another"
        ) from error


def check_places(out: Path | None, data_dir: Path | None, results: Path) -> None:
    """Raises ``ValueError`` unless ``data_dir`` can be read, and the others written to; None: chosen later."""
    if data_dir is not None and not data_dir.exists():
        raise ValueError(f"`--data-dir` must be a folder with the tasks' files, but there is no {data_dir}; check it")
    check_folder("--data-dir", data_dir)
    check_disk(None)
    if out is not None:
        check_out("--out", out)
    check_results(results)
    check_out("--results", results)


def check_price(price: float | None) -> None:
    if price is not None and not 0 < price < float("inf"):
        raise ValueError(f"`price > 0` must hold, but got {price:g}; name the price of an hour, as 2.49")


def parse_seconds(argument: str, text: str | float | None) -> float | None:
    """Seconds of ``90s``, ``10m`` or ``2h30m``, or of a number. Raises ``ValueError`` that names the ``argument``."""
    if text is None:
        return None
    text = text if isinstance(text, str) else f"{text}s"
    try:
        seconds = _seconds(text)
    except ValueError:
        raise ValueError(f"`{argument}` must be a time, but got {text!r}; write 90s, 10m or 2h30m") from None
    if seconds > 0 and text.strip()[-1].isdigit():
        raise ValueError(f"`{argument}` must have a unit, but got {text!r}; write {text.strip()}s or {text.strip()}m")
    if seconds == float("inf"):
        raise ValueError(f"`{argument}` must be finite, but got {text!r}; leave it out for no limit")
    if not seconds > 0:
        raise ValueError(f"`{argument} > 0` must hold, but got {text!r}; write 90s, 10m or 2h30m")
    return seconds


def _seconds(text: str) -> float:
    number = r"([\d.]+(?:e[+-]?\d+)?)\s*"
    parts = re.fullmatch(rf"\s*(?:{number}h\s*)?(?:{number}m\s*)?(?:{number}s\s*)?", text)
    if parts is None or not any(parts.groups()):
        return float(text)
    return sum(float(number) * seconds for number, seconds in zip(parts.groups(), (3600, 60, 1), strict=True) if number)


def parse_bytes(option: str, text: str | None, *, per_second: bool = False) -> int:
    """Bytes of the size ``text``, or bytes ``per_second`` of ``5GB/s``, which may be written ``5GB``; 0 of None.
    Raises ``ValueError`` with ``option``'s name unless a text's are above 0 and have a unit."""
    if text is None:
        return 0
    if per_second:
        try:
            return parse_bytes(option, text.strip().removesuffix("/s"))
        except ValueError:
            raise ValueError(f"`{option}` must be a speed above 0, but got {text!r}; write {option} 5GB/s") from None
    if (nbytes := parse_size(option, text)) <= 0:
        raise ValueError(f"`{option} > 0` must hold, but got {text!r}; write {option} 64GB")
    if text.strip()[-1].isdecimal():
        raise ValueError(f"`{option}` must have a unit, but got {text!r}; write {option} {text.strip()}GB")
    return nbytes


def parse_outcomes(text: str) -> frozenset[str]:
    """The outcomes of a text as ``oom,failed``. Raises ``ValueError`` for an unknown one."""
    outcomes = [str(outcome) for outcome in Outcome if outcome is not Outcome.OK]
    words = [word.strip() for word in text.split(",") if word.strip() not in ("", "none")]
    for word in words:
        if word not in outcomes:
            raise ValueError(
                f"`retry` takes {', '.join(outcomes)} or none, but got {word!r}; {suggestion(word, outcomes)}"
            )
    return frozenset(words)


def parse_percent(argument: str, text: str) -> float:
    """0.05 for ``5%`` or ``5``. Raises ``ValueError`` that names the ``argument``; also for 0.05, perhaps a share."""
    if not isinstance(text, str):
        raise ValueError(f"`{argument}` must be text, but got {text!r}; write '5%'")
    try:
        percent = float(text.strip().removesuffix("%"))
    except ValueError:
        raise ValueError(f"`{argument}` must be a percentage, but got {text!r}; write 5%") from None
    if not 0 <= percent <= 100:
        raise ValueError(f"`{argument}` must be 0% to 100%, but got {text!r}; write 5%")
    if 0 < percent < 1 and "%" not in text:
        raise ValueError(
            f"`{argument}` must have its sign below 1, but got {text!r}; write {100 * percent:g}% or {percent:g}%"
        )
    return percent / 100
