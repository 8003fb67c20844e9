"""Submitted sweeps: what was handed to Slurm or to the local pool, as small JSON files that any process can read.

A sweep is a folder ``.jobs/<id>/`` inside its results folder. ``sweep.json`` says what was submitted; the job of a cell
writes ``<cell>.json``; ``jobs.json`` holds the scheduler's ids; ``cancelled.json`` exists once somebody cancelled.
``log/`` is submitit's: what jobs print, and a pickled folder's name and number, which only submitit reads.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from zobench.execute.plan import is_settled
from zobench.machine.files import replace
from zobench.machine.texts import first_line, json_of
from zobench.result import Result
from zobench.runspec import RunSpec
from zobench.store import Store

FOLDER = ".jobs"  # beside the machines' folders of a store, which holds no results
ACTIVE = ("queued", "running")
"""States of a cell that is still to come; the others are ``lost``, ``cancelled``, ``unknown`` and the outcomes."""
LATEST = 1e11
"""Seconds since 1970 beyond which a time is none."""
_WHERE = {"slurm": "no squeue here to ask", "local": "only the machine with {} can tell"}
"""Why a cell's state is unknown, by executor."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Submission:
    """The cells that one sweep handed over. ``groups``: the cells (indices) of each job array; of a pool there is one.
    ``place`` says where jobs of this kind run. ``timeout`` in seconds. ``gpus``: UUIDs that a pool may use.
    ``submitted``: seconds since 1970."""

    folder: Path
    name: str
    executor: str
    cells: tuple[RunSpec, ...]
    groups: tuple[tuple[int, ...], ...]
    submitted: float
    place: str = ""
    retry: tuple[str, ...] = ()
    timeout: float | None = None
    disk_dir: str | None = None
    gpus: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """Eight hexadecimal digits, the name of its folder."""
        return self.folder.name

    @property
    def results(self) -> Path:
        """The root of the store that it writes to."""
        return self.folder.parent.parent

    @property
    def log(self) -> Path:
        """The folder into which submitit writes what the jobs print."""
        return self.folder / "log"

    def job_name(self, group: int) -> str:
        """The name in Slurm of the array of ``group``. With it the jobs are known even if the submitter died."""
        return f"zobench-{self.id}-{group}"

    def write(self) -> None:
        """Makes the folder. Raises ``OSError`` where it cannot be written."""
        body = asdict(self) | {"cells": [spec.to_dict() for spec in self.cells]}
        del body["folder"]  # it may move, with the results
        self.log.mkdir(parents=True)
        write_json(self.folder / "sweep.json", body)

    @classmethod
    def read(cls, folder: Path) -> Submission:
        """The inverse of :meth:`write`. Raises ``ValueError`` or ``OSError`` for a folder that holds none."""
        body = json_of((folder / "sweep.json").read_text())
        try:
            lists = {key: tuple(body[key]) for key in ("retry", "gpus")}
            groups = tuple(tuple(group) for group in body["groups"])
            cells = tuple(RunSpec.from_stored(values) for values in body["cells"])
            if sorted(cell for group in groups for cell in group) != list(range(len(cells))):
                raise TypeError("its groups are not of its cells")
            if body["executor"] not in _WHERE:
                raise TypeError(f"its executor is {body['executor']!r}")
            if type(body["submitted"]) not in (int, float) or not 0 <= body["submitted"] < LATEST:
                raise TypeError(f"it was submitted at {body['submitted']!r}")
            return cls(**{**body, **lists, "folder": folder, "groups": groups, "cells": cells})
        except (KeyError, TypeError) as error:
            raise ValueError(f"{folder / 'sweep.json'} is not a submitted sweep: {error}") from None


@dataclass(frozen=True, kw_only=True, slots=True)
class JobReport:
    """The report of a cell's job on itself: ``outcome`` is "" until it has ended. Times: seconds since 1970.
    ``attempt``: how often Slurm has requeued the job. ``action`` is its plan's: run, keep, skip."""

    job: str
    host: str
    began: float
    attempt: int = 0
    worker: int = 0
    action: str = ""
    machine: str = ""
    ended: float | None = None
    outcome: str = ""
    reason: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueEntry:
    """The entry of a cell that is not done in the queue of Slurm or of the pool: ``state`` is "queued" or "running"."""

    job: str
    state: str
    reason: str = ""
    host: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class CellState:
    """One row of ``zobench status``."""

    spec: RunSpec
    state: str
    job: str = ""
    host: str = ""
    reason: str = ""
    seconds: float | None = None

    @property
    def word(self) -> str:
        """The state as it is shown."""
        return "done" if self.state == "ok" else self.state


def new_folder(results: Path) -> Path:
    """Where a new sweep into ``results`` keeps its records; nothing is made."""
    return results.absolute() / FOLDER / secrets.token_hex(4)


def submissions(results: Path) -> list[Submission]:
    """Every sweep that was submitted into ``results``, the oldest first, without folders that cannot be read."""
    sweeps = []
    for path in (results / FOLDER).glob("*/sweep.json"):
        with contextlib.suppress(OSError, ValueError):  # half written, or of a later version
            sweeps.append(Submission.read(path.parent))
    return sorted(sweeps, key=lambda sweep: (sweep.submitted, sweep.id))


