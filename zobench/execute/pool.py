"""The local pool: workers in the background, each running one cell after the other, never two on one GPU.

Workers are submitit's local jobs, so they outlive the process that starts them. Each holds the lock of its own file
while it lives; which cell comes next is decided under one more lock. A cell on GPUs runs while it leases them: locks
by UUID that every pool of this machine respects.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from zobench.execute import jobs
from zobench.execute.jobs import JobReport, QueueEntry, Submission, submitit_or_remedy
from zobench.execute.process import child_environment
from zobench.execute.task import run_cell, stopped_by_sigterm
from zobench.machine.files import is_locked, lock, locked, writing
from zobench.runspec import RunSpec

LEASES = Path("/tmp/zobench-gpus")
"""A file per GPU, locked while a cell has it. TMPDIR would give every user and every session leases of their own."""
FOREVER_MINUTES = 60 * 24 * 365.0
"""Submitit ends a local job after a time; a worker's is that of all its cells, which have limits of their own."""
WAIT_SECONDS, START_SECONDS = 0.5, 30


@dataclass(frozen=True)
class PoolWorker:
    """A worker of the pool as submitit pickles it: the sweep's folder and the worker's number."""

    folder: str
    number: int

    def __call__(self) -> None:
        """Runs cells until none is left, the sweep is cancelled or SIGTERM comes."""
        submission = Submission.read(Path(self.folder))
        with _alive(submission, self.number), stopped_by_sigterm():
            while (cell := _next(submission, self.number)) is not None:
                needed = min(gpus_needed(submission.cells[cell]), len(submission.gpus))  # its plan says what it lacks
                with leased(submission.gpus, needed) as taken:
                    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(taken)  # of the cell's process, and all asked before
                    done = run_cell(submission, cell, job=_job(self.number), worker=self.number)
                if not done:
                    raise SystemExit("this worker was ended before its cell was done")


def host_name() -> str:
    """The name of this machine, to which a pool belongs: its locks and processes mean nothing on another one."""
    return f"host={socket.gethostname()}"


def gpus_needed(spec: RunSpec) -> int:
    return spec.gpus if spec.device.startswith("cuda") else 0


def workers(cells: Sequence[RunSpec], gpus: Sequence[str], side_by_side: int | None) -> int:
    """How many workers: one per GPU, or on a CPU one, unless ``side_by_side`` says otherwise; never more than cells."""
    usual = max(1, len(gpus)) if any(map(gpus_needed, cells)) else 1
    return min(side_by_side or usual, len(cells))


def submit(submission: Submission, count: int) -> list[str]:
    """Starts ``count`` detached workers and returns their names. Raises ``OSError`` if one does not start."""
    submitit = submitit_or_remedy()
    names = [_job(number) for number in range(count)]
    jobs.write_json(submission.folder / "jobs.json", names)  # first: who asks must find the workers that there are
    executor = submitit.LocalExecutor(folder=submission.log)
    executor.update_parameters(timeout_min=FOREVER_MINUTES, gpus_per_node=0)
    with _detached(), submitit.helpers.environment_variables(PYTHONPATH=child_environment()["PYTHONPATH"]):
        for number in range(count):
            executor.submit(PoolWorker(str(submission.folder), number))
    for path in (_worker_lock(submission, number) for number in range(count)):
        end = time.monotonic() + START_SECONDS
        while not (path.exists() and path.read_text()):  # it holds its lock, or is done already
            if time.monotonic() > end:
                raise OSError(f"a worker must start within {START_SECONDS} s, but did not; see {submission.log}")
            time.sleep(0.05)
    return names


