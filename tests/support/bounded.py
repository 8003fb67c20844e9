"""A command in a process of its own, with what it took: processor seconds and peak memory, not wall-clock time."""

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from zobench.execute import process

_CHILD = """
import re, sys, time
from zobench import cli
try:
    cli.main(sys.argv[1:])
except SystemExit as end:
    code = end.code or 0
peak = re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1]
print(f"took {code} {time.process_time()} {int(peak) * 1024}", file=sys.stderr)
"""
SECONDS, BYTES = 5.0, 500_000_000
"""What an absurd request may take until it is refused."""


@dataclass(frozen=True)
class Bounded:
    """How a command ended: its exit code and what it said, and what it took."""

    code: int
    out: str
    err: str
    cpu_seconds: float
    peak_bytes: int


def bounded(folder: Path, *arguments: str | Path) -> Bounded:
    """Runs ``zobench ARGUMENTS`` in ``folder``. Fails if it hangs, or takes more processor time or memory than an
    absurd request may."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", _CHILD, *map(str, arguments)], cwd=folder, env=process.child_environment(),
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    took = re.search(r"took (\d+) (\S+) (\d+)\n$", done.stderr)
    assert took is not None, done.stderr
    bounded_run = Bounded(int(took[1]), done.stdout, done.stderr[: took.start()], float(took[2]), int(took[3]))
    assert bounded_run.cpu_seconds < SECONDS, bounded_run
    assert bounded_run.peak_bytes < BYTES, bounded_run
    assert "Traceback" not in bounded_run.err, bounded_run.err
    return bounded_run
