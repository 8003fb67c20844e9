"""Submits a sweep to Slurm as job arrays, through submitit, asks how they stand, and cancels them.

Submitit pickles what each job calls (:class:`zobench.execute.task.CellJob`: a folder and a number) and whether it
came back. That is how it starts jobs; results, checkpoints and the records of :mod:`zobench.execute.jobs` are data.
"""

from __future__ import annotations

import contextlib
import io
import math
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from zobench.execute.jobs import QueueEntry, Submission, submitit_or_remedy, write_json
from zobench.execute.process import child_environment
from zobench.runspec import RunSpec

TIME = 3600.0  # seconds of a job whose time is not given
LEAST_TIME = 300.0  # seconds that a job must have: most of less would be reserve
RESERVE_SECONDS = 180.0
"""The seconds of a job's time that its cell does not get: planning, and storing that the time was not enough, before
Slurm warns the job (it may do so 60 s early), for then submitit puts it back into the queue."""
SIGNAL_SECONDS = 30  # how long before the end of its time submitit asks Slurm to warn a job
GPUS = ("gpus", "gpus_per_node", "gpus_per_socket", "gpus_per_task")
OURS = ("array", "error", "job_name", "nodes", "ntasks", "ntasks_per_node", "open_mode", "output", "requeue", "signal",
        "time", "partition", "gres", *GPUS)  # fmt: skip
"""Options of sbatch that a sweep decides, or that have an option of their own."""
ANSWER_SECONDS = 60.0  # within which Slurm's commands must answer
_RUNNING = ("RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT")


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """The resources that a sweep's jobs ask Slurm for. ``time``: seconds of one job, which is one cell.
    ``side_by_side``: how many may run at once; None for as many as Slurm has room for. ``more``: further options of
    sbatch."""

    partition: str | None = None
    gres: str | None = None
    time: float = TIME
    side_by_side: int | None = None
    more: Mapping[str, str] = field(default_factory=dict)

    @property
    def site(self) -> str:
        """Where these jobs run, in words that are equal for equal nodes."""
        named = (("partition", self.partition), ("gres", self.gres), *sorted(self.more.items()))
        return " ".join(f"{key}={value}" for key, value in named if value is not None)

    @property
    def cell_seconds(self) -> float:
        return self.time - RESERVE_SECONDS

    def __post_init__(self) -> None:
        more = {f"--slurm {key}": text for key, text in self.more.items()}
        for option, text in {"--partition": self.partition, "--gres": self.gres, **more}.items():
            if not f"{option}{text or ''}".isprintable():  # in a job's file a new line would be a command of its own
                raise ValueError(f"{option!a} must have no control characters, but got {text!a}; leave them out")
        if self.time < LEAST_TIME:
            raise ValueError(
                f"`--time >= {LEAST_TIME / 60:.0f}m` must hold, because {RESERVE_SECONDS / 60:.0f}m of it are kept for "
                f"planning and storing, but got {self.time:g}s; give it more, and a cell less with --timeout"
            )


def parse_options(texts: Sequence[str]) -> dict[str, str]:
    """Option to value of every ``--slurm KEY=VALUE``. Raises ``ValueError`` for options that a sweep sets itself."""
    options: dict[str, str] = {}
    for text in texts:
        key, sign, value = text.partition("=")
        key = key.strip().removeprefix("--").replace("-", "_")
        if not sign or not key or not value:
            raise ValueError(f"`--slurm` needs KEY=VALUE, but got {text!r}; for example --slurm account=mine")
        if key in options:
            raise ValueError(f"`--slurm {key}` must be given once, but got it twice; leave one out")
        if key in OURS:
            remedy = f"use --{key}" if key in ("partition", "gres", "time") else "leave it out"
            remedy = "use --gres gpu:1" if key in GPUS else remedy
            raise ValueError(f"`--slurm` takes options that a sweep does not set, but got {key}; {remedy}")
        options[key] = value
    return options


def groups(cells: Sequence[RunSpec]) -> tuple[tuple[int, ...], ...]:
    """The cells (indices) of each job array: those with equal numbers of GPUs and nodes share one."""
    alike: dict[tuple[int, int, bool], list[int]] = {}
    for index, spec in enumerate(cells):
        alike.setdefault((spec.gpus, spec.nodes, spec.device == "cpu"), []).append(index)
    return tuple(map(tuple, alike.values()))


def resources(request: Request, spec: RunSpec) -> dict[str, Any]:
    """Returns the resources of the job of ``spec`` in sbatch's words; False for an option that is left out on
    purpose."""
    options: dict[str, Any] = {"nodes": spec.nodes, "ntasks_per_node": 1, "time": math.ceil(request.time / 60)}
    if request.partition is not None:
        options["partition"] = request.partition
    if gres := _gres(request.gres, spec):
        options["gres"] = gres
    if spec.device == "cpu":
        options["exclusive"] = True  # two cells on one node's cores would measure each other
    return options | {key: {"yes": True, "no": False}.get(value, value) for key, value in request.more.items()}


