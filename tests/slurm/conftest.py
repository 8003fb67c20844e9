"""One Slurm for all tests of this folder, and a results folder on a machine whose rates are known."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.predict.test_predict import CALIBRATION
from tests.slurm import cluster
from zobench.execute import jobs
from zobench.measure.environment import fingerprint_without_torch
from zobench.result import Result
from zobench.store import Store

ROOT = Path(__file__).parents[2]
SIDE_BY_SIDE = ("--executor", "slurm", "--partition", "main", "--slurm", "exclusive=no")


@pytest.fixture(scope="session")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment in which Slurm's commands find a running cluster of two nodes of four CPUs, both this machine."""
    if why := cluster.missing():
        pytest.skip(why)
    with cluster.running(tmp_path_factory.mktemp("slurm")) as config:
        own = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "SBATCH"))}
        yield {**own, "SLURM_CONF": str(config), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "COLUMNS": "160"}


@dataclass(frozen=True)
class Site:
    """A user's folder with one matrix, ``cells.toml``, and the commands that are typed there."""

    folder: Path
    env: dict[str, str]

    @property
    def results(self) -> Path:
        return self.folder / "results"

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "zobench", *arguments]
        return subprocess.Popen(
            command, cwd=self.folder, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def zobench(self, *arguments: str, code: int = 0) -> tuple[str, str]:
        """Standard output and standard error."""
        process = self.start(*arguments)
        out, err = process.communicate(timeout=60)
        assert process.returncode == code, (out, err)
        return out, err

    def sweep(self, *arguments: str, code: int = 0) -> tuple[str, str]:
        return self.zobench("sweep", "cells.toml", *SIDE_BY_SIDE, *arguments, code=code)

    def ask(self, *command: str) -> str:
        return subprocess.run(command, env=self.env, check=True, capture_output=True, text=True, timeout=60).stdout

    def states(self) -> list[str]:
        """The third column of ``zobench status``."""
        out, _ = self.zobench("status", "cells")
        lines = out.splitlines()
        job, at = lines[2].index("job"), lines[2].index("state")
        rows = [line for line in lines[3:] if not line.startswith("what the jobs said: ")]
        return [row[at:].split()[0] for row in rows if row[job:at].strip()]  # the others go on from the line above

    def submission(self) -> jobs.Submission:
        return jobs.submissions(self.results)[-1]

    def progress(self, cell: int) -> jobs.JobReport | None:
        return jobs.progress(self.submission(), cell)

    def wait(self, ready: Callable[[], bool], what: str, seconds: float = 90) -> None:
        end = time.monotonic() + seconds
        while not ready():
            if time.monotonic() > end:
                logs = "\n".join(path.read_text() for path in self.submission().log.glob("*.err"))
                pytest.fail(f"{what} did not come: {self.zobench('status')[0]}\n{logs[-3000:]}")
            time.sleep(0.3)

    def wait_for_all(self) -> None:
        self.wait(lambda: not {"queued", "running"} & set(self.states()), "the end")

    def wait_until_measuring(self, cells: Sequence[int]) -> None:
        """Until the processes of these cells run."""
        self.wait(lambda: all((said := self.progress(c)) is not None and said.action for c in cells), "the beginning")

    def stored(self) -> list[Result]:
        store = Store(self.results)
        found = store.load()
        assert store.problems == []
        return found


@pytest.fixture
def site(slurm: dict[str, str], tmp_path: Path) -> Callable[[int], Site]:
    """Makes a folder whose matrix has so many tiny cells."""

    def make(count: int, **base: object) -> Site:
        values = {"model": "opt-tiny", "seq_len": 16, "steps": 2, "warmup": 0, **base}
        rows = [f"{key} = {json.dumps(value)}" for key, value in values.items()]
        text = "\n".join(['title = "Tiny cells"', "[base]", *rows, "[axes]", f"seed = {list(range(count))}"])
        (tmp_path / "cells.toml").write_text(text)
        rates = tmp_path / "results" / ".calibration" / f"{fingerprint_without_torch()['machine']}-cpu.json"
        rates.parent.mkdir(parents=True)
        rates.write_text(json.dumps(CALIBRATION))
        return Site(tmp_path, slurm)

    return make
