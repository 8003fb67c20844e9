"""``python -m tests.planted [WORD ...]``: plants each bug of bugs.toml, or those whose names hold a word, in a copy of
the tree, and tells which of its nearest tests finds it. Exit status 1 if one is found by none, or where its tests did
not end in time.
"""

import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.support.planted import ROOT, Bug, bugs, failing

TREE = ("zobench", "tests", "runners", "campaigns", "tables", "plots", "results", "docs", "pyproject.toml", "README.md")


def copied(folder: Path) -> Path:
    """A copy of what the tests need of the tree."""
    copy = folder / "zobench"
    copy.mkdir()
    for name in TREE:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns(".*", "__pycache__"))
        else:
            shutil.copy(ROOT / name, copy / name)
    return copy


def finder(copy: Path, bug: Bug) -> str:
    """The name of a test that fails with ``bug`` in ``copy`` and passes without it, or "". The copy is then as before.

    Raises ``RuntimeError`` where a test fails without the bug too, so that it says nothing.
    """
    path = copy / bug.file
    plain = path.read_text()
    path.write_text(bug.planted_in(plain))
    in_kernels = bug.file.startswith("zobench/kernels/")  # of which compiled ones do not see a changed constant
    try:
        finding = failing(copy, bug.tests, "planted" if in_kernels else "plain")
    finally:
        path.write_text(plain)
    if finding and failing(copy, finding[:1], "plain"):
        raise RuntimeError(f"{finding[0]} fails without the bug {bug.name!r} too")
    return finding[0] if finding else ""


def main(words: list[str]) -> int:
    """Prints a line for each bug."""
    chosen = [bug for bug in bugs() if not words or any(word in bug.name for word in words)]
    missed = 0
    with tempfile.TemporaryDirectory() as folder:
        copy = copied(Path(folder))
        for bug in chosen:
            begin = time.monotonic()
            report = finding = ""
            try:
                report = (finding := finder(copy, bug)) or "NO TEST"
            except subprocess.TimeoutExpired:
                report = "timed out"
            missed += not finding
            print(f"{time.monotonic() - begin:5.0f} s  {bug.name}: {report}", flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} planted bugs are found")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
