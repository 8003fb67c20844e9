"""Bugs that tests must find: tests/planted/bugs.toml lists them, ``python -m tests.planted`` plants them in a copy."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
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
