"""Finds recipe files (runners, campaigns, tables, plots, the papers' values) and published runs: a user's own first."""

from __future__ import annotations

import difflib
import os
from collections.abc import Sequence
from pathlib import Path

from zobench.machine.texts import toml_of

KINDS = {
    "runners": "runners", "campaigns": "campaigns", "tables": "tables", "plots": "plots", "paper": "results/paper",
    "published": "results/published",
}  # fmt: skip
"""Kind of recipe -> its folder in the source tree. In a wheel all of them lie under ``zobench/recipes/``."""

_SUFFIX = {kind: ".csv" if kind == "paper" else ".toml" for kind in KINDS}
_LISTS = {"runners": "matrices", "campaigns": "campaigns", "tables": "tables", "plots": "figures", "paper": "tables"}
"""Kind of recipe -> what `zobench list` calls it."""
FEW, LONGEST = 8, 80
"""Names that an error lists, and characters that it repeats."""
_PACKAGE = Path(__file__).resolve().parents[1]


def folder(kind: str) -> Path:
    """The shipped folder of ``kind``: inside the installed package, or beside it in the source tree."""
    installed = _PACKAGE / "recipes" / kind
    return installed if installed.is_dir() else _PACKAGE.parent / KINDS[kind]


def results(path: Path) -> Path:
    """``path``, a folder of stored runs; ``results/published``, where there is no such folder, is the shipped one."""
    return folder("published") if path == Path(KINDS["published"]) and not path.exists() else path


def is_sample(path: Path) -> bool:
    """Whether ``path`` holds the few published runs that an installed package has, not all of the repository's."""
    return path.is_relative_to(_PACKAGE)


def names(kind: str) -> list[str]:
    """Names that :func:`find` knows: those in ``./<kind>`` and the shipped ones, folders below included, sorted."""
    suffix = _SUFFIX[kind]
    paths = {path.relative_to(folder) for folder in _places(kind) for path in folder.rglob(f"*{suffix}")}
    return sorted(path.as_posix().removesuffix(suffix) for path in paths)


def find(kind: str, name_or_path: str | Path) -> Path:
    """The file of a recipe: an existing path wins, then ``./<kind>/<name>``, then the shipped one of that name.

    Raises ``ValueError`` with the nearest names, and with all of them where they are few.
    """
    return find_any((kind,), name_or_path)[1]


def find_any(kinds: Sequence[str], name_or_path: str | Path) -> tuple[str, Path]:
    """As :func:`find`, among several kinds of the same suffix: the kind (of a path: the first) and the file."""
    suffix, text = _SUFFIX[kinds[0]], str(name_or_path)
    name = text.removesuffix(suffix)
    candidates = [(kinds[0], text)] if text.endswith(suffix) else []
    candidates += [(kind, str(folder / (name + suffix))) for kind in kinds for folder in _places(kind)]
    for kind, candidate in candidates:
        if os.path.isfile(candidate):
            return kind, Path(candidate)
    known_names = [recipe for kind in kinds for recipe in names(kind)]
    near = difflib.get_close_matches(name, known_names, n=3, cutoff=0.55)
    filled = [f"{runner}, which fills it" for runner in (_runner_of(name) if "runners" in kinds else [])]
    hint = f"did you mean {' or '.join(filled or near)}? " if filled or near else ""
    lists = " and ".join(f"`zobench list {_LISTS[kind]}`" for kind in kinds)
    listed = f"known: {', '.join(known_names) or 'none'}" if len(known_names) <= FEW else f"see {lists}"
    folders, shown = " or ".join(kinds), repr(text) if len(text) <= LONGEST else f"{text[:LONGEST]!r}..."
    if text.endswith(suffix):
        raise ValueError(f"there is no file {shown}; check the path, or name a recipe: {hint}{listed}")
    raise ValueError(f"no such recipe in {folders}: {shown}; {hint}{listed}; or give the path of a {suffix} file")


def _runner_of(artifact: str) -> list[str]:
    """The matrix that fills the table or figure called ``artifact``, if there is one."""
    paths = [folder / f"{artifact}.toml" for kind in ("tables", "plots") for folder in _places(kind)]
    files = [path for path in paths if os.path.isfile(path)]  # False for a name that no file can have
    runners = [toml_of(path).get("runner", "") for path in files]
    return list(filter(None, runners))[:1]


def _places(kind: str) -> tuple[Path, Path]:
    return Path(kind), folder(kind)
