"""Cells on several ranks, from the command that starts them to the one result: what is measured, who listens where,
and that nothing hangs and nothing is left running, whoever is killed."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.execute.test_process import gone
from zobench.execute.merge import merged
from zobench.execute.process import run_in_process
from zobench.result import Outcome, Result
from zobench.spec import RunSpec

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
FIELDS: dict[str, Any] = {"model": "opt-tiny", "engine": "offload", "batch_size": 4, "seq_len": 16, "steps": 3}
LONG = {"steps": 100_000, "warmup": 0}


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZOBENCH_PEER_TIMEOUT", "90")
    for name in ("RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID", "ZOBENCH_RENDEZVOUS", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)


def cell(parallel: str, gpus: int, **changes: Any) -> RunSpec:
    return RunSpec(**{**FIELDS, "parallel": parallel, "gpus": gpus, **changes}).resolve("cpu")


def children(pid: int) -> list[int]:
    """Descendants of a process, the nearest first."""
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
        own = [int(word) for thread in threads for word in (thread / "children").read_text().split()]
    except OSError:
        return []
    return own + [grandchild for child in own for grandchild in children(child)]


def ranks_of(pid: int) -> dict[int, int]:
    """Rank to process of the ranks below ``pid``; the samplers below them have the same environment."""
    found = {}
    for child in children(pid):
        try:
            command = Path(f"/proc/{child}/cmdline").read_bytes()
            words = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        rank = next((int(word[5:]) for word in words if word.startswith(b"RANK=")), None)
        if rank is not None and b"zobench.execute.rank" in command:
            found[rank] = child
    return found


class Running(threading.Thread):
    """A cell that runs while the test does something to it."""

    def __init__(self, spec: RunSpec, **options: Any) -> None:
        super().__init__()
        self.spec, self.options = spec, options
        self.result: Result | None = None
        self.start()

    def run(self) -> None:
        self.result = run_in_process(self.spec, **self.options)

    def ranks(self) -> dict[int, int]:
        """Rank to process, once all take steps: then each has a sampler below it."""
        end = time.monotonic() + 120
        while time.monotonic() < end:
            found = ranks_of(os.getpid())
            if len(found) == self.spec.gpus and all(children(pid) for pid in found.values()):
                time.sleep(2)
                return found
            time.sleep(0.05)
        raise AssertionError("the ranks did not start")

    def ended(self, seconds: float = 60) -> Result:
        self.join(seconds)
        assert not self.is_alive(), "the run hangs"
        assert self.result is not None
        return self.result


def listeners(pids: set[int]) -> set[str]:
    """Addresses at which TCP sockets of ``pids`` accept connections, from the kernel's tables."""
    inodes = set()
    for pid in pids:
        for file in Path(f"/proc/{pid}/fd").iterdir():
            try:
                target = os.readlink(file)
            except OSError:
                continue
            if target.startswith("socket:["):
                inodes.add(target[8:-1])
    found = set()
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and words[9] in inodes:
                raw = bytes.fromhex(words[1].partition(":")[0])
                host = b"".join(raw[at : at + 4][::-1] for at in range(0, len(raw), 4))
                found.add(socket.inet_ntop(family, host))
    return found


@pytest.fixture(scope="module")
def alone() -> Result:
    """The same cell on one device."""
    return run_in_process(RunSpec(**FIELDS).resolve("cpu"))


