"""The command line in this process, in an empty folder on a measured machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.rates import calibrate
from zobench import cli
from zobench.execute import plan
from zobench.measure.environment import fingerprint_without_torch

GB = 10**9


@pytest.fixture(scope="module")
def machine() -> str:
    return str(fingerprint_without_torch()["machine"])


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: str) -> Path:
    """An empty current folder on a measured machine with 24 GB of memory and 500 GB of disk."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(plan, "available_host_bytes", lambda: 24 * GB)
    monkeypatch.setattr(plan, "free_disk_bytes", lambda folder: 500 * GB)
    calibrate(tmp_path, machine)
    return tmp_path


@pytest.fixture
def zobench(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Runs the command in this process: exit code, standard output, standard error."""

    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as caught:
            cli.main(arguments)
        out, err = capsys.readouterr()
        assert isinstance(caught.value.code, int)
        return caught.value.code, out, err

    return run
