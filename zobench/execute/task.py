"""The job of one cell of a submitted sweep: it plans the cell on its node, runs it and stores the result.

A job depends on nothing but the files of its sweep: not on the process that submitted it, nor on the other jobs.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zobench.execute import jobs, plan
from zobench.execute.jobs import submitit_or_remedy
from zobench.execute.process import run_in_process
from zobench.execute.rates import calibration
from zobench.execute.sweep import is_news, perform
from zobench.measure.environment import failed, fingerprint_without_torch
from zobench.result import Outcome, Result
from zobench.store import Store, StoreError

if TYPE_CHECKING:
    from submitit import JobEnvironment
    from submitit.helpers import DelayedSubmission

LEADER_SECONDS = 300.0  # how long the other nodes of a job wait for the first one's plan
FIRST_PORT, PORTS = 20000, 12000
"""Rendezvous ports: a job's follows from its number, which all its nodes know; below 32768, where Linux takes ports for
its own use."""


@dataclass(frozen=True)
class CellJob:
    """A cell's job as submitit pickles it: the sweep's folder and the cell's index. Everything else is read from the
    folder."""

    folder: str
    cell: int

    def __call__(self) -> None:
        """Runs the cell on this node of a Slurm job. Raises ``SystemExit`` if it is ended before."""
        environment = submitit_or_remedy().JobEnvironment()
        submission = jobs.Submission.read(Path(self.folder))
        if environment.num_nodes > 1:
            os.environ |= rendezvous(environment)
        attempt = int(os.environ.get("SLURM_RESTART_COUNT", "0"))
        if environment.node > 0:
            follow(submission, self.cell, environment.job_id, attempt)
        elif not run_cell(submission, self.cell, job=environment.job_id, attempt=attempt):
            if not jobs.is_cancelled(submission):
                _back_into_the_queue(environment.raw_job_id)
            raise SystemExit("this job was ended before its cell was done")

    def checkpoint(self) -> DelayedSubmission:
        """Called by submitit when the job is preempted: the cell is submitted again, from its beginning."""
        delayed: DelayedSubmission = submitit_or_remedy().helpers.DelayedSubmission(self)
        return delayed


def rendezvous(environment: JobEnvironment) -> dict[str, str]:
    """Where a cell's nodes meet: ``ZOBENCH_RENDEZVOUS`` (host:port of the first node) and ``ZOBENCH_NODE_COUNT``."""
    port = FIRST_PORT + int(environment.raw_job_id) % PORTS
    address = os.environ.get("SLURM_LAUNCH_NODE_IPADDR", "")  # of the first node, where the job's script runs srun
    host = address if address.count(".") == 3 else environment.hostnames[0]
    return {"ZOBENCH_RENDEZVOUS": f"{host}:{port}", "ZOBENCH_NODE_COUNT": str(environment.num_nodes)}


def run_cell(submission: jobs.Submission, cell: int, *, job: str, attempt: int = 0, worker: int = 0) -> bool:
    """Plans, runs, stores and reports a cell, lost if it cannot be stored; False, and nothing stored, after SIGTERM."""
    if jobs.is_cancelled(submission):
        return True
    report = jobs.JobReport(
        job=job, host=socket.gethostname(), began=time.time(), attempt=attempt, worker=worker,
        machine=fingerprint_without_torch().machine,
    )  # fmt: skip
    try:
        with stopped_by_sigterm():
            jobs.write_report(submission, cell, report)
            result, report = _measured(submission, cell, report)
        outcome, reason = str(result.outcome), " ".join(result.reason.split())
    except KeyboardInterrupt:
        return False
    except StoreError as error:  # its disk is full, which is no reason to leave a pool's other cells out
        outcome, reason = "lost", f"its result could not be stored: {error.strerror or error}"
    jobs.write_report(submission, cell, replace(report, ended=time.time(), outcome=outcome, reason=reason))
    return True


def _measured(submission: jobs.Submission, cell: int, report: jobs.JobReport) -> tuple[Result, jobs.JobReport]:
    """Plans, runs and stores the cell; returns its result and the report with the plan's action."""
    spec, store = submission.cells[cell], Store(submission.results)
    disk_dir = None if submission.disk_dir is None else Path(submission.disk_dir)
    try:
        rates = calibration(store.root, report.machine, spec.device, disk_dir)
        planned = plan.for_machine([spec], store, report.machine, spec.device, submission.retry, disk_dir, rates)
    except (OSError, ValueError) as error:  # a node without the device, or a disk folder that it lacks
        result = failed(spec, Outcome.FAILED, str(error))
        if store.find(spec, report.machine) is None:  # what was measured before stays
            store.save(result)
        return result, report
    (step,) = planned.steps
    report = replace(report, action=step.action)
    jobs.write_report(submission, cell, report)
    result = perform(step, None, submission.timeout, disk_dir, planned.rates, journal=store.draft(spec, report.machine))
    if is_news(step, result):
        store.save(result)
    return result, report


def follow(submission: jobs.Submission, cell: int, job: str, attempt: int) -> None:
    """On a node other than the cell's first: runs this node's ranks if the first node, which plans, runs the cell.

    Raises ``OSError`` if the first node never says what it does.
    """
    end = time.monotonic() + LEADER_SECONDS
    while time.monotonic() < end:
        report = jobs.progress(submission, cell)
        if report is not None and (report.job, report.attempt) == (job, attempt):
            if report.action == "run":
                disk_dir = None if submission.disk_dir is None else Path(submission.disk_dir)
                with stopped_by_sigterm(), contextlib.suppress(KeyboardInterrupt):
                    run_in_process(submission.cells[cell], timeout=submission.timeout, disk_dir=disk_dir)
                return
            if report.action or report.outcome:
                return
        elif jobs.is_cancelled(submission):
            return
        time.sleep(0.5)
    raise OSError(f"the first node of job {job} must say what it does, but was silent for {LEADER_SECONDS:.0f} s")


@contextlib.contextmanager
def stopped_by_sigterm() -> Iterator[None]:
    """Inside the block SIGTERM raises KeyboardInterrupt, which ends the cell's process; nothing is stored."""
    before: Any = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _back_into_the_queue(job: str) -> None:
    """Asks Slurm to run this job again, if it is still running: then it was not cancelled, but is about to be
    preempted (and a job that ends within that grace time would count as done)."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):  # no Slurm commands on the nodes: it decides alone
        command = ["squeue", "--noheader", "--jobs", job, "--format", "%T"]
        state = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout.strip()
        if state == "RUNNING":
            subprocess.run(["scontrol", "requeue", job], timeout=30, check=True)
