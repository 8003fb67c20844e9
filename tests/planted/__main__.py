"""``python -m tests.planted [WORD ...]``: plants each bug of bugs.toml, or those whose names hold a word, in a copy of
the tree, and tells which of its nearest tests finds it. Exit status 1 if one is found by none.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.planted import ROOT, Bug, bugs

LEFT_OUT = shutil.ignore_patterns(".*", "__pycache__", "build", "dist", "report", "runs")


def copied(folder: Path) -> Path:
    """A copy of the tree, without what is built or hidden."""
    copy = folder / "zobench"
    shutil.copytree(ROOT, copy, ignore=LEFT_OUT)
    return copy


def finders(copy: Path, bug: Bug) -> list[str]:
    """The names of the tests that fail with ``bug`` in ``copy``, which is then as before."""
    path = copy / bug.file
    plain = path.read_text()
    path.write_text(bug.planted_in(plain))
    environment = {**os.environ, "PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    cache = "planted" if bug.file.startswith("zobench/kernels/") else "plain"  # compiled kernels do not see constants
    environment["NUMBA_CACHE_DIR"] = str(copy.parent / cache)
    command = [sys.executable, "-m", "pytest", "-q", "-x", "--tb=no", "-p", "no:cacheprovider", *bug.tests]
    try:
        done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True)
    finally:
        path.write_text(plain)
    found = [line.split()[1] for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    if done.returncode not in (0, 1) and not found:
        raise RuntimeError(f"the tests of {bug.name!r} did not run: {done.stdout[-500:]}{done.stderr[-500:]}")
    return found


def main(words: list[str]) -> int:
    """Prints a line for each bug."""
    chosen = [bug for bug in bugs() if not words or any(word in bug.name for word in words)]
    missed = 0
    with tempfile.TemporaryDirectory() as folder:
        copy = copied(Path(folder))
        for bug in chosen:
            begin = time.monotonic()
            found = finders(copy, bug)
            missed += not found
            by = found[0] if found else "NO TEST"
            print(f"{time.monotonic() - begin:5.0f} s  {bug.name}: {by}", flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} planted bugs are found")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
