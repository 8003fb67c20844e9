"""A user's folder, and the commands typed there, on a cluster or a machine with a pool."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.rates import calibrate
from zobench.execute import jobs
from zobench.measure.environment import fingerprint_without_torch
from zobench.result import Result
from zobench.session.submitted import cell_states
from zobench.store import Store

ROOT = Path(__file__).parents[2]
SIDE_BY_SIDE = ("--executor", "slurm", "--partition", "main", "--slurm", "exclusive=no")


@dataclass(frozen=True)
class Site:
    """A user's folder with one matrix, ``cells.toml``, and the commands that are typed there."""

    folder: Path
    env: dict[str, str]

    @classmethod
    def of(cls, folder: Path, count: int, env: Mapping[str, str] = os.environ, **base: object) -> "Site":
        """With so many tiny cells, on a machine whose rates are known."""
        values = {"model": "opt-tiny", "seq_len": 16, "steps": 2, "warmup": 0, **base}
        rows = [f"{key} = {json.dumps(value)}" for key, value in values.items()]
        text = "\n".join(['title = "Tiny cells"', "[base]", *rows, "[axes]", f"seed = {list(range(count))}"])
        (folder / "cells.toml").write_text(text)
        calibrate(folder, fingerprint_without_torch().machine)
        return cls(folder, {**env, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "COLUMNS": "160"})

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

    def now(self) -> list[str]:
        """The states without the start of a process: they are asked for again and again while the jobs compute."""
        return [state.state for state in cell_states(self.submission())]

    def submission(self) -> jobs.Submission:
        return jobs.submissions(self.results)[-1]

    def progress(self, cell: int) -> jobs.JobReport | None:
        return jobs.progress(self.submission(), cell)

    def wait(self, ready: Callable[[], bool], what: str, seconds: float = 300) -> None:
        end = time.monotonic() + seconds
        while not ready():
            if time.monotonic() > end:
                logs = "\n".join(path.read_text() for path in self.submission().log.glob("*.err"))
                pytest.fail(f"{what} did not come: {self.zobench('status')[0]}\n{logs[-3000:]}")
            time.sleep(0.3)

    def wait_for_all(self) -> None:
        self.wait(lambda: not {"queued", "running"} & set(self.now()), "the end")

    def wait_until_measuring(self, cells: Sequence[int]) -> None:
        """Until the processes of these cells run."""
        self.wait(lambda: all((said := self.progress(c)) is not None and said.action for c in cells), "the beginning")

    def stored(self) -> list[Result]:
        store = Store(self.results)
        results = store.load()
        assert store.problems == []
        return results
