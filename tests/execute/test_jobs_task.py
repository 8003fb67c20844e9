"""The job of one cell: what it stores when it is ended, and what the other nodes of a job do."""

import os
import signal
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.rates import CALIBRATION
from tests.support.submissions import submitted
from zobench.execute import jobs, sweep, task
from zobench.execute.jobs import JobReport
from zobench.measure.environment import failed
from zobench.result import Outcome, Result
from zobench.runspec import RunSpec
from zobench.store import Store, StoreError


@pytest.fixture(autouse=True)
def _known_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zobench.execute.task.calibration", lambda *_: CALIBRATION)
    monkeypatch.setattr(sweep, "SETTLE_SECONDS", 0.0)


def runs(monkeypatch: pytest.MonkeyPatch, outcome: Outcome, reason: str = "", stop: bool = False) -> list[int]:
    """Replaces a cell's process; the seeds that it was called for. ``stop``: SIGTERM comes right after."""
    seeds: list[int] = []

    def run(spec: RunSpec, **_: Any) -> Result:
        seeds.append(spec.seed)
        if stop:
            threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGTERM)).start()
        return failed(spec, outcome, reason)

    monkeypatch.setattr(sweep, "run_in_process", run)
    monkeypatch.setattr(task, "run_in_process", run)
    return seeds


def test_a_cell_is_planned_run_stored_and_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, seeds = submitted(tmp_path), runs(monkeypatch, Outcome.FAILED, "it broke")
    assert task.run_cell(made, 1, job="7_1", attempt=2)
    (result,) = Store(tmp_path).load()
    assert (result.spec, result.reason, result.environment.calibration) == (made.cells[1], "it broke", CALIBRATION)
    said = jobs.progress(made, 1)
    assert (said.job, said.attempt, said.action, said.outcome, said.reason) == ("7_1", 2, "run", "failed", "it broke")
    assert said.machine == result.environment.machine
    assert said.ended is not None
    assert task.run_cell(replace(made, retry=()), 1, job="8_1")  # kept: this machine has it
    again = jobs.progress(made, 1)
    assert (again.action, again.outcome) == ("keep", "failed")
    assert seeds == [1]


def test_a_cell_that_is_ended_is_as_if_it_had_never_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGTERM reaches the cell's process first, as it can: that the cell failed is not stored."""
    made, before = submitted(tmp_path), signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(sweep, "SETTLE_SECONDS", 10.0)
    runs(monkeypatch, Outcome.FAILED, "the cell's process was ended by SIGTERM", stop=True)
    assert not task.run_cell(made, 0, job="7_0")
    assert Store(tmp_path).load() == []
    said = jobs.progress(made, 0)
    assert said.outcome == ""
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_result_that_cannot_be_stored_is_lost_and_its_worker_goes_on(tmp_path, monkeypatch) -> None:
    def full(*_: object) -> None:
        raise StoreError(28, "a result must be writable, but the disk is full")

    made, seeds = submitted(tmp_path), runs(monkeypatch, Outcome.OK)
    monkeypatch.setattr(Store, "save", full)
    assert task.run_cell(made, 0, job="7_0")
    said = jobs.progress(made, 0)
    assert (said.outcome, said.reason) == (
        "lost", "its result could not be stored: a result must be writable, but the disk is full"
    )  # fmt: skip
    (first, *_) = jobs.states(made, {})
    assert (first.state, first.reason) == ("lost", said.reason)
    assert seeds == [0]


def test_ports_of_the_rendezvous_are_none_that_linux_gives_to_outgoing_connections(monkeypatch) -> None:
    monkeypatch.setenv("SLURM_LAUNCH_NODE_IPADDR", "10.0.0.1")
    ports = []
    for job in (0, 11999, 12000, 31999, 4_000_000):
        where = task.rendezvous(SimpleNamespace(raw_job_id=str(job), num_nodes=2))  # type: ignore[arg-type]
        assert where["ZOBENCH_NODE_COUNT"] == "2"
        host, port = where["ZOBENCH_RENDEZVOUS"].split(":")
        assert host == "10.0.0.1"
        ports.append(int(port))
    assert ports == [20000, 31999, 20000, 27999, 24000]
    monkeypatch.setenv("SLURM_LAUNCH_NODE_IPADDR", "fe80::1")
    where = task.rendezvous(SimpleNamespace(raw_job_id="1", num_nodes=2, hostnames=["n1", "n2"]))  # type: ignore[arg-type]
    assert where["ZOBENCH_RENDEZVOUS"] == "n1:20001"


def test_a_cancelled_sweep_begins_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, seeds = submitted(tmp_path), runs(monkeypatch, Outcome.OK)
    jobs.mark_cancelled(made)
    assert task.run_cell(made, 0, job="7_0")
    assert (seeds, jobs.progress(made, 0)) == ([], None)


def test_a_node_that_lacks_what_the_cell_needs_is_the_cells_failure(tmp_path, monkeypatch) -> None:
    def lacks(*_: object) -> None:
        raise OSError("measuring this machine failed: no CUDA device")

    made, seeds = submitted(tmp_path), runs(monkeypatch, Outcome.OK)
    monkeypatch.setattr("zobench.execute.task.calibration", lacks)
    assert task.run_cell(made, 0, job="7_0")
    assert [(r.outcome, r.reason) for r in Store(tmp_path).load()] == [
        (Outcome.FAILED, "measuring this machine failed: no CUDA device")
    ]
    assert seeds == []


@pytest.mark.parametrize(("action", "ran"), [("run", [0]), ("keep", []), ("skip", []), ("", [])])
def test_the_other_nodes_do_what_the_first_does_and_store_nothing(action, ran, tmp_path, monkeypatch) -> None:
    """Also if it failed before it came to its plan."""
    made, seeds = submitted(tmp_path), runs(monkeypatch, Outcome.OK)
    jobs.write_report(
        made,
        0,
        JobReport(job="7_0", host="n1", began=1.0, attempt=1, action=action, outcome="" if action else "failed"),
    )
    monkeypatch.setattr(task, "LEADER_SECONDS", 0.3)
    task.follow(made, 0, "7_0", 1)
    assert seeds == ran
    assert Store(tmp_path).load() == []


def test_what_the_first_node_said_in_an_earlier_attempt_does_not_count(tmp_path, monkeypatch) -> None:
    made, seeds = submitted(tmp_path), runs(monkeypatch, Outcome.OK)
    monkeypatch.setattr(task, "LEADER_SECONDS", 0.1)
    jobs.write_report(made, 0, JobReport(job="7_0", host="n1", began=1.0, attempt=0, action="run"))
    with pytest.raises(OSError, match=r"the first node of job 7_0 must say what it does, but was silent for 0 s"):
        task.follow(made, 0, "7_0", 1)
    assert seeds == []
