"""``python -m tests.planted [WORD ...]``: plants each bug of bugs.toml, or those whose names hold a word, in a copy of
the tree, and tells which of its nearest tests finds it. Exit status 1 if one is found by none, or where its tests did
not end in time.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TREE = ("zobench", "tests", "runners", "campaigns", "tables", "plots", "results", "docs", "pyproject.toml", "README.md")
SECONDS = 900
"""In which the nearest tests of a bug must end: they take up to two minutes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bug:
    """In ``file`` the text ``old``, which is there once, becomes ``new``; ``tests`` are files that must fail then."""

    name: str
    file: str
    old: str
    new: str
    tests: list[str]

    def planted_in(self, text: str) -> str:
        """The file's text with the bug. Raises ``ValueError`` where ``old`` is not there exactly once."""
        if text.count(self.old) != 1:
            raise ValueError(
                f"the bug {self.name!r} must have its text once in {self.file}, but it is there "
                f"{text.count(self.old)} times; mend tests/planted/bugs.toml"
            )
        return text.replace(self.old, self.new)


def bugs() -> list[Bug]:
    """Those of bugs.toml."""
    return [Bug(**row) for row in tomllib.loads((ROOT / "tests" / "planted" / "bugs.toml").read_text())["bug"]]


def failing(copy: Path, tests: Sequence[str], cache: str) -> list[str]:
    """The first of ``tests`` in ``copy`` that fails, or nothing. Raises ``RuntimeError`` where they do not run, and
    ``TimeoutExpired`` where they do not end, after which they and what they started are killed."""
    environment = {**os.environ, "PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    environment["NUMBA_CACHE_DIR"] = str(copy.parent / cache)
    command = [sys.executable, "-m", "pytest", "-q", "-x", "--tb=no", "-p", "no:cacheprovider", *tests]
    with subprocess.Popen(
        command, cwd=copy, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        start_new_session=True,
    ) as run:  # fmt: skip
        try:
            said, _ = run.communicate(timeout=SECONDS)
        finally:
            with contextlib.suppress(ProcessLookupError):  # where none of its group is left
                os.killpg(run.pid, signal.SIGKILL)
    names = re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", said, re.MULTILINE)
    if run.returncode not in (0, 1) and not names:
        raise RuntimeError(f"{tests} did not run: {said[-1000:]}")
    return names


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
