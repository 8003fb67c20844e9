"""Cells on several ranks, from the command that starts them to the one result: what is measured, who listens where,
and that nothing hangs and nothing is left running, whoever is killed."""

import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import indent
from typing import Any

import pytest
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from tests.support.processes import children, command_of, free_port, gone, listeners, torchrun
from tests.support.submissions import result_of
from zobench.execute import rank
from zobench.execute.process import run_in_process
from zobench.machine.network import endpoint_of
from zobench.parallel.launch import Lost, Meeting
from zobench.programs import cell as measure
from zobench.result import Outcome, Result
from zobench.runspec import RunSpec

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
FIELDS: dict[str, Any] = {"model": "opt-tiny", "engine": "offload", "batch_size": 4, "seq_len": 16, "steps": 3}
LONG = {"steps": 100_000, "warmup": 0}


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Also ends what a test that fails leaves running: it would never end by itself."""
    monkeypatch.setenv("ZOBENCH_PEER_TIMEOUT", "90")
    for name in ("RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID", "ZOBENCH_RENDEZVOUS", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    yield
    for pid in children(os.getpid()):
        with contextlib.suppress(OSError):  # it ends by itself
            if "zobench.execute.child" in command_of(pid):
                os.kill(pid, signal.SIGKILL)


@pytest.fixture
def started() -> Callable[[], list[int]]:
    """The processes that the test has started by now: one that an earlier test left, as a fork server, is none."""
    before = set(children(os.getpid()))
    return lambda: [pid for pid in children(os.getpid()) if pid not in before]


@pytest.fixture
def begin_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Has every process of a module of zobench.execute begin with the given lines."""

    def write(module: str, program: str) -> None:
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        condition = f"if 'zobench.execute.{module}' in sys.orig_argv:"
        (tmp_path / "sitecustomize.py").write_text(f"import os, sys\n{condition}\n{indent(program, '    ')}")

    return write


def cell(parallel: str, gpus: int, **changes: Any) -> RunSpec:
    return RunSpec(**{**FIELDS, "parallel": parallel, "gpus": gpus, **changes}).resolve("cpu")


def ranks_of(pid: int) -> dict[int, int]:
    """Rank to process of the ranks below ``pid``; the samplers below them have the same environment."""
    processes = {}
    for child in children(pid):
        try:
            words = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        rank = next((int(word[5:]) for word in words if word.startswith(b"RANK=")), None)
        if rank is not None and "zobench.execute.rank" in command_of(child):
            processes[rank] = child
    return processes


class Running(threading.Thread):
    """A cell that runs while the test does something to it."""

    def __init__(self, spec: RunSpec, **options: Any) -> None:
        super().__init__(daemon=True)
        self.spec, self.options = spec, options
        self.result: Result | None = None
        self.start()

    def run(self) -> None:
        self.result = run_in_process(self.spec, **self.options)

    def ranks(self) -> dict[int, int]:
        """Rank to process, once all take steps: then each has had a sampler below it for a second."""
        end = time.monotonic() + 120
        while time.monotonic() < end:
            processes = ranks_of(os.getpid())
            if len(processes) == self.spec.gpus and all(children(pid) for pid in processes.values()):
                time.sleep(1)
                return processes
            time.sleep(0.05)
        raise AssertionError("the ranks did not start")

    def ended(self, seconds: float = 60) -> Result:
        self.join(seconds)
        assert not self.is_alive(), "the run hangs"
        assert self.result is not None
        return self.result


@pytest.mark.slow
def test_ranks_listen_on_loopback_alone_and_a_killed_one_ends_all(started: Callable[[], list[int]]) -> None:
    running = Running(cell("pertp", 2, **LONG))
    ranks = running.ranks()
    everything = started()  # their samplers, too
    assert listeners({os.getpid(), *everything}) == {"127.0.0.1"}
    os.kill(ranks[1], signal.SIGKILL)
    result = running.ended()
    assert (result.outcome, result.reason) == (Outcome.FAILED, "rank 1 was ended by SIGKILL")
    assert all(gone(pid) for pid in everything)


