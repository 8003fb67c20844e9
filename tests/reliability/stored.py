"""Sweeps, jobs, merges and packed archives that are killed: everything that writes into a store of results."""

import io
import itertools
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from tests.reliability.board import Board, Moment, start, wait
from tests.reliability.workload import Check, Death, draw, refused, same
from tests.support import stores
from tests.support.processes import gone
from tests.support.rates import CALIBRATION, RATES
from zobench.execute import child, jobs, plan, pool, process, task
from zobench.execute.sweep import SweepHooks, sweep
from zobench.measure.environment import fingerprint_without_torch
from zobench.measure.sampler import Sampler
from zobench.result import Outcome, Result
from zobench.runspec import RunSpec
from zobench.store import Store, text_of
from zobench.store.merge import merge
from zobench.store.pack import pack

ROOM = plan.Limits(device_bytes=None, host_bytes=10**12, disk_bytes=10**12)
CELLS: tuple[dict[str, Any], ...] = (
    {}, {"engine": "offload"}, {"method": "zo-sgd-mmt", "engine": "offload"}, {"dtype": "bf16", "noise": "counter"},
)  # fmt: skip


def specs() -> list[RunSpec]:
    """The cells of a small sweep: they are measured in earnest, in a moment."""
    usual = {"model": "opt-tiny", "seq_len": 16, "steps": 3, "warmup": 1, "lr": 1e-3}
    return [RunSpec(**{**usual, **changes}).resolve("cpu") for changes in CELLS]


class ForkedProcess:
    """Stands in for ``subprocess.Popen`` of a cell's process: it is forked from this one, which has loaded everything,
    and then does what ``python -m zobench.execute.child`` does, in a session of its own."""

    board: Board | None = None
    """Where the ids of such processes are noted, so that one that outlives its parent is found."""

    def __init__(self, command: list[str], *, stderr: Any, env: dict[str, str], **_: Any) -> None:
        assert command[3] == "zobench.execute.child", command
        theirs, ours = os.pipe()
        self.returncode: int | None = None
        self.pid = os.fork()
        if not self.pid:
            os.close(ours)
            self._be(command[4:], theirs, stderr.fileno(), env)
        os.close(theirs)
        self.stdin = os.fdopen(ours, "wb")
        if self.board is not None:
            self.board.note(self.pid)

    def _be(self, arguments: list[str], question: int, errors: int, env: dict[str, str]) -> None:
        code = 1
        try:
            os.setsid()
            for number, own in ((0, question), (1, errors), (2, errors)):
                os.dup2(own, number)
            os.environ |= env
            sys.argv, sys.stdin = ["child", *arguments], io.TextIOWrapper(io.FileIO(0), encoding="utf-8")
            child.main()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        except BaseException as error:
            os.write(2, f"{type(error).__name__}: {error}\n".encode())
        finally:
            os._exit(code)

    def poll(self) -> int | None:
        """See ``subprocess.Popen``."""
        if self.returncode is None:
            found, status = os.waitpid(self.pid, os.WNOHANG)
            if found:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """See ``subprocess.Popen``."""
        end = None if timeout is None else time.monotonic() + timeout
        while self.poll() is None:
            if end is not None and time.monotonic() > end:
                raise subprocess.TimeoutExpired("cell", timeout or 0)
            time.sleep(0.001)
        assert self.returncode is not None
        return self.returncode

    def terminate(self) -> None:
        """See ``subprocess.Popen``."""
        os.kill(self.pid, signal.SIGTERM)


def forked_cells(board: Board | None = None) -> None:
    """From now on cells of this process run in forks of it; the sampler, which writes nothing, is left out."""
    ForkedProcess.board = board
    kinds = {name: getattr(subprocess, name) for name in ("PIPE", "TimeoutExpired", "run")}
    process.subprocess = SimpleNamespace(**kinds, Popen=ForkedProcess)  # type: ignore[assignment, attr-defined]
    Sampler.start = lambda self: None  # type: ignore[method-assign]
    torch.set_num_threads(1)


