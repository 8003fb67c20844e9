"""The command line in this process and in others, and a sweep of two cells; a conftest imports the fixtures."""

import re
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from zobench import cli
from zobench.execute import process

TWO = '[base]\nmodel = "opt-tiny"\nseq_len = 32\n[axes]\nseed = [0, 1]\n'
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


def write(folder: Path, text: str) -> str:
    (folder / "mine.toml").write_text(text)
    return "mine.toml"


def run_in(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "zobench", *arguments]
    return subprocess.run(
        command, cwd=folder, env=process.child_environment(), capture_output=True, text=True, timeout=60, check=False
    )


def start(folder: Path) -> subprocess.Popen[str]:
    """A sweep that Ctrl-C stops, also where these tests run in the background of a shell, which ignores it for all."""
    command = [sys.executable, "-P", "-m", "zobench", "sweep", "mine.toml", "--device", "cpu"]
    return subprocess.Popen(
        command, cwd=folder, env=process.child_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip


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


@pytest.fixture
def zobench(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Runs the command in this process: exit code, standard output, standard error."""

    def command(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as caught:
            cli.main(arguments)
        assert isinstance(caught.value.code, int)
        return caught.value.code, *capsys.readouterr()

    return command


@pytest.fixture
def refused(zobench: Callable[..., tuple[int, str, str]]) -> Callable[..., str]:
    """Runs a command that must end with exit code 2 and one line, but for that of its device: the line."""

    def line(*arguments: str) -> str:
        code, out, err = zobench(*arguments)
        lines = [text for text in err.splitlines() if not text.startswith("device: ")]
        assert (code, out, len(lines)) == (2, "", 1), err
        return lines[0]

    return line