@pytest.mark.slow
def test_a_rank_that_is_silent_is_waited_for_no_longer_than_the_timeout(monkeypatch, begin_with) -> None:
    """In a group of the mesh, where the other one waits for it."""
    monkeypatch.setenv("ZOBENCH_PEER_TIMEOUT", "10")
    begin_with("child", "from zobench.parallel import launch\nlaunch.SHUTDOWN_SECONDS = 1\n")
    running = Running(cell("pertp", 2, **LONG))
    ranks = running.ranks()
    os.kill(ranks[1], signal.SIGSTOP)
    try:
        result = running.ended(120)
    finally:
        if not gone(ranks[1], 0.2):
            os.kill(ranks[1], signal.SIGKILL)
    assert result.outcome is Outcome.FAILED
    assert result.reason == "rank 1 is gone without a word"
    assert all(gone(pid) for pid in ranks.values())


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.slow
def test_a_kill_of_the_launcher_or_an_interrupt_ends_all_ranks(started: Callable[[], list[int]]) -> None:
    running = Running(cell("pertp", 2, **LONG))
    ranks, everything = running.ranks(), started()
    (launcher,) = {parent(pid) for pid in ranks.values()}
    os.kill(launcher, signal.SIGKILL)
    result = running.ended()
    assert (result.outcome, result.reason) == (Outcome.FAILED, "the cell's process was ended by SIGKILL")
    assert all(gone(pid) for pid in everything)
    everything.clear()

    def interrupted() -> None:
        if len(processes := ranks_of(os.getpid())) == 2 and all(children(pid) for pid in processes.values()):
            everything.extend(started())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_in_process(cell("pertp", 2, **LONG), while_waiting=interrupted)
    assert len(everything) >= 3
    assert all(gone(pid, 0.5) for pid in everything)  # the launcher has waited for them


@pytest.mark.slow
def test_what_one_rank_cannot_do_is_told_at_once_though_others_wait_for_it(monkeypatch, begin_with) -> None:
    """Rank 0 waits in a transfer for a block that rank 1 has no memory to fill."""
    monkeypatch.setenv("ZOBENCH_PEER_TIMEOUT", "600")
    begin_with(
        "rank",
        "from zobench.parallel import hosts\n"
        "def fill(self, block, write):\n"
        "    raise MemoryError('pinning failed')\n"
        "if os.environ['RANK'] == '1':\n"
        "    hosts.SharedTier.fill = fill\n",
    )
    result = Running(cell("pertp", 2)).ended(120)
    assert (result.outcome, result.reason) == (Outcome.OOM, "rank 1: host memory ran out: pinning failed")
    assert "fill" in result.traceback


