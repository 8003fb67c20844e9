"""``kill -9`` at any moment of a run: gone on with, it ends bit for bit as a run that nobody killed.

``ZOBENCH_TEST_KILLS``: how many kills, in runs of 200 steps that are killed :data:`EACH` times; by default few, in
shorter runs. Each way of a run is killed at least once, however few they are.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.killed_ways import NEWER, ONE, TWO, free_port
from zobench.durable import journal, snapshot
from zobench.methods.base import Taken
from zobench.runspec import RunSpec
from zobench.training.examine import best_weights

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

KILLS = int(os.environ.get("ZOBENCH_TEST_KILLS", "8"))
SEED = int(os.environ.get("ZOBENCH_TEST_SEED", "0"))
EACH = 4 if KILLS > 8 else 1
STEPS = 200 if KILLS > 8 else 40
LAST = STEPS - STEPS // 8
"""Steps after which nobody is killed: little would come any more at which to die."""
PLACES = (
    "half of a record", "before a record", "after a record", "in a shard", "before the snapshot has its name",
    "after the snapshot has its name", "between a file and its name", "before the older ones go",
)  # fmt: skip
OUTSIDE = ("a moment", "a snapshot under way", "a record just written")


@dataclass
class Runner:
    """See :mod:`tests.support.killed_run`."""

    process: subprocess.Popen[str]
    data_dir: Path

    def ask(self, question: dict[str, Any]) -> int:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps(question), file=self.process.stdin, flush=True)
        return int(self.process.stdout.readline())

    def wait(self, pid: int) -> int:
        return self.ask({"wait": pid})

    def start(self, spec: RunSpec, folder: Path, die: tuple[int, str, int] | None = None) -> list[int]:
        """The processes of all ranks; ``die``: which rank dies, where, and after how many steps."""
        folder.mkdir(exist_ok=True)
        plan = {"spec": spec.to_dict(), "folder": str(folder), "data_dir": str(self.data_dir)}
        port, pids = free_port(), []
        for rank in range(spec.gpus):
            told: dict[str, Any] = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": spec.gpus}
            told |= {"LOCAL_WORLD_SIZE": spec.gpus, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            told |= {"ZOBENCH_PEER_TIMEOUT": 60}
            own: dict[str, Any] = {**plan, "log": f"{folder}.{rank}.log"}
            own["environment"] = {key: str(value) for key, value in told.items()}
            if spec.gpus == 1:
                del own["environment"]
            if die is not None and die[0] == rank:
                own |= {"die": die[1], "after": die[2]}
            pids.append(self.ask(own))
        return pids


@pytest.fixture(scope="module")
def runner(data_dir: Path) -> Iterator[Runner]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, "-m", "tests.support.killed_run"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        yield Runner(process, data_dir)
        process.stdin.close()


def size(folder: Path) -> int:
    path = folder / "journal.bin"
    return path.stat().st_size if path.exists() else 0


def done(folder: Path) -> int:
    """Steps that are in the journal."""
    path = folder / "journal.bin"
    if not path.exists() or not journal.is_begun(path.read_bytes()):
        return 0
    return sum(isinstance(item, Taken) for item in journal.read(path)[1])


def kill_from_outside(pid: int, folder: Path, moment: str, bytes_there: int, random_: random.Random) -> None:
    """Waits for the moment, and gives up where the run is over before it."""
    end = time.monotonic() + 120
    seen = size(folder)
    while time.monotonic() < end and not (folder / "result.json").exists():
        if moment == "a snapshot under way" and size(folder) >= bytes_there and list(folder.glob(".snapshot-*.tmp")):
            break
        if moment == "a record just written" and size(folder) > max(seen, bytes_there):
            break
        if moment == "a moment" and size(folder) >= bytes_there:
            time.sleep(random_.uniform(0, 0.03))
            break
        time.sleep(0.0005)  # on one core the run must go on meanwhile
    os.kill(pid, signal.SIGKILL)


def outcome(spec: RunSpec, folder: Path) -> dict[str, Any]:
    """All that two runs must have alike."""
    told = [replace(i, seconds=0.0) if isinstance(i, Taken) else i for i in journal.read(folder / "journal.bin")[1]]
    with best_weights(spec, folder, spec.steps, print) as built:
        tensors = {**dict(built.engine.named_tensors()), **dict(built.engine.state_tensors())}
    result = json.loads((folder / "result.json").read_text())
    return {
        "journal": told, "tensors": tensors, "evaluation": result["evaluation"],
        "losses": result["samples"]["loss"], "steps": len(result["samples"]["step_seconds"]),
        "lines": (folder / "progress.jsonl").read_text(),
    }  # fmt: skip


def assert_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    for key in one.keys() - {"tensors"}:
        assert one[key] == other[key], key
    mine, theirs = one["tensors"], other["tensors"]
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name].view(torch.uint8), theirs[name].view(torch.uint8)) for name in mine)


@pytest.fixture(scope="module")
def expected() -> dict[str, dict[str, Any]]:
    """What came of each way without a kill, by its hash."""
    return {}


def killed_and_finished(runner: Runner, spec: RunSpec, folder: Path, random_: random.Random) -> list[str]:
    """Kills the run :data:`EACH` times, lets it end, and says where it died."""
    deaths: list[str] = []
    attempts = 0
    while len(deaths) < EACH and attempts < 3 * EACH:
        attempts += 1
        step = random_.randrange(min(done(folder), LAST - 1), LAST)
        rank = random_.randrange(spec.gpus)
        place = random_.choice(OUTSIDE if rank else PLACES + OUTSIDE)  # the first rank alone writes most of it
        if place in OUTSIDE:
            pids = runner.start(spec, folder)
            there = size(folder)
            per_step = 52 * (1 + 2 * spec.queries)
            kill_from_outside(pids[rank], folder, place, there + per_step * (step - done(folder)), random_)
        else:
            pids = runner.start(spec, folder, (rank, place, step))
        codes = [runner.wait(pid) for pid in pids]
        if codes[rank] == -signal.SIGKILL:
            deaths.append(f"{place}, rank {rank}, step {done(folder)}")
        else:
            assert codes == [0] * len(codes), (codes, place)  # it ended before it came there
        if (folder / "result.json").exists():
            break
    assert [runner.wait(pid) for pid in runner.start(spec, folder)] == [0] * spec.gpus
    return deaths


def check(
    runner: Runner, ways: dict[str, dict[str, Any]], kills: int, make: Any, folder: Path, expected: dict[str, Any]
) -> None:
    random_, total, number = random.Random(SEED), 0, 0
    while total < kills or number < len(ways):  # each way at least once
        name = list(ways)[number % len(ways)]
        spec = make(**{"steps": STEPS, "eval_every": STEPS // 8, "lr": 1e-4, **ways[name]})
        if name not in expected:
            whole = folder / f"whole-{name}"
            assert [runner.wait(pid) for pid in runner.start(spec, whole)] == [0] * spec.gpus
            expected[name] = outcome(spec, whole)
            assert len(set(expected[name]["losses"])) > STEPS // 2
        mine = folder / f"{name}-{number}"
        deaths = killed_and_finished(runner, spec, mine, random_)
        total, number = total + len(deaths), number + 1
        print(f"{name}: {len(deaths)} kills: {'; '.join(deaths)}", flush=True)
        assert_same(expected[name], outcome(spec, mine))
        snapshot.prune(mine, ())
        assert_same(expected[name], outcome(spec, mine))  # of the base and the journal alone
    print(f"{total} kills, all ended as the runs that nobody killed", flush=True)


@pytest.mark.slow
def test_a_killed_run_ends_as_one_that_was_not(runner, spec, tmp_path, expected) -> None:
    check(runner, ONE, -(-KILLS * 3 // 4), spec, tmp_path, expected)


@pytest.mark.slow
@pytest.mark.parametrize("method", NEWER)
def test_a_killed_run_of_a_method_with_directions_or_weights_of_its_own_ends_as_one_that_was_not(
    runner: Runner, spec: Any, tmp_path: Path, method: str
) -> None:
    ways = {method: {"method": method, "engine": "offload", **NEWER[method]}}
    check(runner, ways, 1, spec, tmp_path, {})


def test_a_run_of_two_ranks_of_which_one_is_killed_ends_as_one_that_was_not(runner, spec, tmp_path, expected) -> None:
    check(runner, TWO, -(-KILLS // 4), spec, tmp_path, expected)
