"""Sweeps that are handed over to Slurm or to the local pool: which cells, their state, their end."""

from __future__ import annotations

import contextlib
import shlex
import shutil
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zobench.execute import jobs, plan, pool, slurm
from zobench.execute.jobs import CellState, Submission, submitit_or_remedy
from zobench.execute.monitor import Monitor
from zobench.execute.slurm import Request
from zobench.recipes import matrix
from zobench.runspec import RunSpec, suggestion
from zobench.session.inputs import parse_seconds
from zobench.session.machine import LocalMachine, matrix_cells
from zobench.store import BusyError, Store


@dataclass(frozen=True, kw_only=True, slots=True)
class ExecutorOptions:
    """Where a sweep runs, as typed: ``name`` is here, local or slurm, ``jobs`` the cells at once; more for Slurm."""

    name: str
    jobs: int | None = None
    partition: str | None = None
    gres: str | None = None
    time: str | None = None
    slurm: Sequence[str] = ()

    def submits(self, budget: str | None) -> bool:
        """Whether the sweep is submitted. Raises ``ValueError`` for options of another executor."""
        executors = ("here", "local", "slurm")
        if self.name not in executors:
            near = suggestion(self.name, executors)
            raise ValueError(f"`--executor` must be here, local or slurm, but got {self.name!r}; {near}")
        for option in ("partition", "gres", "time", "slurm"):
            if getattr(self, option) and self.name != "slurm":
                raise ValueError(f"`--{option}` needs --executor slurm, but got --executor {self.name}; leave it out")
        if self.name == "here" and self.jobs is not None:
            raise ValueError("`--jobs` needs --executor local or slurm, but got --executor here; leave it out")
        if self.jobs is not None and self.jobs < 1:
            raise ValueError(f"`--jobs >= 1` must hold, but got {self.jobs}; leave it out for the usual number")
        if self.name != "here" and budget is not None:
            raise ValueError(
                "`--budget` is for cells that run one after the other, but got "
                f"--executor {self.name}; use --timeout{' or --time' if self.name == 'slurm' else ''}"
            )
        return self.name != "here"

    def request(self) -> Request:
        """The resources that Slurm is asked for."""
        return Request(
            partition=self.partition, gres=self.gres, time=parse_seconds("--time", self.time) or slurm.TIME,
            side_by_side=self.jobs, more=slurm.parse_options(self.slurm),
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Handover:
    """The matrix in the file ``path``, with ``changes`` to all of its cells, to hand over. ``retry``: outcomes to run
    again; ``timeout``: seconds of a cell; ``disk_dir``: of the disk tier; ``dry``: its plan is only shown."""

    path: Path
    changes: Mapping[str, Any]
    retry: Collection[str]
    timeout: float | None
    disk_dir: Path | None
    dry: bool

    def to_slurm(self, store: Store, device: str, request: Request, monitor: Monitor) -> tuple[Submission, str] | None:
        """Submits the cells that no machine of this kind has done: the sweep, and where it went, or None. The nodes'
        ``device`` follows from the ``request``. Raises ``ValueError`` with Slurm's words if it refuses."""
        self._refuse_protocol("slurm")
        device, reason = _device_of_nodes(device, request)
        resolved, specs, note = matrix_cells(self.path, device, dict(self.changes))
        with contextlib.nullcontext() if self.dry else store.lock():
            if not self.dry:
                slurm.check()
            machines = jobs.machines(jobs.submissions(store.root), "slurm", request.site)
            kept = jobs.kept(specs, store, machines, self.retry)
            cells = tuple(spec for spec in specs if spec not in kept)
            monitor.say(reason)
            monitor.say(note)
            self._say_what_is_left_out(resolved, monitor)
            monitor.show_jobs(resolved.title, specs, cells, [slurm.resources(request, spec) for spec in cells])
            refuse_twice(store.root, cells)
            if self.dry or not cells:
                return None
            limit = min(self.timeout or request.cell_seconds, request.cell_seconds)
            submission = self._written(
                store, "slurm", cells, groups=slurm.groups(cells), place=request.site, timeout=limit
            )
            try:
                numbers = slurm.submit(submission, request)
            except ValueError:
                shutil.rmtree(submission.folder)
                raise
        return submission, f"to Slurm as job {', '.join(numbers)}"

    def to_pool(self, session: LocalMachine, side_by_side: int | None) -> tuple[Submission, str] | None:
        """Starts ``side_by_side`` workers for the cells that are not done: the sweep, and where it went, or None."""
        self._refuse_protocol("local")
        resolved, specs, note = matrix_cells(self.path, session.device, dict(self.changes), lambda: session.narrow)
        self._say_what_is_left_out(resolved, session.monitor)
        store = session.store
        with contextlib.nullcontext() if self.dry else store.lock():
            submitit_or_remedy()
            planned = session.plan(specs, self.retry, note)
            session.monitor.show_plan(resolved.title, planned.steps, None)
            cells = tuple(step.spec for step in planned.steps if step.action != "keep")
            refuse_twice(store.root, cells)
            if self.dry or not cells:
                return None
            gpus = plan.gpu_uuids() if session.device.startswith("cuda") else ()
            groups = (tuple(range(len(cells))),)
            submission = self._written(
                store, "local", cells, groups=groups, place=pool.host_name(), timeout=self.timeout, gpus=gpus
            )
            workers = len(pool.submit(submission, pool.workers(cells, gpus, side_by_side)))
        return submission, f"to {workers} worker{'' if workers == 1 else 's'} in the background"

    def _say_what_is_left_out(self, resolved: matrix.Matrix, monitor: Monitor) -> None:
        for line in resolved.notes:
            monitor.say(f"warning: {line}", "yellow")
        if keys := [key for key in ("repeats", "until", "budget", "selftest") if getattr(resolved, key) is not None]:
            left_out = f"{self.path.name}: {', '.join(keys)}: only for a sweep with --executor here"
            monitor.say(f"{left_out}; each cell runs once", "yellow")

    def _refuse_protocol(self, executor: str) -> None:
        """Raises ``ValueError`` for a protocol: which runs come second is known when the first are done."""
        if matrix.protocol_of(self.path) is not None:
            raise ValueError(
                f"the protocol {self.path.name} must run with --executor here, because its winners are known only when "
                f"its grids have run, but got --executor {executor}; leave it out"
            )

    def _written(self, store: Store, executor: str, cells: tuple[RunSpec, ...], **facts: Any) -> Submission:
        submission = Submission(
            folder=jobs.new_folder(store.root), name=self.path.stem, executor=executor, cells=cells,
            submitted=time.time(), retry=tuple(sorted(self.retry)),
            disk_dir=None if self.disk_dir is None else str(self.disk_dir.absolute()), **facts,
        )  # fmt: skip
        submission.write()
        return submission


def _device_of_nodes(wanted: str, request: Request) -> tuple[str, str]:
    """(device, reason) of the jobs, by what they ask Slurm for: this machine's devices need not be the nodes'."""
    has_gpus = "gpu" in [gres.partition(":")[0] for gres in (request.gres or "").split(",")]
    if wanted == "auto":
        return ("cuda:0", "device: cuda:0, because the jobs ask for GPUs") if has_gpus else (
            "cpu", "device: cpu, because the jobs ask for no GPU (--gres gpu:1 does)")  # fmt: skip
    if wanted.startswith("cuda") and not has_gpus:
        raise ValueError(f"`device={wanted}` needs jobs with a GPU, but got no --gres; add --gres gpu:1")
    return ("cuda:0" if wanted == "cuda" else wanted), f"device: {wanted}, as asked"


def refuse_twice(results: Path, cells: Sequence[RunSpec]) -> None:
    """Raises :class:`zobench.store.BusyError` if a submitted sweep has one of ``cells`` queued or running."""
    wanted = {spec.hash for spec in cells}
    for submission in jobs.submissions(results):
        twice = [s for s in cell_states(submission) if s.state in jobs.ACTIVE and s.spec.hash in wanted]
        if twice:
            name, number, option = submission.name, submission.id, results_option(results)
            raise BusyError(
                f"a cell must be in one sweep at a time, but {len(twice)} of these are queued or running in {name} "
                f"{number}; wait for it (zobench status{option}), end it (zobench cancel {number}{option}), "
                "or name another --results"
            )


def cell_states(submission: Submission) -> list[CellState]:
    """Where each cell of a submitted sweep is."""
    reports = [jobs.progress(submission, cell) for cell in range(len(submission.cells))]
    over = all(report is not None and report.outcome for report in reports)
    return jobs.states(submission, {} if over else _executor(submission).look(submission))


def submissions(results: Path, name: str | None) -> list[tuple[Submission, list[CellState]]]:
    """The newest sweep of every name that was submitted into ``results``, and older ones that have cells to come; or
    those of ``name``, a name or an id, alone. Raises ``ValueError`` if there is none of it."""
    sweeps = jobs.submissions(results)
    newest = {sweep.name: sweep.id for sweep in sweeps}
    names = [*newest, *(sweep.id for sweep in sweeps)]
    if name is not None and name not in names:
        remedy = suggestion(name, names) if names else "submit one with `zobench sweep NAME --executor slurm`"
        raise ValueError(f"no sweep {name!r} was submitted into {results}; {remedy}")
    rows = []
    for sweep in sweeps:
        if name is None or name in (sweep.name, sweep.id):
            states = cell_states(sweep)
            if sweep.id in (newest[sweep.name], name) or any(state.state in jobs.ACTIVE for state in states):
                rows.append((sweep, states))
    return rows


def cancel(submission: Submission) -> None:
    """Ends the sweep's jobs; finished cells stay. Raises ``ValueError`` if they cannot be ended from this machine."""
    if submission.executor == "slurm":
        slurm.check()
    else:
        pool.check(submission)
    jobs.mark_cancelled(submission)
    _executor(submission).cancel(submission)


def _executor(submission: Submission) -> Any:
    """The module that has submitted it."""
    return {"slurm": slurm, "local": pool}[submission.executor]


def results_option(results: Path) -> str:
    """`` --results DIR`` for a command that is suggested, or "" for the default folder."""
    return "" if results.absolute() == Path("results").absolute() else f" --results {shlex.quote(str(results))}"
