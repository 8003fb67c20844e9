"""Runs one cell in a fresh process and turns whatever happens to it into a result."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from zobench.measure.environment import fingerprint_without_torch
from zobench.result import Outcome, Result
from zobench.spec import RunSpec

POLL_SECONDS = 0.1
MALLOC = "glibc.malloc.mmap_threshold=4194304:glibc.malloc.hugetlb=1"
"""On a CPU the C library's heap is the device's allocator. Left alone it keeps freed activations: an offloaded OPT-125M
at 2048 tokens then peaks at 710 MB where it uses 350. So large tensors get pages of their own, given back when freed;
huge pages keep that from costing more than 2 to 3 % of a step (at 512 tokens, where it shows most)."""


def run_in_process(
    spec: RunSpec, *, timeout: float | None = None, disk_dir: Path | None = None,
    while_waiting: Callable[[], None] = lambda: None,
) -> Result:  # fmt: skip
    """Measures ``spec`` in a process of its own; ``timeout`` in seconds. Never raises for what the cell does.

    ``while_waiting`` is called about ten times a second. A KeyboardInterrupt ends the cell's process and is passed on.
    """
    try:
        return _run(spec, timeout, disk_dir, while_waiting)
    except OSError as error:  # no process, or no folder for its answer
        outcome = Outcome.OOM if error.errno == errno.ENOMEM else Outcome.FAILED
        return failed(spec, outcome, f"the cell's process could not be run: {error}")


def _run(spec: RunSpec, timeout: float | None, disk_dir: Path | None, while_waiting: Callable[[], None]) -> Result:
    oom_kills = _oom_kills()
    with tempfile.TemporaryDirectory(prefix="zobench-") as folder:
        answer, errors = Path(folder, "result.json"), Path(folder, "stderr.txt")
        with errors.open("wb") as stderr:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "zobench.execute.child", str(answer), str(os.getpid())],
                stdin=subprocess.PIPE, stdout=stderr, stderr=stderr, env=child_environment(disk_dir),
                start_new_session=True,
            )  # fmt: skip
            try:
                expired = _wait(process, json.dumps(spec.to_dict()).encode(), timeout, while_waiting)
            finally:
                _end(process)
        if expired:
            assert timeout is not None
            return failed(spec, Outcome.TIMEOUT, f"the cell took longer than the {round(timeout, 1):g} s it was given")
        said = errors.read_text(errors="replace")
        if process.returncode != 0:
            return _died(spec, process.returncode, said, _oom_kills() > oom_kills)
        try:
            return Result.from_dict(json.loads(answer.read_text()))
        except (OSError, ValueError) as error:
            return failed(spec, Outcome.FAILED, f"the cell's process ended without a result: {error}", said)


def failed(spec: RunSpec, outcome: Outcome, reason: str, traceback: str = "") -> Result:
    """The result of a cell that has no measurements; it still says on which machine."""
    return Result(
        spec=spec, outcome=outcome, reason=reason, environment=fingerprint_without_torch(), traceback=traceback
    )


def child_environment(disk_dir: Path | None = None) -> dict[str, str]:
    """The environment of a process that imports this zobench, installed or not."""
    source = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH")]))
    named = {} if disk_dir is None else {"ZOBENCH_DISK_DIR": str(disk_dir.resolve())}
    return {"GLIBC_TUNABLES": MALLOC, **os.environ, "PYTHONPATH": path, "HF_HUB_DISABLE_PROGRESS_BARS": "1", **named}


def _wait(
    process: subprocess.Popen[bytes], question: bytes, timeout: float | None, while_waiting: Callable[[], None]
) -> bool:
    """Sends the question and waits; True if the time ran out."""
    assert process.stdin is not None
    end = None if timeout is None else time.monotonic() + timeout
    with contextlib.suppress(BrokenPipeError), process.stdin:  # a process that died at once: its exit code says how
        process.stdin.write(question)
    while True:
        try:
            process.wait(POLL_SECONDS)
            return False
        except subprocess.TimeoutExpired:
            while_waiting()
        if end is not None and time.monotonic() >= end:
            return True


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kills what is left of the cell: its process, and the group that its sampler belongs to."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _died(spec: RunSpec, code: int, errors: str, oom_killed: bool) -> Result:
    lines = [line for line in errors.strip().splitlines() if line.strip()]
    if code == -signal.SIGKILL and oom_killed:
        return failed(spec, Outcome.OOM, "host memory ran out: the system killed the cell's process", errors)
    if code < 0:
        name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        return failed(spec, Outcome.FAILED, f"the cell's process was ended by {name}", errors)
    last = lines[-1] if lines else f"the cell's process ended with exit code {code} and said nothing"
    if last.startswith("MemoryError"):
        return failed(spec, Outcome.OOM, f"host memory ran out: {last}", errors)
    return failed(spec, Outcome.FAILED, last, errors)


def _oom_kills() -> int:
    """How many processes the kernel has killed for memory so far; 0 where it does not count them."""
    try:
        rows = Path("/proc/vmstat").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(row.split()[1]) for row in rows if row.startswith("oom_kill "))