def known(result: Result) -> dict[str, Any]:
    """What of a result is no time: a machine that others use makes a cell ``contaminated``, and not another one."""
    told = result.to_dict()
    outcome = "measured" if told["outcome"] in ("ok", "contaminated") else f"{told['outcome']}: {told['reason']}"
    return {
        "spec": told["spec"], "outcome": outcome, "skipped": told["skipped_updates"],
        "loss": told["samples"].get("loss"), "gradient": told["samples"].get("projected_grad"),
        "warm-up": told["warmup"].get("loss"), "definition": told["environment"].get("definition"),
        "kinds": [row[:3] for row in told["timeline"]] and sorted({tuple(row[:2]) for row in told["timeline"]}),
    }  # fmt: skip


def read_all(root: Path) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """(what each stored run came to, by its hash; files that cannot be believed)."""
    store = Store(root)
    return {result.spec.hash: known(result) for result in store.runs()}, store.problems


class Writing:
    """What workloads that write into a store have in common; ``phases``: as a board has them."""

    name: str
    phases: tuple[str, ...]
    grain = 4
    """KiB between two sizes of a small disk that it is tried on."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self.disturb: Callable[[Path], None] = lambda folder: None
        """Done by the process itself before it begins."""

    def whole(self) -> None:
        """See :class:`tests.reliability.workload.Workload`."""
        began, self.board = time.monotonic(), Board(self.phases)
        end = wait(self._start("whole", self.board, None))
        assert end.code == 0, (end, self._said("whole"))
        self.seconds = time.monotonic() - began
        self.expected = self._outcome("whole")

    def kill(self, chain: str, random_: random.Random) -> Death | None:
        """See :class:`tests.reliability.workload.Workload`."""
        board, left = Board(self.phases), self._left(chain)
        moment = draw(random_, self.board, self.phases, self.seconds, left)
        end = wait(self._start(chain, board, moment))
        if not end.killed:
            assert end.code == 0, f"{self.name} {chain}: nobody was killed, but {end}: {self._said(chain)}"
            return None
        told = f"{moment.phase or 'the start'} {moment.entry or ''} + {moment.delay:.6f} s".replace("  ", " ")
        active = board.active()
        return Death(
            asked=told, phase=active[0] if active else self.between(board.done), beside=active, done=board.done,
            cpu=end.cpu, check=self._after(chain, board),
        )  # fmt: skip

    def is_over(self, chain: str) -> bool:
        """See :class:`tests.reliability.workload.Workload`."""
        return self._left(chain) == 0

    def finish(self, chain: str) -> Check:
        """See :class:`tests.reliability.workload.Workload`."""
        end = wait(self._start(chain, Board(self.phases), None))
        if end.code != 0:
            return Check(lost=0, differs=f"it did not go on: {end}: {self._said(chain)}")
        return Check(lost=0, differs=same(self.expected, self._outcome(chain)))

    def between(self, done: int) -> str:
        """Where a process is that is in no phase."""
        return "before the first of them" if done < 0 else "bookkeeping between two of them"

    def _start(self, chain: str, board: Board, moment: Moment | None) -> int:
        folder = self._place / chain
        if not folder.exists():
            self._prepare(folder)
        return start(partial(self._child, folder, board, moment), self._place / f"{chain}.log")

    def _said(self, chain: str) -> str:
        return (self._place / f"{chain}.log").read_text(errors="replace")[-800:]

    def _child(self, folder: Path, board: Board, moment: Moment | None) -> int:
        self._watch(board)
        if moment is not None:
            board.die_at(moment)
        self.disturb(folder)
        try:
            self._work(folder, board)
            for told in self._failed(folder):
                print("failed:", told)
        except (OSError, ValueError) as error:  # one line, as a command says it
            return refused(error)
        return 0

    def _prepare(self, folder: Path) -> None:
        folder.mkdir()

    def _failed(self, folder: Path) -> list[str]:
        """Why cells of the run have failed, which are measured again: one line each."""
        return [result.reason for result in Store(folder).runs() if result.outcome is Outcome.FAILED]

    def _watch(self, board: Board) -> None:
        raise NotImplementedError

    def _work(self, folder: Path, board: Board) -> None:
        raise NotImplementedError

    def _left(self, chain: str) -> float:
        raise NotImplementedError

    def _outcome(self, chain: str) -> dict[str, Any]:
        raise NotImplementedError

    def _after(self, chain: str, board: Board) -> Check:
        raise NotImplementedError


class Sweeping(Writing):
    """A sweep of cells that are measured in earnest; the process that is killed is the sweep's own."""

    name = "sweep"
    phases = ("a file gets its name", "the result's write", "a cell", "the plan")

    def _watch(self, board: Board) -> None:
        from zobench.execute import sweep as module

        forked_cells(board)
        board.watch(os, "replace", "a file gets its name")
        board.watch(Store, "save", "the result's write")
        board.watch(module, "run_in_process", "a cell")
        board.watch(plan, "make", "the plan")

    def _work(self, folder: Path, board: Board) -> None:
        store, machine = Store(folder), fingerprint_without_torch().machine

        def ended(step: Any, result: Result) -> None:
            board.done += 1

        with store.lock():
            steps = plan.make(specs(), store, machine, RATES, ROOM, frozenset({"failed"}))
            board.done = 0
            summary = sweep(steps, store, calibration=CALIBRATION, progress=SweepHooks(end=ended))
        for told in summary.unsaved:
            print("not stored:", told)

    def _left(self, chain: str) -> float:
        folder = self._place / chain
        return 1 - len(list(folder.glob("*/*.json"))) / len(CELLS) if folder.exists() else 1.0

    def _outcome(self, chain: str) -> dict[str, Any]:
        found, problems = read_all(self._place / chain)
        return {**found, "problems": problems}

    def _after(self, chain: str, board: Board) -> Check:
        return after_cells(self._place / chain, self.expected, board)


