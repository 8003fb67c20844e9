"""Runs one cell in a fresh process; a crash, a timeout or lack of memory becomes its result's outcome."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from zobench import programs
from zobench.cost.interval import Consolidation
from zobench.durable.scratch import clear, scratch
from zobench.machine.files import ending
from zobench.machine.memory import disk_folder, oom_kills
from zobench.machine.network import endpoint_of
from zobench.machine.processes import end_group, ended_by, python_path, torchrun_ranks
from zobench.machine.texts import last_line
from zobench.measure import threads
from zobench.measure.environment import failed
from zobench.measure.threads import ChildPipes
from zobench.result import HOST_OOM, Outcome, Result
from zobench.runspec import RunSpec
from zobench.runspec.order import Order, begin

POLL_SECONDS = 0.1
PATIENCE = 20.0  # seconds in which a cell's process ends the ranks that it has started
MALLOC = "glibc.malloc.mmap_threshold=4194304:glibc.malloc.hugetlb=1"
"""The C library's heap, on a CPU the device's allocator, keeps freed activations: an offloaded OPT-125M at 2048 tokens
peaks at 710 MB where it uses 350. So large tensors get pages of their own, huge ones, for at most 3 % of a step."""


def check_start(spec: RunSpec, timeout: float | None) -> None:
    """Raises ``ValueError`` if ``spec`` cannot run as this process was started."""
    count = torchrun_ranks()
    if count and count != spec.gpus:
        raise ValueError(
            f"`gpus` must be {count}, the ranks that torchrun has started, but got gpus={spec.gpus}; add --set "
            f"gpus={count} and a parallel, or start zobench without torchrun"
        )
    if count and timeout is not None:
        raise ValueError("`--timeout` needs zobench to start the ranks, but torchrun has; leave one of them out")
    programs.check(spec)
    if not count:
        endpoint_of(spec, os.environ)


def run_in_process(
    spec: RunSpec, *, timeout: float | None = None, disk_dir: Path | None = None,
    while_waiting: Callable[[], None] = lambda: None, enough: float | None = None,
    written: Consolidation | None = None, slowdown: float = 0.0, pipes: ChildPipes | None = None,
    journal: Path | None = None,
) -> Result:  # fmt: skip
    """Measures ``spec`` in a process of its own; ``timeout`` in seconds. Never raises for what the cell does; a
    KeyboardInterrupt ends its process and is passed on. A process that torchrun has started measures here, as a rank.

    ``enough``: seconds after which a cell that has taken a step keeps what it has, a partial result. ``written``: when
    its pending updates are, as planned. ``slowdown``: a share by which its steps are lengthened on purpose. ``pipes``:
    of a cell that takes its steps in turns. ``journal``: where that of a fine-tuning run is kept. ``while_waiting`` is
    called about ten times a second. On a CPU that others use it computes with as many threads as cores are idle.
    """
    kept_as, disk = (str(path.resolve()) if path else None for path in (journal, disk_dir))
    if torchrun_ranks():
        from zobench.execute.rank import measured

        begin(Order(spec=spec, journal=kept_as, disk_dir=disk))
        return measured(spec)
    order = Order(
        spec=spec, end=None if enough is None else time.monotonic() + enough, slowdown=slowdown,
        consolidation=(written.steps, written.reason) if written else None,
        turn=pipes.descriptors if pipes else None, journal=kept_as, disk_dir=disk,
    )  # fmt: skip
    try:
        chosen = pipes.threads if pipes else threads.chosen() if spec.device == "cpu" and spec.gpus == 1 else None
        kills = oom_kills()
        with scratch(None, "cell") as folder:
            answer = folder / "result.json"
            code, errors = _ended(order, answer, timeout, while_waiting, chosen)
            if code is None and not answer.exists():  # one that has answered may take its time to free its memory
                assert timeout is not None
                return timed_out(spec, timeout)
            if code:
                return _died(spec, code, errors, oom_kills() > kills)
            try:
                result = Result.from_dict(json.loads(answer.read_text()))
            except (OSError, ValueError) as error:
                return failed(spec, Outcome.FAILED, f"the cell's process ended without a result: {error}", errors)
    except OSError as error:  # no process, or no folder for its answer
        outcome = Outcome.OOM if error.errno == errno.ENOMEM else Outcome.FAILED
        return failed(spec, outcome, f"the cell's process could not be run: {error}")
    if result.outcome is Outcome.FAILED and not result.traceback:
        result = replace(result, traceback=errors)  # a rank that was lost can have said something
    if chosen is None:
        return result
    warnings = [chosen.reason, *result.warnings] if chosen.are_fewer else result.warnings
    return replace(result, warnings=warnings).with_facts(threads_reason=chosen.reason)


def _ended(
    order: Order, answer: Path, timeout: float | None, while_waiting: Callable[[], None], chosen: threads.Threads | None
) -> tuple[int | None, str]:
    """Runs a cell's process, which writes its result to ``answer``, and cleans up what it leaves; returns its exit
    code, None if ``timeout`` ended it, and what it wrote to standard error."""
    environment = {**child_environment(), **(chosen.environment if chosen else {})}
    errors = answer.with_name("stderr.txt")
    with errors.open("wb") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "zobench.execute.child", str(answer), str(os.getpid())],
            stdin=subprocess.PIPE, stdout=stderr, stderr=stderr, env=environment, start_new_session=True,
            pass_fds=order.turn or (),
        )  # fmt: skip
        try:
            expired = _wait(process, json.dumps(order.to_dict()).encode(), timeout, while_waiting)
        finally:
            _end(process, gently=order.spec.gpus > 1)
            clear(disk_folder(order.disk_dir))
    return None if expired else process.returncode, ending(errors)


def timed_out(spec: RunSpec, timeout: float) -> Result:
    return failed(spec, Outcome.TIMEOUT, f"the cell took longer than the {round(timeout, 1):g} s it was given")


def child_environment() -> dict[str, str]:
    """The environment of a process that imports this zobench, installed or not."""
    python = {"PYTHONPATH": python_path(), "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    return {"GLIBC_TUNABLES": MALLOC, **threads.waiting(), **os.environ, **python}


def ask(program: str, *arguments: str) -> str:
    """Runs ``program`` in a fresh Python process, which ends with this one, and returns the last line that it prints:
    a user's ``sitecustomize`` may print others. Raises ``OSError`` if it fails."""
    begin = f"from zobench.machine.processes import end_with; end_with({os.getpid()})"
    command = [sys.executable, "-P", "-c", f"{begin}\n{program}", *arguments]
    done = subprocess.run(command, env=child_environment(), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        last = last_line(done.stderr, f"exit code {done.returncode}")
        raise OSError(f"measuring this machine failed: {last}")
    return (done.stdout.splitlines() or [""])[-1]


def _wait(
    process: subprocess.Popen[bytes], question: bytes, timeout: float | None, while_waiting: Callable[[], None]
) -> bool:
    """Sends the order to the process and waits for its end; True if the time ran out."""
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


def _end(process: subprocess.Popen[bytes], gently: bool) -> None:
    """Kills what still runs of the cell: its process and what it has started, its memory sampler and a program's own.
    ``gently``: it has started ranks, which end with it; but only it can wait until their memory is free again."""
    if gently and process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(PATIENCE)
    end_group(process)


def _died(spec: RunSpec, code: int, errors: str, oom_killed: bool) -> Result:
    if code == -signal.SIGKILL and oom_killed:
        return failed(spec, Outcome.OOM, f"{HOST_OOM}: the system killed the cell's process", errors)
    if code < 0:
        return failed(spec, Outcome.FAILED, f"the cell's process was ended by {ended_by(code)}", errors)
    last = last_line(errors, f"the cell's process ended with exit code {code} and said nothing")
    if last.startswith("MemoryError"):
        return failed(spec, Outcome.OOM, f"{HOST_OOM}: {last}", errors)
    return failed(spec, Outcome.FAILED, last, errors)
