"""The command line in this process, in an empty folder on a measured machine."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import refused as refused
from tests.support.commands import zobench as zobench
from tests.support.rates import calibrate
from zobench.execute import plan, process
from zobench.measure.environment import fingerprint_without_torch
from zobench.result import Facts, Outcome, Result
from zobench.runspec import RunSpec

GB = 10**9


@pytest.fixture(scope="module")
def machine() -> str:
    return str(fingerprint_without_torch().machine)


@pytest.fixture
def cwd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: str) -> Path:
    """An empty current folder on a measured machine with 24 GB of memory and 500 GB of disk."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(plan, "available_host_bytes", lambda: 24 * GB)
    monkeypatch.setattr(plan, "free_disk_bytes", lambda folder: 500 * GB)
    calibrate(tmp_path, machine)
    return tmp_path


@pytest.fixture
def cells(monkeypatch: pytest.MonkeyPatch, machine: str) -> list[RunSpec]:
    """Replaces the processes of cells; the cells that ran. A seed of 1 fails, of 2 runs out of memory."""
    ran: list[RunSpec] = []

    def run(spec: RunSpec, **_: Any) -> Result:
        ran.append(spec)
        outcome = {1: Outcome.FAILED, 2: Outcome.OOM}.get(spec.seed, Outcome.OK)
        samples: dict[str, list[float | None]] = {"step_seconds": [0.5] * spec.steps} if outcome is Outcome.OK else {}
        return Result(
            spec=spec, outcome=outcome, reason="" if outcome is Outcome.OK else "a reason", samples=samples,
            environment=Facts(machine=machine), memory={"device_peak_bytes": 2**20},
        )  # fmt: skip

    monkeypatch.setattr(process, "run_in_process", run)
    monkeypatch.setattr("zobench.execute.sweep.run_in_process", run)
    return ran
