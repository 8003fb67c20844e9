"""The process of a cell: whatever becomes of it, the sweep gets a result that says so, and nothing keeps running.

Most tests put a shell script in the place of the interpreter; it gets the arguments -P -m MODULE ANSWER PARENT.
"""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support import files
from tests.support.processes import gone, poll
from zobench.cost.interval import Consolidation
from zobench.durable.scratch import clear
from zobench.execute import process
from zobench.execute.process import run_in_process
from zobench.measure import threads
from zobench.programs.cell import classify
from zobench.result import Facts, Outcome, Result
from zobench.runspec import RunSpec
from zobench.runspec.order import Order
from zobench.training import assemble

SPEC = RunSpec(model="opt-tiny", seq_len=32).resolve("cpu")
linux = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and prctl")


@pytest.fixture(autouse=True)
def known_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zobench.measure.environment.fingerprint_without_torch", lambda: Facts(machine="cpu-2c-4f2a91"))


@pytest.fixture
def child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Runs a cell whose process is the given shell script."""

    def run(script: str, **options: Any) -> Result:
        path = files.script(tmp_path / "child.sh", script)
        monkeypatch.setattr(process.sys, "executable", str(path))
        return run_in_process(SPEC, **options)

    return run


def test_the_answer_of_the_process_is_the_result(child: Any, tmp_path: Path) -> None:
    whole = Result(spec=SPEC, outcome=Outcome.OK, samples={"step_seconds": [0.1]}, environment=Facts(machine="m"))
    (tmp_path / "answer").write_text(json.dumps(whole.to_dict()))
    assert child(f'echo noise; cat > {tmp_path}/question; cat {tmp_path}/answer > "$4"') == whole
    assert Order.from_dict(json.loads((tmp_path / "question").read_text())) == Order(spec=SPEC)


def test_a_cell_is_told_when_to_end_when_and_where_to_write_and_with_how_many_threads_to_compute(
    child: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(threads, "other_cores", lambda: 2.9)
    monkeypatch.setattr(threads, "available_cores", lambda: 4)
    whole = Result(spec=SPEC, outcome=Outcome.OK, warnings=["another"], environment=Facts(machine="m"))
    (tmp_path / "answer").write_text(json.dumps(whole.to_dict()))
    script = f"cat > {tmp_path}/order; echo $OMP_NUM_THREADS $OMP_WAIT_POLICY $GOMP_SPINCOUNT > {tmp_path}/told; "
    script += f'cat {tmp_path}/answer > "$4"'
    begin = time.monotonic()
    result = child(script, enough=50.0, written=Consolidation(3, "why"), disk_dir=tmp_path / "disk")
    order = Order.from_dict(json.loads((tmp_path / "order").read_text()))
    assert begin + 50 <= order.end <= time.monotonic() + 50
    assert order.consolidation == (3, "why")
    monkeypatch.setenv("ZOBENCH_DISK_DIR", str(tmp_path))
    assert assemble.disk_dir() == tmp_path
    monkeypatch.setattr("zobench.runspec.order._current", order)
    assert assemble.disk_dir() == tmp_path / "disk", "an order's folder comes before the environment's"
    assert (tmp_path / "told").read_text().split() == ["1", "passive", "5000"]
    reason = "threads: 1 of 4, because other processes keep 2.9 cores busy; OMP_NUM_THREADS sets another number"
    assert result.environment == Facts(machine="m", threads_reason=reason)
    assert result.warnings == [reason, "another"]
    child(script)
    assert json.loads((tmp_path / "order").read_text())["end"] is None  # without a budget nobody says when


def test_a_cell_whose_time_is_up_ends_with_a_step_at_least() -> None:
    spec = RunSpec(model="opt-tiny", seq_len=8, steps=10**6, warmup=1).resolve("cpu")
    result = run_in_process(spec, timeout=120, enough=1.0)
    assert (result.outcome, result.partial) == (Outcome.OK, True), result.reason
    assert 1 <= len(result.measured_seconds) < 10**6


def test_an_answer_counts_however_late_the_process_ends(child: Any, tmp_path: Path) -> None:
    whole = Result(spec=SPEC, outcome=Outcome.OK, environment=Facts(machine="m"))
    (tmp_path / "answer").write_text(json.dumps(whole.to_dict()))
    assert child(f'cat {tmp_path}/answer > "$4"; sleep 60', timeout=1) == whole
    assert child("sleep 60", timeout=1).outcome is Outcome.TIMEOUT


@pytest.mark.parametrize("end", ["kill -9 $$", "sleep 60"])
def test_what_a_dead_cell_has_left_in_the_disk_folder_is_removed(child: Any, tmp_path: Path, end: str) -> None:
    disk = tmp_path / "disk"
    (disk / "other").mkdir(parents=True)
    made = f"mkdir {disk}/zobench-scratch-run-0; echo x > {disk}/zobench-scratch-run-0/file"
    assert child(f"{made}; {end}", disk_dir=disk, timeout=1).outcome is not Outcome.OK
    assert [path.name for path in disk.iterdir()] == ["other"]


@pytest.mark.parametrize(
    ("script", "outcome", "reason"),
    [
        ("echo Traceback >&2; echo 'ValueError: no such file' >&2; exit 1", Outcome.FAILED, "ValueError: no such file"),
        ("echo MemoryError >&2; exit 1", Outcome.OOM, "host memory ran out: MemoryError"),
        ("exec 0<&-; exit 7", Outcome.FAILED, "the cell's process ended with exit code 7 and said nothing"),
        ("kill -KILL $$", Outcome.FAILED, "the cell's process was ended by SIGKILL"),
        ("head -c 9000000 /dev/zero >&2; echo; exit 1", Outcome.FAILED, ""),
        ("kill -40 $$", Outcome.FAILED, "the cell's process was ended by signal 40"),
        ("exit 0", Outcome.FAILED, "the cell's process ended without a result: [Errno 2] No such file or directory"),
        ('echo "{" > "$4"', Outcome.FAILED, "the cell's process ended without a result: Expecting property name"),
        ('echo "{}" > "$4"', Outcome.FAILED, "the cell's process ended without a result: `schema_version` must be 1"),
    ],
)
def test_a_process_that_ends_badly_says_how(child: Any, script: str, outcome: Outcome, reason: str) -> None:
    result = child(script)
    assert (result.outcome, result.spec) == (outcome, SPEC)
    assert result.reason.startswith(reason)
    assert len(result.reason) < 2000
    assert len(result.traceback) < 100_000
    assert result.traceback.startswith("Traceback\nValueError") == script.startswith("echo Traceback")
    assert result.environment.machine == "cpu-2c-4f2a91"


def test_a_process_that_the_kernel_killed_for_memory_is_out_of_memory(child, monkeypatch) -> None:
    counts = iter([4, 5])
    monkeypatch.setattr(process, "oom_kills", lambda: next(counts))
    result = child("kill -KILL $$")
    assert (result.outcome, result.reason) == (
        Outcome.OOM, "host memory ran out: the system killed the cell's process"
    )  # fmt: skip


def test_a_wait_is_interrupted_by_its_caller_and_nothing_keeps_running(child: Any, tmp_path: Path) -> None:
    def stop() -> None:
        if (tmp_path / "pids").exists():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        child(f"sleep 60 & echo $! $$ > {tmp_path}/pids.new; mv {tmp_path}/pids.new {tmp_path}/pids; wait",
              while_waiting=stop, timeout=60.0)  # fmt: skip
    assert all(gone(int(pid)) for pid in (tmp_path / "pids").read_text().split())


@pytest.mark.parametrize(
    ("end", "outcome", "reason"),
    [
        ("wait", Outcome.TIMEOUT, "the cell took longer than the 0.5 s it was given"),
        ("kill -KILL $$", Outcome.FAILED, "the cell's process was ended by SIGKILL"),
    ],
)
def test_a_cell_that_hangs_or_dies_is_ended_with_all_it_started(child, tmp_path, end, outcome, reason) -> None:
    began = time.monotonic()
    script = f"sleep 60 & echo $! > {tmp_path}/pid; {end}"
    result = child(script, timeout=0.5, while_waiting=lambda: time.sleep(0.3))
    assert (result.outcome, result.reason) == (outcome, reason)
    assert time.monotonic() - began < 5
    assert gone(int((tmp_path / "pid").read_text()))


@pytest.mark.parametrize(("code", "outcome"), [(errno.ENOSPC, Outcome.FAILED), (errno.ENOMEM, Outcome.OOM)])
@pytest.mark.parametrize("place", [(process, "scratch"), (subprocess, "Popen")], ids=["folder", "process"])
def test_a_process_that_cannot_start_is_a_result_too(monkeypatch, code, outcome, place) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(*place, refuse)
    result = run_in_process(SPEC)
    assert result.outcome is outcome
    assert result.reason == f"the cell's process could not be run: [Errno {code}] {os.strerror(code)}"


@pytest.mark.parametrize(
    ("error", "outcome", "reason"),
    [
        (MemoryError(), Outcome.OOM, "host memory ran out: MemoryError"),
        (MemoryError("pinning 9 bytes failed"), Outcome.OOM, "host memory ran out: pinning 9 bytes failed"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), Outcome.OOM, "host memory ran out: [Errno 12] "),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you"), Outcome.OOM, "host memory"),
        (torch.OutOfMemoryError("CUDA out of memory.\n Tried"), Outcome.OOM,
         "device memory ran out on cuda:0: CUDA out of memory. Tried"),
        (OSError(errno.ENOSPC, "No space left on device"), Outcome.FAILED, "[Errno 28] No space left on device"),
        (ValueError("`x` must be\n y"), Outcome.FAILED, "`x` must be y"),
        (KeyError("weight"), Outcome.FAILED, "KeyError: 'weight'"),
        (ValueError("x" * 10**6), Outcome.FAILED, "xxx"),
    ],
)  # fmt: skip
def test_an_error_inside_the_cell_is_sorted_by_what_ran_out(error: Exception, outcome: Outcome, reason: str) -> None:
    kind, text = classify(error, "cuda:0")
    assert kind is outcome
    assert text.startswith(reason)
    assert "\n" not in text
    assert len(text) < 2000


@linux
def test_a_real_cell_ends_when_the_process_that_waits_for_it_is_killed(tmp_path: Path) -> None:
    waiting = f"""
