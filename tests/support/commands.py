"""The command line in processes of its own, and a sweep of two cells for them."""

import signal
import subprocess
import sys
from pathlib import Path

from zobench.execute import process

TWO = '[base]\nmodel = "opt-tiny"\nseq_len = 32\n[axes]\nseed = [0, 1]\n'


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
