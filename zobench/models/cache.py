"""The folder in which what took long to find out about models is kept; all of it can be made again."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from zobench.machine.files import replace


def root() -> Path:
    """``ZOBENCH_CACHE_DIR``, or else zobench in the user's cache folder. It need not exist."""
    named = os.environ.get("ZOBENCH_CACHE_DIR")
    return Path(named) if named else Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "zobench"


def read(kind: str, key: str) -> str | None:
    """The text kept as ``key`` among those of a ``kind``; None if there is none, or it is damaged."""
    try:
        return (root() / kind / key).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None


def keep(kind: str, key: str, text: str) -> None:
    """Keeps ``text``; where the folder cannot be written it is found out again the next time, and nothing else."""
    path = root() / kind / key
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace(path, text.encode())
