"""The clones of authors' programs that a user has added, each with its Python: a file in the user's configuration."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zobench.machine import files
from zobench.machine.texts import first_line, json_of

FOLDER = "ZOBENCH_CONFIG_DIR"
"""The environment variable of the folder of the user's configuration, in place of ~/.config/zobench."""
SHORT = 7
"""Digits of a commit."""
VERSIONED = ("torch", "transformers", "python")
"""The packages whose versions a result of a program has, and Python."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Clone:
    """A program as it was added. ``path``: of the clone; ``python``: of its environment; ``commit``: the clone's, with
    ``+`` and a fingerprint of the changes where it has any; ``versions``: Python's and the packages' there."""

    name: str
    path: str
    python: str
    commit: str
    versions: Mapping[str, str]


def list_path() -> Path:
    """The path of the file that lists the clones."""
    home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(os.environ.get(FOLDER) or Path(home, "zobench")) / "programs.json"


def load() -> dict[str, Clone]:
    """The clones that were added, by name. Raises ``ValueError`` for a file that cannot be read as such."""
    file = list_path()
    if not file.exists():
        return {}
    try:
        return {name: _clone(name, facts) for name, facts in json_of(file.read_text(encoding="utf-8")).items()}
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise ValueError(
            f"{file} must list programs as `zobench program add` does, but {first_line(error)}; remove the "
            "file and add them again"
        ) from error


def _clone(name: str, facts: Mapping[str, Any]) -> Clone:
    clone = Clone(name=name, **facts)
    if {
        type(text) for text in (clone.path, clone.python, clone.commit, *(clone.versions[key] for key in VERSIONED))
    } != {str}:
        raise ValueError(f"what it says of {name} is not text")
    return clone


def save(clones: Mapping[str, Clone]) -> None:
    """Writes the whole list."""
    rows = {name: dataclasses.asdict(clone) for name, clone in clones.items()}
    for facts in rows.values():
        del facts["name"]
    list_path().parent.mkdir(parents=True, exist_ok=True)
    files.replace(list_path(), (json.dumps(rows, indent=1) + "\n").encode())


def checked(name: str) -> Clone:
    """The clone of the program ``name``. Raises ``ValueError`` if none was added, or it is not as it was then."""
    clone = load().get(name)
    if clone is None:
        raise ValueError(
            f"`program={name}` needs a clone of that program and a Python that it runs in, but none was added; "
            f"zobench program add {name} --path CLONE --python ENV/bin/python"
        )
    if not os.access(clone.python, os.X_OK):
        raise ValueError(
            f"`program={name}` needs the Python that it was added with, but {clone.python} is gone; add it again"
        )
    if (now := commit_of(Path(clone.path))) != clone.commit:
        raise ValueError(
            f"`program={name}` must be at commit {clone.commit}, at which it was added, but {clone.path} is at {now}; "
            f"check that out, or add it again"
        )
    return clone


def check_versions(clone: Clone, now: Mapping[str, str]) -> None:
    """Raises ``ValueError`` if the program's environment has other versions ``now`` than when it was added."""
    changed = [name for name in clone.versions if now.get(name) != clone.versions[name]]
    if changed:
        was, has = (", ".join(f"{name} {versions.get(name)}" for name in changed) for versions in (clone.versions, now))
        raise ValueError(
            f"`program={clone.name}` must run in the environment that it was added with, which had {was}, but "
            f"{clone.python} has {has}; add it again"
        )


def commit_of(path: Path) -> str:
    """The commit of the checkout at ``path``, shortened, and a fingerprint of its changes and of its files that git
    does not know, which it could import; bytecode and what git ignores apart. ``ValueError`` without a commit, or for
    a file that cannot be read."""
    commit = _git(path, "rev-parse", "HEAD")[:SHORT]
    changes = [_git(path, "diff", "HEAD").encode()]
    for name in filter(None, _git(path, "ls-files", "--others", "--exclude-standard", "-z").split("\0")):
        is_cache = name.endswith(".pyc") or "__pycache__" in Path(name).parts  # what Python, or numba, keeps of sources
        if not is_cache and (path / name).is_file():
            changes += [name.encode(), _digest(path / name)]
    fingerprint = hashlib.sha256(b"\0".join(changes)).hexdigest()[:SHORT]
    return f"{commit}+{fingerprint}" if any(changes) else commit


def _digest(file: Path) -> bytes:
    try:
        with file.open("rb") as content:  # of any size: a checkpoint may lie there
            return hashlib.file_digest(content, "sha256").digest()
    except OSError as error:
        raise ValueError(f"a program's files must be readable, but {file} is not: {error.strerror}") from error


def _git(path: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=path, capture_output=True, text=True, errors="replace", check=False
        )
    except OSError as error:
        raise ValueError(f"a program must be a git checkout, but {path} cannot be asked: {error}") from error
    if done.returncode != 0:
        message = (done.stderr.strip().splitlines() or ["git said nothing"])[-1]
        raise ValueError(f"a program must be a git checkout, but in {path} git says: {message}; clone its repository")
    return done.stdout.strip()