@pytest.mark.parametrize(("parallel", "gpus"), [("pertp", 2), ("ddp", 2), ("ddp", 4), ("2d", 4), ("2d-outer", 4)])
def test_ranks_give_one_result_of_the_global_batch(parallel: str, gpus: int, alone: Result) -> None:
    result = run_in_process(cell(parallel, gpus))
    assert (result.outcome, result.reason) == (Outcome.OK, "")
    assert result.tokens_per_step == 4 * 16
    assert result.samples["loss"] == pytest.approx(alone.samples["loss"], rel=1e-6)
    sent = result.parts["exchanged_bytes"]
    assert len(sent) == 3
    assert all(0 < count < 1024 for count in sent), sent  # measured, of the rank that sends most, headers included
    rows = result.environment["ranks"]
    assert [row["rank"] for row in rows] == list(range(gpus))
    assert max(row["device_peak_bytes"] for row in rows) == result.memory["device_peak_bytes"]
    assert all(0 < row["host_unique_bytes"] < row["host_rss_peak_bytes"] for row in rows)
    assert all(row["threads"] == max(1, len(os.sched_getaffinity(0)) // gpus) for row in rows)


def test_ranks_listen_on_loopback_alone_and_a_killed_one_ends_all() -> None:
    running = Running(cell("2d", 4, **LONG))
    ranks = running.ranks()
    assert listeners({os.getpid(), *children(os.getpid())}) == {"127.0.0.1"}
    os.kill(ranks[2], signal.SIGKILL)
    result = running.ended()
    assert (result.outcome, result.reason) == (Outcome.FAILED, "rank 2 was ended by SIGKILL")
    assert all(gone(pid) for pid in ranks.values())


def test_a_rank_that_is_silent_is_waited_for_no_longer_than_the_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZOBENCH_PEER_TIMEOUT", "5")
    running = Running(cell("ddp", 2, **LONG))
    ranks = running.ranks()
    os.kill(ranks[1], signal.SIGSTOP)
    try:
        result = running.ended(90)
    finally:
        if not gone(ranks[1], 0.2):
            os.kill(ranks[1], signal.SIGKILL)
    assert result.outcome is Outcome.FAILED
    assert result.reason == "rank 1 is gone without a word"


def test_a_kill_of_the_launcher_or_a_timeout_ends_all_ranks() -> None:
    running = Running(cell("pertp", 2, **LONG))
    ranks = running.ranks()
    (launcher,) = {int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) for pid in ranks.values()}
    os.kill(launcher, signal.SIGKILL)
    result = running.ended()
    assert (result.outcome, result.reason) == (Outcome.FAILED, "the cell's process was ended by SIGKILL")
    assert all(gone(pid) for pid in ranks.values())
    running = Running(cell("pertp", 2, **LONG), timeout=20)
    ranks = running.ranks()
    assert running.ended().outcome is Outcome.TIMEOUT
    assert all(gone(pid, 0.2) for pid in ranks.values())  # the launcher has waited for them


def test_an_error_of_all_ranks_is_told_once() -> None:
    result = run_in_process(cell("ddp", 2, weights="pretrained", weights_path="/nowhere"))
    assert result.outcome is Outcome.FAILED
    assert "/nowhere" in result.reason
    assert not result.reason.startswith("rank")
    assert "Traceback" in result.traceback


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def test_two_nodes_on_one_machine_meet_at_the_given_address(monkeypatch: pytest.MonkeyPatch, alone: Result) -> None:
    monkeypatch.setenv("ZOBENCH_RENDEZVOUS", f"127.0.0.1:{free_port()}")
    monkeypatch.setenv("ZOBENCH_NODE_COUNT", "2")
    spec = cell("2d", 4, nodes=2)
    first, second = Running(spec), Running(spec)
    results = [first.ended(120), second.ended(120)]
    assert [result.outcome for result in results] == [Outcome.OK, Outcome.OK], [r.reason for r in results]
    assert results[0].samples == results[1].samples
    assert [row["node"] for row in results[0].environment["ranks"]] == [0, 0, 1, 1]
    assert results[0].samples["loss"] == pytest.approx(alone.samples["loss"], rel=1e-6)


def zobench(*words: str, torchrun: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    own = ("-m", "zobench", "run", "--device", "cpu", *(f"--set={name}={value}" for name, value in FIELDS.items()))
    launch = ("-m", "torch.distributed.run", *torchrun) if torchrun else ()
    return subprocess.run(
        [sys.executable, *launch, *own, *words], capture_output=True, text=True, timeout=200, check=False
    )


TORCHRUN = ("--nproc-per-node", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0")


def test_the_users_own_torchrun_starts_the_ranks_and_only_rank_0_prints() -> None:
    done = zobench("--set", "gpus=2", "--set", "parallel=ddp", "--json", "-", torchrun=TORCHRUN)
    assert done.returncode == 0, done.stderr
    result = Result.from_dict(json.loads(done.stdout))  # twice would not be JSON
    assert result.outcome is Outcome.OK
    assert len(result.environment["ranks"]) == 2


def test_torchrun_starts_the_ranks_again_after_one_is_lost(tmp_path: Path) -> None:
    """The ranks of the second start meet in the store of the first, which still has what rank 1 said there."""
    script = tmp_path / "once.py"
    script.write_text(
        "import os, signal, sys, time\n"
        "from zobench.execute import rank\n"
        "from zobench.parallel.engine import ParallelEngine\n"
        "from zobench.cli import main\n"
        "probe, seen = ParallelEngine.probe, []\n"
        "def failing(self, *rest):\n"
        "    seen.append(1)\n"
        "    if len(seen) == 2 and os.environ['RANK'] + os.environ['TORCHELASTIC_RESTART_COUNT'] == '00':\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return probe(self, *rest)\n"
        "ParallelEngine.probe, tell = failing, rank._tell\n"
        "def late(place, number, result):\n"  # what rank 1 said in the first start would be read before
        "    time.sleep(3 if os.environ['RANK'] + os.environ['TORCHELASTIC_RESTART_COUNT'] == '11' else 0)\n"
        "    tell(place, number, result)\n"
        "rank._tell = late\n"
        "main(['run', '--device', 'cpu', '--json', '-', *sys.argv[1:]])\n"
    )
    words = [f"--set={name}={value}" for name, value in {**FIELDS, "gpus": 2, "parallel": "ddp"}.items()]
    command = (sys.executable, "-m", "torch.distributed.run", *TORCHRUN, "--max-restarts", "1", str(script), *words)
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert Result.from_dict(json.loads(done.stdout)).outcome is Outcome.OK
    assert "Signals.SIGKILL" in done.stderr or "exitcode: -9" in done.stderr


@pytest.mark.parametrize(
    ("words", "torchrun", "said"),
    [
        ((), TORCHRUN, "`gpus` must be 2, the ranks that torchrun has started, but got gpus=1; add --set gpus=2 and a "
         "parallel, or start zobench without torchrun"),
        (("--set=gpus=3", "--set=parallel=2d"), (), "`parallel=2d` needs an even number of gpus, at least 4, but got "
         "gpus=3; use parallel=ddp, or gpus=4"),
        (("--set=gpus=4", "--set=nodes=2", "--set=parallel=2d"), (), "`nodes=2` needs ZOBENCH_RENDEZVOUS=HOST:PORT on "
         "each of them, but it is not set; name an address of the first machine and a free port there"),
    ],
)  # fmt: skip
def test_what_cannot_start_is_told_before_it_does(words: tuple[str, ...], torchrun: tuple[str, ...], said: str) -> None:
    done = zobench(*words, torchrun=torchrun)
    assert done.returncode != 0
    assert done.stderr.count(f"zobench: {said}") == 1


def test_gpus_that_are_not_there_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from zobench.measure.device import check_devices

    spec = RunSpec(**FIELDS, gpus=4, parallel="2d", device="cuda")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ValueError, match=r"`gpus=4` needs 4 CUDA devices here, but 2 are visible; ask for fewer, or"):
        check_devices(spec)
    check_devices(spec.replace(nodes=2))


def one(rank: int, **changes: Any) -> Result:
    values: dict[str, Any] = {"samples": {"step_seconds": [1.0 + rank], "loss": [2.0], "projected_grad": [3.0]}}
    return Result(**{"spec": cell("ddp", 2), "outcome": Outcome.OK, **values, **changes})


@pytest.mark.parametrize(
    ("changes", "outcome", "reason"),
    [
        ({0: {"outcome": Outcome.FAILED, "reason": "another rank of the run is gone, or ..."},
          1: {"outcome": Outcome.OOM, "reason": "host memory ran out: x"}},
         Outcome.OOM, "rank 1: host memory ran out: x"),
        ({1: {"outcome": Outcome.CONTAMINATED, "reason": "swapped"}}, Outcome.CONTAMINATED, "rank 1: swapped"),
        ({1: {"samples": {"step_seconds": [1.0], "loss": [2.5], "projected_grad": [3.0]}}},
         Outcome.FAILED, "rank 1 has another loss than rank 0: they did not stay equal"),
        ({}, Outcome.OK, ""),
    ],
)  # fmt: skip
def test_the_first_cause_is_the_reason(changes: dict[int, Any], outcome: Outcome, reason: str) -> None:
    result = merged(cell("ddp", 2), {rank: one(rank, **changes.get(rank, {})) for rank in range(2)})
    assert (result.outcome, result.reason) == (outcome, reason)
    if outcome is Outcome.OK:
        assert result.samples["step_seconds"] == [2.0]
