"""Checks of files that a command reads or writes, before anything is measured; and what is said of nothing."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from zobench.session.inputs import check_folder, check_results
from zobench.store import first_sweep


def check_there(folder: Path) -> None:
    """As :func:`check_results`, for commands that only read; the usual folder need not be there, one that was named
    must."""
    check_results(folder)
    if folder != Path("results") and not folder.exists():
        raise ValueError(f"`--results` must be a folder with results, but there is no {folder}; check the name")


def tell_empty(places: Sequence[Path], then: str = "") -> None:
    """Says that there are no results in ``places``, and what makes some; ``then``: what is shown all the same."""
    told = f"no results in {', '.join(map(str, places))}: {first_sweep(places[0])}"
    print(f"{told}; {then}" if then else told, file=sys.stderr)


def check_file(option: str, path: Path) -> None:
    """Raises ``ValueError`` unless ``path`` can be written as a file."""
    if path.is_dir() or not path.parent.is_dir():
        remedy = "it is a folder; add a file name" if path.is_dir() else "create the folder"
        raise ValueError(f"`{option}` must be a file in a folder that exists, but got {str(path)!r}; {remedy}")
    if path.exists() and not path.is_file():
        return  # a device or a pipe, which is not for trying
    is_new = not path.exists()
    try:
        path.open("ab").close()
        if is_new:
            path.unlink()
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
    place = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    check_folder(option, place)
    try:
        with tempfile.TemporaryFile(dir=place):
            pass  # the file shows that one can be made here, and is gone at once
    except OSError as error:
        raise ValueError(
            f"`{option}` must be a folder that you may write to, but got {str(folder)!r} ({error.strerror}); choose "
            "another"
        ) from error