import os, sys
from pathlib import Path
import zobench.execute.process as process
from zobench.runspec import RunSpec
from zobench.runspec.order import Order
start = process.subprocess.Popen
def popen(*args, **options):
    child = start(*args, **options)
    Path({str(tmp_path / "pid")!r}).write_text(str(child.pid))
    return child
process.subprocess.Popen = popen
process.run_in_process(RunSpec(model="opt-tiny", seq_len=32, steps=10**6).resolve("cpu"))
"""
    (temporary := tmp_path / "temporary").mkdir()
    environment = process.child_environment() | {"TMPDIR": str(temporary)}
    parent = subprocess.Popen([sys.executable, "-c", waiting], env=environment)
    try:
        pid = int(poll(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text()))
        time.sleep(0.5)  # either before or after the child has asked to be told: both must end it
        assert not gone(pid, 0.1)
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    assert gone(pid)
    assert list(temporary.glob("zobench-*"))  # of a process that was killed, until the next one looks
    clear(temporary)
    assert not list(temporary.glob("zobench-*"))


@linux
@pytest.mark.parametrize("words", [("zobench.execute.child", "answer"), ("zobench.selftest.run", "kernels", "{}")])
def test_a_child_whose_parent_is_already_gone_does_not_start(words: tuple[str, ...]) -> None:
    command = [sys.executable, "-P", "-m", *words, "1"]
    done = subprocess.run(command, env=process.child_environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "the process that waited for this cell is gone\n"


@linux
def test_the_machine_is_asked_by_a_process_that_ends_with_this_one_and_may_print_more() -> None:
    death_signal = "n = ctypes.c_int(); ctypes.CDLL(None).prctl(2, ctypes.byref(n)); print(n.value)"
    assert process.ask(f"print('hello from sitecustomize'); import ctypes; {death_signal}") == "9"