def progress(submission: Submission, cell: int) -> JobReport | None:
    """Returns the report of the job of ``cell`` (an index); None before it begins. Raises ``ValueError`` for another
    file."""
    path = submission.folder / f"{cell}.json"
    try:
        report = JobReport(**json_of(path.read_text()))
        texts = (report.job, report.host, report.action, report.machine, report.outcome, report.reason)
        times = (report.began, *([] if report.ended is None else [report.ended]))
        if {type(text) for text in texts} != {str} or not {type(seconds) for seconds in times} <= {int, float}:
            raise TypeError("one of its fields is of another kind")
        return report
    except FileNotFoundError:
        return None
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{path} must be what a job wrote, but {first_line(error)}; delete it: its cell is lost"
        ) from None


def write_report(submission: Submission, cell: int, report: JobReport) -> None:
    """Writes what :func:`progress` reads: all of it, or nothing if the process ends meanwhile."""
    write_json(submission.folder / f"{cell}.json", asdict(report))


def job_ids(submission: Submission) -> list[str]:
    """The scheduler's ids, one per group; empty if the submitter ended before it could write them."""
    try:
        listed = json_of((submission.folder / "jobs.json").read_text())
    except FileNotFoundError:
        return []
    if not isinstance(listed, list):
        raise ValueError(f"{submission.folder / 'jobs.json'} must list jobs, but does not; remove it")
    return [str(job) for job in listed]


def is_cancelled(submission: Submission) -> bool:
    return (submission.folder / "cancelled.json").exists()


def mark_cancelled(submission: Submission) -> None:
    """Notes that the sweep is cancelled: a job of it that is put back into the queue ends at once."""
    write_json(submission.folder / "cancelled.json", {"when": time.time()})


def states(submission: Submission, queue: Mapping[int, QueueEntry] | None) -> list[CellState]:
    """How each cell of ``submission`` stands. ``queue``: the cells that the scheduler still knows, asked for before
    this call, so that what has left it has said its last word; None if it cannot be asked."""
    gone, ids = is_cancelled(submission), job_ids(submission)
    job_index = {
        cell: (group, index) for group, cells in enumerate(submission.groups) for index, cell in enumerate(cells)
    }
    blind = "" if queue is not None else _WHERE[submission.executor].format(submission.place)
    rows = []
    for cell, spec in enumerate(submission.cells):
        group, index = job_index[cell]
        job = ""
        if submission.executor == "slurm" and group < len(ids):
            job = f"{ids[group]}_{index}" if len(submission.groups[group]) > 1 else ids[group]
        rows.append(_state(spec, progress(submission, cell), (queue or {}).get(cell), blind, gone, job))
    return rows


def _state(
    spec: RunSpec, report: JobReport | None, entry: QueueEntry | None, blind: str, cancelled: bool, job: str
) -> CellState:
    job, host = (report.job, report.host) if report else (entry.job if entry else job, "")
    if report is not None and report.outcome:
        seconds = None if report.ended is None else report.ended - report.began
        reason = report.reason if report.outcome != "ok" else "kept" if report.action == "keep" else ""
        return CellState(spec=spec, state=report.outcome, job=job, host=host, reason=reason, seconds=seconds)
    if entry is not None:
        seconds = time.time() - report.began if report and entry.state == "running" else None
        host = (host or entry.host) if entry.state == "running" else ""
        return CellState(spec=spec, state=entry.state, job=entry.job, host=host, reason=entry.reason, seconds=seconds)
    state = "unknown" if blind else "cancelled" if cancelled else "lost"
    reason = {"lost": "its job ended without a result; the same sweep runs it again", "unknown": blind}.get(state, "")
    return CellState(spec=spec, state=state, job=job, host=host, reason=reason)


def machines(sweeps: Iterable[Submission], executor: str, site: str) -> set[str]:
    """The ids of the machines that jobs of this kind have run on, as far as sweeps into this store know."""
    alike = [sweep for sweep in sweeps if (sweep.executor, sweep.place) == (executor, site)]
    reports = (progress(sweep, cell) for sweep in alike for cell in range(len(sweep.cells)))
    return {report.machine for report in reports if report is not None and report.machine}


def kept(
    cells: Sequence[RunSpec], store: Store, places: Iterable[str], retry: Collection[str]
) -> dict[RunSpec, Result]:
    """The stored results of cells that one of ``places`` has whole, with an outcome that ``retry`` does not name."""
    results: dict[RunSpec, Result] = {}
    for machine in sorted(places):
        for spec in cells:
            result = store.find(spec, machine)
            if result is not None and is_settled(result, retry):
                results.setdefault(spec, result)
    return results


def write_json(path: Path, body: Any) -> None:
    """Puts ``body`` at ``path`` in one step, so that a reader finds all of it or none, also after a power loss."""
    replace(path, (json.dumps(body, indent=1) + "\n").encode())


def submitit_or_remedy() -> Any:
    """The module ``submitit``. Raises ``ImportError`` with the remedy where it is not installed."""
    try:
        import submitit
    except ImportError:
        raise ImportError(
            "submitting a sweep needs submitit, but it is not installed; pip install 'zobench[cluster]'"
        ) from None
    return submitit


def counts(states: Sequence[CellState]) -> str:
    """``7 done, 2 running, 3 queued``."""
    words = [state.word for state in states]
    order = ("done", "running", "queued", *words)
    return ", ".join(f"{words.count(word)} {word}" for word in dict.fromkeys(order) if word in words)