def _gres(text: str | None, spec: RunSpec) -> str:
    """``--gres`` for ``spec``: ``text`` with the number of GPUs on a node; added where ``spec`` needs several."""
    count = spec.gpus // spec.nodes
    if spec.device == "cpu" or (count == 1 and text):
        return text or ""
    others = [gres for gres in (text or "").split(",") if gres and gres.partition(":")[0] != "gpu"]
    kinds = [gres.split(":") for gres in (text or "").split(",") if gres.partition(":")[0] == "gpu"]
    kind = kinds[0][1] if kinds and len(kinds[0]) > 1 and not kinds[0][1].isdigit() else ""
    return ",".join([*others, ":".join(filter(None, ("gpu", kind, str(count))))])


def check() -> None:
    """Raises ``ValueError`` where Slurm's commands are not installed."""
    absent = [name for name in ("sbatch", "srun", "squeue", "scancel") if shutil.which(name) is None]
    if absent:
        raise ValueError(
            f"`--executor slurm` needs Slurm's commands, but {', '.join(absent)} cannot be found; "
            "run it on a login node, or use --executor local"
        )
    submitit_or_remedy()


def submit(submission: Submission, request: Request) -> list[str]:
    """Submits the sweep, a job array per group, and returns the arrays' ids.

    Raises ``ValueError`` with Slurm's words if it refuses; arrays that it had taken by then are cancelled.
    """
    submitit, path = submitit_or_remedy(), child_environment()["PYTHONPATH"]
    ids: list[str] = []
    from zobench.execute.task import CellJob

    for number, cells in enumerate(submission.groups):
        options = resources(request, submission.cells[cells[0]])
        required = {key: options.pop(key) for key in ("nodes", "ntasks_per_node", "time")}
        more = {"requeue": True} | {key: value for key, value in options.items() if value is not False}
        executor = submitit.SlurmExecutor(folder=submission.log)
        executor.update_parameters(
            **required, job_name=submission.job_name(number), signal_delay_s=SIGNAL_SECONDS,
            array_parallelism=request.side_by_side or len(cells), setup=[f"export PYTHONPATH={shlex.quote(path)}"],
            additional_parameters=more, wckey=None,
        )  # fmt: skip
        try:
            with contextlib.redirect_stderr(io.StringIO()), executor.batch():  # Slurm's words are in the error too
                submitted = [executor.submit(CellJob(str(submission.folder), cell)) for cell in cells]
        except (submitit.core.utils.FailedJobError, submitit.core.utils.FailedSubmissionError) as error:
            cancel(submission)
            message = " ".join(str(error).replace("sbatch: error: ", "").split())
            raise ValueError(
                f"`sbatch` must take the jobs, but said: {message}; see --partition, --gres, --time and --slurm"
            ) from None
        ids.append(submitted[0].job_id.partition("_")[0])
        write_json(submission.folder / "jobs.json", ids)
    return ids


def look(submission: Submission) -> dict[int, QueueEntry] | None:
    """The cells whose jobs are queued or running, by index; None where Slurm's commands are not installed.

    Raises ``OSError`` if it does not answer.
    """
    names = {submission.job_name(number): cells for number, cells in enumerate(submission.groups)}
    command = ["squeue", "--noheader", "--array", "--name", ",".join(names), "--format", "%j|%F|%K|%T|%r|%N"]
    try:
        answer = _ask(command)
    except FileNotFoundError:
        return None
    entries = {}
    for line in answer.splitlines():
        name, job, index, state, reason, host = line.strip().split("|")
        cells = names[name]
        number = int(index) if index.isdigit() else 0  # a group of one cell is no array
        running = state in _RUNNING
        waits_for = "" if running or reason in ("None", "Priority", "Resources") else reason
        label = f"{job}_{number}" if index.isdigit() else job
        entries[cells[number]] = QueueEntry(
            job=label, state="running" if running else "queued", reason=waits_for, host=host
        )
    return entries


def cancel(submission: Submission) -> None:
    """Ends the sweep's jobs, queued and running. Raises ``OSError`` if Slurm does not answer."""
    for number in range(len(submission.groups)):
        _ask(["scancel", "--name", submission.job_name(number)])


def _ask(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise OSError(f"{command[0]} must answer within {ANSWER_SECONDS:g} s, but did not; try again later") from None
    if done.returncode != 0:
        raise OSError(f"{command[0]} failed: {' '.join(done.stderr.split()) or f'exit code {done.returncode}'}")
    return done.stdout


def text_of(options: Mapping[str, Any]) -> str:
    """``--time=60 --gres=gpu:1``: what a job asks for beyond one process on one node."""
    plain = {"nodes": 1, "ntasks_per_node": 1}
    rest = {key.replace("_", "-"): value for key, value in options.items() if value != plain.get(key, False)}
    return " ".join(f"--{key}" if value is True else f"--{key}={value}" for key, value in rest.items())
