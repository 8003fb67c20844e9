"""Sweeps on a real Slurm: nothing depends on the submitter, and whatever is killed costs its own cell and no other."""

import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.site import SIDE_BY_SIDE, Site

pytestmark = pytest.mark.slow
Make = Callable[..., Site]
SLOW = 400
"""Steps of a cell that takes some seconds."""


def _processes(command: bytes, **environment: str) -> dict[int, dict[str, str]]:
    """Process to environment of all whose command line has ``command``, but for srun, and whose environment these."""
    states = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            line, text = (entry / "cmdline").read_bytes(), (entry / "environ").read_text()
        except (OSError, UnicodeDecodeError):
            continue
        facts = dict(pair.split("=", 1) for pair in text.split("\0") if "=" in pair)
        if command in line and b"srun" not in line and environment.items() <= facts.items():
            states[int(entry.name)] = facts
    return states


def _job(site: Site) -> str:
    said = site.progress(0)
    return said.job.partition("_")[0]


def test_six_cells_end_with_six_results_whatever_becomes_of_the_submitter(site: Make) -> None:
    jobs = site(6)
    submitter = jobs.start("sweep", "cells.toml", *SIDE_BY_SIDE)
    jobs.wait(lambda: any(jobs.results.glob(".jobs/*/jobs.json")), "the submission", 30)
    submitter.kill()
    submitter.communicate()
    _, output = jobs.sweep(code=1)  # a second sweep of the same cells
    assert "a cell must be in one sweep at a time, but 6 of these are queued or running in cells" in output
    seen: set[str] = set()
    jobs.wait(lambda: bool(seen.update(now := jobs.now())) or not {"queued", "running"} & set(now), "the end")
    assert seen >= {"queued", "running"}
    assert jobs.states() == ["done"] * 6
    assert sorted((result.spec.seed, str(result.outcome)) for result in jobs.stored()) == [(n, "ok") for n in range(6)]
    assert "0 of 6 cells to submit" in jobs.sweep()[1]
    assert len(list(jobs.results.glob(".jobs/*"))) == 1


def test_a_job_that_is_killed_loses_its_cell_and_the_same_sweep_repeats_only_that(site: Make) -> None:
    jobs = site(3, steps=SLOW)
    jobs.sweep()
    jobs.wait_until_measuring(range(3))
    (task,) = _processes(b"submitit.core._submit", SLURM_ARRAY_JOB_ID=_job(jobs), SLURM_ARRAY_TASK_ID="1")
    os.kill(task, signal.SIGKILL)
    jobs.ask("scancel", f"{_job(jobs)}_2")
    jobs.wait_for_all()
    assert jobs.states() == ["done", "lost", "lost"]
    before = {path: path.stat().st_mtime_ns for path in jobs.results.glob("*/*.json")}
    assert sorted(result.spec.seed for result in jobs.stored()) == [0]
    assert "2 of 3 cells to submit" in jobs.sweep("--retry", "failed")[1]
    jobs.wait_for_all()
    assert jobs.states() == ["done", "done"]
    assert sorted((result.spec.seed, str(result.outcome)) for result in jobs.stored()) == [(n, "ok") for n in range(3)]
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_a_job_that_is_put_back_into_the_queue_ends_with_its_result_once(site: Make) -> None:
    """By submitit, warned by its signal; by us, warned by SIGTERM; by Slurm, for a job of higher priority."""
    jobs = site(3, steps=3 * SLOW)
    jobs.sweep()
    jobs.wait_until_measuring(range(3))
    job = _job(jobs)
    jobs.ask("scancel", "--signal=USR2", f"{job}_0")
    jobs.ask("scancel", "--signal=TERM", f"{job}_1")
    jobs.wait(lambda: jobs.now()[:2] == ["queued"] * 2, "the queue", 30)
    assert jobs.stored() == [] or jobs.states()[2] == "done"
    jobs.ask("sbatch", "--partition=urgent", "--exclusive", "--output=/dev/null", "--wrap", "sleep 1")
    jobs.wait(lambda: "running" not in jobs.now(), "the job of higher priority", 30)
    for cell in (cell for cell, state in enumerate(jobs.now()) if state == "queued"):
        jobs.ask("scontrol", "update", f"JobId={job}_{cell}", "StartTime=now")  # else two minutes later
    jobs.wait_for_all()
    assert jobs.states() == ["done"] * 3
    assert sorted((result.spec.seed, str(result.outcome)) for result in jobs.stored()) == [(n, "ok") for n in range(3)]
    said = [jobs.progress(cell) for cell in range(3)]
    assert [report is not None and report.attempt for report in said] == [1] * 3


def test_cancelled_cells_are_not_stored_and_can_be_swept_again(site: Make) -> None:
    jobs = site(3, steps=10**6)
    jobs.sweep("--jobs", "1")
    jobs.wait_until_measuring([0])
    assert jobs.states() == ["running", "queued", "queued"]
    out, _ = jobs.zobench("cancel")
    assert out.endswith(": 1 running, 2 queued\n")
    jobs.wait_for_all()
    assert jobs.states() == ["cancelled"] * 3
    assert jobs.stored() == []
    assert jobs.zobench("cancel", "cells")[0] == "nothing is queued or running\n"
    assert jobs.ask("squeue", "--noheader") == ""
    assert "3 of 3 cells to submit" in jobs.sweep("--dry-run")[0]


def test_what_slurm_refuses_is_one_line_and_leaves_nothing(site: Make) -> None:
    jobs = site(2)
    _, output = jobs.zobench("sweep", "cells.toml", "--executor", "slurm", "--partition", "none", code=2)
    assert output.splitlines()[-1].startswith("zobench: `sbatch` must take the jobs, but said: invalid partition")
    assert list(jobs.results.glob(".jobs/*")) == []


def test_a_cell_on_two_nodes_runs_on_both_and_is_stored_once(site: Make) -> None:
    jobs = site(1, gpus=2, nodes=2, parallel="ddp", batch_size=2)
    jobs.zobench("sweep", "cells.toml", "--executor", "slurm", "--partition", "both")
    jobs.wait(lambda: len(_processes(b"zobench.execute.child", ZOBENCH_NODE_COUNT="2")) == 2, "both processes")
    first, second = _processes(b"zobench.execute.child", ZOBENCH_NODE_COUNT="2").values()
    assert {first["SLURM_NODEID"], second["SLURM_NODEID"]} == {"0", "1"}
    host, port = first["ZOBENCH_RENDEZVOUS"].split(":")
    assert first["ZOBENCH_RENDEZVOUS"] == second["ZOBENCH_RENDEZVOUS"]
    assert socket.gethostbyname(host) == host
    assert 20000 <= int(port) < 40000
    jobs.wait_for_all()
    assert jobs.states() == ["done"]
    assert [str(result.outcome) for result in jobs.stored()] == ["ok"]
    jobs.wait(lambda: jobs.ask("squeue", "--noheader") == "", "the end of the second node", 30)
    ended = [path.read_text() for path in sorted(jobs.submission().log.glob("*_log.out"))]
    assert ["Job completed successfully" in text for text in ended] == [True, True]