@pytest.mark.slow
def test_two_nodes_meet_at_the_given_address_and_give_one_result_of_the_global_batch(monkeypatch) -> None:
    monkeypatch.setenv("ZOBENCH_RENDEZVOUS", f"127.0.0.1:{free_port()}")
    monkeypatch.setenv("ZOBENCH_NODE_COUNT", "2")
    spec = cell("2d-outer", 4, nodes=2)
    first, second = Running(spec), Running(spec)
    results = [first.ended(120), second.ended(120)]
    assert [(result.outcome, result.reason) for result in results] == [(Outcome.OK, "")] * 2
    result, other = results
    assert result.samples == other.samples
    assert result.tokens_per_step == 4 * 16
    alone = measure.run(RunSpec(**FIELDS).resolve("cpu"))
    assert result.samples["loss"] == pytest.approx(alone.samples["loss"], rel=1e-6)
    sent = result.parts["exchanged_bytes"]
    assert len(sent) == 3
    assert all(0 < count < 1024 for count in sent), sent  # measured, of the rank that sends most, headers included
    rows = result.environment.ranks
    assert [(row["rank"], row["node"]) for row in rows] == [(0, 0), (1, 0), (2, 1), (3, 1)]
    assert max(row["device_peak_bytes"] for row in rows) == result.memory["device_peak_bytes"]
    assert all(0 < row["host_unique_bytes"] < row["host_rss_peak_bytes"] for row in rows)
    assert all(row["threads"] == max(1, len(os.sched_getaffinity(0)) // 2) for row in rows)  # of a node's two ranks


@pytest.mark.slow
def test_a_node_that_is_gone_ends_the_others(started: Callable[[], list[int]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZOBENCH_RENDEZVOUS", f"127.0.0.1:{free_port()}")
    spec = cell("ddp", 2, nodes=2, **LONG)
    both = [Running(spec), Running(spec)]
    ranks, everything = both[0].ranks(), started()
    os.kill(parent(ranks[0]), signal.SIGKILL)
    reasons = {node.ended().reason for node in both}
    assert reasons == {"the cell's process was ended by SIGKILL", "the first machine of the run is gone"}
    assert all(gone(pid) for pid in everything)


def test_a_result_may_be_longer_than_what_a_store_takes() -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    samples = {"loss": [1 / 3 + step for step in range(600_000)]}
    rank._put(store, "result", result_of(0, samples=samples))
    assert rank._get(store, "result", 1).samples == samples


@pytest.mark.slow
def test_the_users_own_torchrun_starts_ranks_again_and_only_rank_0_prints(tmp_path: Path) -> None:
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
        "ParallelEngine.probe, tell = failing, rank._send\n"
        "rank.timeout, rank.GRACE = lambda: 10, 1\n"  # rank 1 of the first start gives up soon
        "def late(place, number, result):\n"  # what rank 1 said in the first start would be read before
        "    time.sleep(3 if os.environ['RANK'] + os.environ['TORCHELASTIC_RESTART_COUNT'] == '11' else 0)\n"
        "    tell(place, number, result)\n"
        "rank._send = late\n"
        "main(['run', '--device', 'cpu', '--json', '-', *sys.argv[1:]])\n"
    )
    words = [f"--set={name}={value}" for name, value in {**FIELDS, "gpus": 2, "parallel": "ddp"}.items()]
    done = torchrun(2, "--max-restarts", "1", script, *words, timeout=200)
    assert done.returncode == 0, done.stderr[-3000:]
    result = Result.from_dict(json.loads(done.stdout))  # twice would not be JSON
    assert result.outcome is Outcome.OK
    assert len(result.environment.ranks) == 2
    assert "Signals.SIGKILL" in done.stderr or "exitcode: -9" in done.stderr


def test_ranks_of_another_number_are_told_so_once() -> None:
    words = ("-m", "zobench", "run", "--device", "cpu", *(f"--set={name}={value}" for name, value in FIELDS.items()))
    done = torchrun(2, *words, timeout=200)
    assert done.returncode != 0
    said = "`gpus` must be 2, the ranks that torchrun has started, but got gpus=1; add --set gpus=2 and a parallel, or "
    assert done.stderr.count(f"zobench: {said}start zobench without torchrun") == 1


PAIRS = ("--set=gpus=4", "--set=nodes=2", "--set=parallel=2d", "--set=batch_size=4")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("run", "--set=gpus=3", "--set=parallel=2d"), "`parallel=2d` needs an even number of gpus, at least 4, but "
         "got gpus=3; use parallel=ddp, or gpus=4"),
        (("run", *PAIRS), "`nodes=2` needs --rendezvous HOST:PORT on each of them, but got none; name an address of "
         "the first machine and a free port there"),
        (("sweep", "smoke", "--rendezvous=x:1", "--executor=slurm"), "`--rendezvous` needs --executor here, but got "
         "--executor slurm; leave it out: jobs on several nodes find a place of their own"),
        (("sweep", "smoke", "--rendezvous=x:0"), "`--rendezvous` must be HOST:PORT, but got 'x:0'; for example "
         "10.0.0.1:29500"),
    ],
)  # fmt: skip
def test_what_cannot_start_is_told_before_it_does(words, said, zobench) -> None:
    model = ("--model=opt-tiny", "--engine=offload") if words[0] == "run" else ()
    code, _, err = zobench(*words, *model, "--device=cpu")
    assert (code, err) == (2, f"zobench: {said}\n")


def test_the_rendezvous_option_says_where_the_ranks_meet(monkeypatch, zobench) -> None:
    endpoint = f"127.0.0.1:{free_port()}"
    monkeypatch.setenv("ZOBENCH_RENDEZVOUS", "127.0.0.1:1")  # the option comes first
    asked: list[str] = []

    def run(spec: RunSpec, **_: Any) -> Result:
        asked.append(endpoint_of(spec, os.environ))
        return result_of(0, spec=spec)

    monkeypatch.setattr("zobench.execute.process.run_in_process", run)
    words = ("run", "--model=opt-tiny", "--engine=offload", "--device=cpu", *PAIRS, f"--rendezvous={endpoint}")
    assert (zobench(*words)[0], asked) == (0, [endpoint])


@pytest.mark.parametrize(
    ("messages", "code", "oom", "outcome", "reason"),
    [
        ({}, -9, True, Outcome.OOM, "rank 1: host memory ran out: the system killed rank 1"),
        ({1: "what it said itself"}, 1, False, Outcome.FAILED, "rank 1: what it said itself"),
        ({0: "another rank of the run is gone"}, -9, False, Outcome.FAILED, "rank 1 was ended by SIGKILL"),
    ],
)
def test_how_a_rank_ended_is_told_unless_it_did_so_itself(messages, code, oom, outcome, reason) -> None:
    meeting = Meeting(run="a")
    meeting.round = 0
    for number, text in messages.items():
        rank._send(
            PrefixStore("attempt 0", meeting.store), number, result_of(number, outcome=Outcome.FAILED, reason=text)
        )
    result = rank._after(cell("ddp", 2), Lost(rank=1, code=code), meeting, oom)
    assert (result.outcome, result.reason) == (outcome, reason)
