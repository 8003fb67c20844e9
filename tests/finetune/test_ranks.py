"""A run of two ranks as a user has it: a cell of a sweep, and the user's own torchrun, which loses a rank or ends."""

import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import gone, torchrun
from zobench import programs
from zobench.execute.process import run_in_process
from zobench.result import Outcome, Result
from zobench.runspec import RunSpec
from zobench.training.run import sealed

SCRIPT = """
import os, signal, sys, time
from pathlib import Path
from zobench.cli import main
from zobench.training import training
from zobench.measure import samples

steps, lost, counted = {"launcher": 6, "rank": 13}, os.environ["LOST"], training.Training._step
open(f"{sys.argv[1]}-{os.environ['RANK']}.pid", "w").write(str(os.getpid()))

def step(self):
    counted(self)
    if self._record.step == steps[lost] and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        written = Path(f"{sys.argv[1]}-{lost}.written")
        if os.environ["RANK"] == "0":
            written.touch()
        else:
            while not written.exists():  # rank 0 writes the journal, maybe later than rank 1 takes the step
                time.sleep(0.01)
            os.kill(os.getpid() if lost == "rank" else os.getppid(), signal.SIGKILL)
        if lost == "launcher":
            time.sleep(60)  # it is over before

training.Training._step = step
samples.DISTURBING_CORES = -1.0  # another process is too much, if it counts
main(sys.argv[2:])
"""
linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent is gone")


@pytest.mark.slow
@linux
def test_torchrun_loses_itself_and_then_a_rank_and_the_run_ends_as_the_cell_that_nobody_killed(
    spec: Any, data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZOBENCH_DATA_DIR", str(data_dir))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # as this process has
    (tmp_path / "disk").mkdir()
    wanted = spec(gpus=2, parallel="pertp", exact=True, steps=20, eval_every=5)
    cell = run_in_process(wanted, disk_dir=tmp_path / "disk", journal=tmp_path / "journal")
    assert cell.outcome is Outcome.OK, cell.reason
    assert sealed(tmp_path / "journal") == cell.environment.journal_sha256
    alone = programs.run(wanted.alone())
    assert (cell.evaluation, cell.samples["loss"]) == (alone.evaluation, alone.samples["loss"])
    assert len(cell.environment.ranks) == 2
    assert list((tmp_path / "disk").iterdir()) == []

    usual = RunSpec(model="opt-tiny").to_dict()
    fields = {name: value for name, value in wanted.to_dict().items() if value != usual[name]}
    words = ["--max-restarts", "1", tmp_path / "script.py", tmp_path / "r", "finetune", "--model", "opt-tiny"]
    words += ["--out", "mine", *(f"--set={name}={value}" for name, value in fields.items())]
    (tmp_path / "script.py").write_text(SCRIPT)
    once_more = {"timeout": 200, "folder": tmp_path}
    first = torchrun(2, *words, **once_more, LOST="launcher")
    assert first.returncode == -signal.SIGKILL, first.stderr[-3000:]
    assert all(gone(int((tmp_path / f"r-{rank}.pid").read_text()), 30) for rank in range(2))
    done = torchrun(2, *words, "--resume", **once_more, LOST="rank")
    assert done.returncode == 0, done.stderr[-3000:]
    lines = done.stderr.splitlines()
    assert "goes on after step 6, from mine/snapshot-5" in lines
    assert "goes on after step 13, from mine/snapshot-10" in lines
    result = Result.from_dict(json.loads((tmp_path / "mine" / "result.json").read_text()))
    assert result.spec.hash == cell.spec.hash
    assert result.evaluation == cell.evaluation
    assert result.samples["loss"] == cell.samples["loss"]
    assert (tmp_path / "mine" / "model").is_dir()
    assert not [line for line in result.warnings if "other processes" in line]  # the other rank is none