def after_cells(root: Path, expected: dict[str, Any], board: Board) -> Check:
    """What a store has just after a kill: all that was said to be done, as it should be; and no cell goes on."""
    found, problems = read_all(root)
    differs = [f"{name} is another result" for name, one in found.items() if expected.get(name) != one]
    differs += [f"process {pid} goes on" for pid in board.noted() if not gone(pid, 10)]
    return Check(lost=max(0, board.done - len(found)), differs="; ".join([*differs, *problems]))


class Working(Writing):
    """A worker of the local pool, the same code that a Slurm job runs; what it lost is submitted anew."""

    name = "jobs"
    phases = ("a file gets its name", "the result's write", "a job's report", "a cell", "the queue's lock")

    def _watch(self, board: Board) -> None:
        from zobench.execute import sweep as module

        forked_cells(board)
        task.calibration = lambda *_: CALIBRATION  # type: ignore[assignment]
        board.watch(os, "replace", "a file gets its name")
        board.watch(Store, "save", "the result's write")
        board.watch(jobs, "tell", "a job's report")
        board.watch(module, "run_in_process", "a cell")
        board.watch(pool, "_next", "the queue's lock")

    def _failed(self, folder: Path) -> list[str]:
        return super()._failed(folder / "results")

    def _work(self, folder: Path, board: Board) -> None:
        results, machine = folder / "results", fingerprint_without_torch().machine
        kept = jobs.kept(specs(), Store(results), [machine], {"failed"})
        waiting = tuple(spec for spec in specs() if spec not in kept)
        if not waiting:
            return
        submission = jobs.Submission(
            folder=jobs.new_folder(results), name="mine", executor="local", cells=waiting,
            groups=(tuple(range(len(waiting))),), submitted=time.time(), place=pool.host_name(), retry=("failed",),
        )  # fmt: skip
        submission.write()
        jobs.write_json(submission.folder / "jobs.json", ["worker 0"])
        board.done = len(kept)
        run = task.run_cell

        def counted(*arguments: Any, **more: Any) -> bool:
            whole = run(*arguments, **more)
            board.done += 1
            return whole

        pool.run_cell = counted  # type: ignore[assignment]
        pool.PoolWorker(str(submission.folder), 0)()

    def _left(self, chain: str) -> float:
        folder = self._place / chain / "results"
        return 1 - len(Store(folder).paths()) / len(CELLS) if folder.exists() else 1.0

    def _outcome(self, chain: str) -> dict[str, Any]:
        found, problems = read_all(self._place / chain / "results")
        return {**found, "problems": problems}

    def _after(self, chain: str, board: Board) -> Check:
        root = self._place / chain / "results"
        check = after_cells(root, self.expected, board)
        states = [one.state for made in jobs.submissions(root) for one in jobs.states(made, pool.look(made))]
        wrong = sorted({state for state in states if state not in ("lost", "ok", "contaminated")})
        told = f"cells of a worker that is gone are {', '.join(wrong)}" if wrong else ""
        return Check(lost=check.lost, differs="; ".join(filter(None, [check.differs, told])))


