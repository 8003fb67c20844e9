"""The command line in this process and in others, and a sweep of two cells; a conftest imports the fixtures."""

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from zobench import cli
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