def look(submission: Submission) -> dict[int, QueueEntry] | None:
    """The cells that are queued or running, by index; None if the pool is another machine's."""
    if submission.place != host_name():
        return None
    count = len(jobs.job_ids(submission))
    pids = {number: pid for number in range(count) if (pid := _pid(submission, number)) is not None}
    if not pids:
        return {}
    entries = {}
    for cell in range(len(submission.cells)):
        report = jobs.progress(submission, cell)
        if report is None:
            entries[cell] = QueueEntry(job="", state="queued")
        elif not report.outcome and report.worker in pids:
            waits = not report.machine  # it has not come to its plan
            reason = "waits for a GPU" if waits and gpus_needed(submission.cells[cell]) else ""
            entries[cell] = QueueEntry(
                job=report.job, state="queued" if waits else "running", host=report.host, reason=reason
            )
    return entries


def check(submission: Submission) -> None:
    """Raises ``ValueError`` on a machine that is not the pool's."""
    if submission.place != host_name():
        raise ValueError(
            f"`cancel` must run where the pool does, but {submission.name} was started with {submission.place}, "
            f"and this is {host_name()}; run it there"
        )


def cancel(submission: Submission) -> None:
    """Ends the workers; the cells that they were running are not stored. Needs the pool's machine (:func:`check`)."""
    for number in range(len(jobs.job_ids(submission))):
        pid = _pid(submission, number)
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):  # it was just done
                os.kill(pid, signal.SIGTERM)


@contextlib.contextmanager
def leased(gpus: Sequence[str], count: int) -> Iterator[tuple[str, ...]]:
    """Waits until ``count`` of ``gpus`` (UUIDs) are free, and leases them inside the block: all at once or none, as two
    workers that each held half of what they need would wait for ever."""
    if not count:
        yield ()
        return
    with contextlib.ExitStack() as stack:
        while len(taken := _try(gpus, count, stack)) < count:
            stack.close()
            time.sleep(WAIT_SECONDS)
        yield taken


def _try(gpus: Sequence[str], count: int, stack: contextlib.ExitStack) -> tuple[str, ...]:
    taken: list[str] = []
    for uuid in gpus:
        file = stack.enter_context(_lease_file(uuid))
        if lock(file.fileno(), wait=False):
            taken.append(uuid)
        if len(taken) == count:
            break
    return tuple(taken)


def _lease_file(uuid: str) -> IO[bytes]:
    """A file that every user of this machine can lock, whoever made it."""
    with contextlib.suppress(FileExistsError):
        LEASES.mkdir()
        LEASES.chmod(0o1777)
    path = LEASES / uuid
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
        path.chmod(0o644)  # whatever the umask is
    return path.open("rb")


def _next(submission: Submission, worker: int) -> int | None:
    """The first cell that no worker has begun, now begun by this one."""
    with locked(submission.folder / "queue.lock"):
        for cell in range(len(submission.cells)):
            if jobs.is_cancelled(submission):
                return None
            if jobs.progress(submission, cell) is None:
                host, now = socket.gethostname(), time.time()
                jobs.write_report(submission, cell, JobReport(job=_job(worker), host=host, began=now, worker=worker))
                return cell
    return None


def _job(number: int) -> str:
    return f"worker {number}"


def _worker_lock(submission: Submission, number: int) -> Path:
    return submission.folder / f"worker-{number}.lock"


@contextlib.contextmanager
def _alive(submission: Submission, number: int) -> Iterator[None]:
    """Holds this worker's lock inside the block. Its file has the process id; the lock ends with the process."""
    path = _worker_lock(submission, number)
    with locked(path):
        with writing(path):
            path.write_text(str(os.getpid()))
        yield


def _pid(submission: Submission, number: int) -> int | None:
    path = _worker_lock(submission, number)
    text = path.read_text() if is_locked(path) else ""
    return int(text) if text else None


@contextlib.contextmanager
def _detached() -> Iterator[None]:
    """Processes that start meanwhile keep neither this one's terminal nor its pipes, and survive their closing."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # inherited, as by nohup
    kept, null = [os.dup(number) for number in range(3)], os.open(os.devnull, os.O_RDWR)
    try:
        for number in range(3):
            os.dup2(null, number)
        yield
    finally:
        for number, saved in enumerate(kept):
            os.dup2(saved, number)
            os.close(saved)
        os.close(null)
        signal.signal(signal.SIGHUP, before)