class Merging(Writing):
    """Two stores that share some cells merged into a third, and that packed."""

    name = "merge and pack"
    phases = ("a file gets its name", "the archive's write", "a result's write", "the merge")
    count = 24
    grain = 64

    def _prepare(self, folder: Path) -> None:
        folder.mkdir()
        for number, name in enumerate(("one", "two")):
            store = Store(folder / name)
            for place, spec in enumerate(itertools.islice(stores.specs(), number * 8, self.count + number * 8)):
                slow = {"step_seconds": [100.0] * (stores.STEPS - number), "loss": [float(place)] * stores.STEPS}
                result = stores.run(spec, place, samples=slow)
                path = store.path(spec, stores.MACHINE)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text_of(result))

    def _watch(self, board: Board) -> None:
        from zobench.store import pack as module

        board.watch(os, "replace", "a file gets its name")
        board.watch(Store, "save", "a result's write")
        board.watch(module.files, "replace", "the archive's write")
        board.watch(sys.modules["zobench.store.merge"], "_add", "the merge")

    def _work(self, folder: Path, board: Board) -> None:
        board.done = 0
        own = Store.save

        def counted(store: Store, result: Result) -> Path:
            path = own(store, result)
            board.done += 1
            return path

        Store.save = counted  # type: ignore[assignment, method-assign]
        merge([folder / "one", folder / "two"], folder / "all")
        pack(folder / "all", folder / "all.tar.gz")

    def _left(self, chain: str) -> float:
        return 0.0 if (self._place / chain / "all.tar.gz").exists() else 1.0

    def _outcome(self, chain: str) -> dict[str, Any]:
        folder = self._place / chain
        told = {path.name: path.read_text() for path in Store(folder / "all").paths()}
        return {**told, "archive": (folder / "all.tar.gz").read_bytes().hex()}

    def _after(self, chain: str, board: Board) -> Check:
        folder = self._place / chain
        store = Store(folder / "all")
        found = store.runs()
        archive = folder / "all.tar.gz"
        torn = archive.exists() and archive.read_bytes().hex() != self.expected["archive"]
        differs = [*store.problems, *(["the archive is torn"] if torn else [])]
        return Check(lost=max(0, min(board.done, self.count) - len(found)), differs="; ".join(differs))


def warm() -> None:
    """Imports and builds what a cell needs, once for all that are forked."""
    from zobench import models
    from zobench.programs import cell  # noqa: F401  what a cell's process imports

    models.build("opt-tiny", "fp32")
