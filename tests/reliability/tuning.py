"""Fine-tuning runs that are killed: one process or two ranks, all forms of snapshots."""

import hashlib
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from tests.reliability.board import Board, End, Moment, start, wait
from tests.reliability.workload import Check, Death, draw, refused, same
from tests.support.forked_ranks import free_port
from tests.support.small_task import spec_of
from zobench import training
from zobench.durable import journal, snapshot, tensors
from zobench.durable.savers.base import Cut
from zobench.durable.savers.blocking import BlockingSaver
from zobench.machine import files
from zobench.measure.sampler import Sampler
from zobench.methods.base import Taken
from zobench.models import tokenizers
from zobench.runspec import METHODS
from zobench.training import Hooks, origin
from zobench.training.assemble import attention_kernels, empty_model
from zobench.training.examine import best_weights
from zobench.training.training import Training

STEPS, PEER_SECONDS = 40, 15
"""Of a run; and how long a rank waits for another: three or four such waits follow each other until it has ended."""
PHASES = (
    "a snapshot gets its name", "a file gets its name", "older snapshots go", "a journal's append",
    "the result's write", "a snapshot's write", "an evaluation", "in a step", "resuming",
)  # fmt: skip
"""Of a fine-tuning run, the more telling first: a snapshot can be written beside a step."""
TORN = (
    "half of a record", "before a record", "after a record", "in a shard", "before the snapshot has its name",
    "after the snapshot has its name", "between a file and its name", "before the older ones go",
)  # fmt: skip
"""Places inside of one system call, or between two, that no clock hits: there the process ends itself by SIGKILL."""
NEWER: dict[str, dict[str, Any]] = {
    "lozo-m": {"noise": "counter", "options": {"interval": 7}, "checkpoint": "journal", "checkpoint_every": 10},
    "subzero": {"noise": "counter", "options": {"interval": 7, "rank": 4}},
    "zo-muon": {"noise": "counter", "options": {"interval": 7, "rank": 4}, "queries": 3, "lr": 1e-3},
    "eggroll": {"noise": "counter", "options": {"shards": 2}, "queries": 4, "lr": 1e-6},
    "qzo": {"checkpoint": "journal", "checkpoint_every": 10, "eps": 1e-3},
    "qes": {"noise": "counter", "queries": 3, "eps": 0.3, "lr": 0.02},
}  # fmt: skip
WAYS: dict[str, dict[str, Any]] = {
    "resident": {},
    "disk": {"engine": "offload", "checkpoint": "journal", "checkpoint_every": 7},
    "lazy": {"engine": "offload", "noise": "counter", "writeback_every": 3, "dtype": "bf16"},
    "halves": {"engine": "offload", "tier": "pageable", "checkpoint": "async", "checkpoint_every": 5},
    "momentum": {"method": "zo-sgd-mmt", "engine": "offload", "checkpoint": "sync", "checkpoint_every": 9},
    "wire": {"engine": "offload", "wire": "fp16", "queries": 2},
    "low rank": {
        "method": "lozo", "engine": "offload", "noise": "counter", "options": {"interval": 7}, "checkpoint": "journal",
        "checkpoint_every": 10,
    },
    "packed": {
        "packed": True, "accumulate": 2, "attention": "fast", "law": "rademacher", "engine": "offload",
        "noise": "counter", "granularity": "linear",
    },
    **{name: {"method": name, "engine": "offload", **values} for name, values in NEWER.items()},
    "sync": {"engine": "offload", "checkpoint": "sync", "checkpoint_every": 3},
    "async": {"engine": "offload", "checkpoint": "async", "checkpoint_every": 3},
    "journal": {"engine": "offload", "checkpoint": "journal", "checkpoint_every": 3},
    "adam": {"method": "fo-adam", "lr": 1e-4, "checkpoint": "sync", "checkpoint_every": 5},
    "lora": {"scheme": "lora", "examine": True},
    "examined": {"engine": "offload", "examine": True},
}  # fmt: skip
RANKS: dict[str, dict[str, Any]] = {
    "ddp": {"gpus": 2, "parallel": "ddp"},
    "pertp": {"gpus": 2, "parallel": "pertp", "engine": "offload", "checkpoint": "journal", "checkpoint_every": 7},
    "ddp sync": {"gpus": 2, "parallel": "ddp", "engine": "offload", "checkpoint": "sync", "checkpoint_every": 5},
    "ddp async": {"gpus": 2, "parallel": "ddp", "engine": "offload", "checkpoint": "async", "checkpoint_every": 5},
}


def kill_self() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()


def arm(where: str, after: int) -> Callable[[int], None]:
    """Makes this process die at ``where``, the first time that it comes there after so many steps; the function is to
    be told of each step."""
    armed = False

    def told(step: int) -> None:
        nonlocal armed
        armed = step >= after

    def before(module: Any, name: str, act: Callable[..., None]) -> None:
        own = getattr(module, name)

        def changed(*arguments: Any, **more: Any) -> Any:
            if armed:
                act(own, *arguments)
                kill_self()
            return own(*arguments, **more)

        setattr(module, name, changed)

    def half(own: Any, file: int, data: bytes, place: int) -> None:
        own(file, data[: len(data) // 2], place)

    def nothing(own: Any, *arguments: Any) -> None:
        pass

    def done(own: Any, *arguments: Any) -> None:
        own(*arguments)

    if where == "half of a record":
        before(journal.os, "pwrite", half)
    elif where == "before a record":
        before(journal.JournalFile, "append", nothing)
    elif where == "after a record":
        before(journal.JournalFile, "append", done)
    elif where == "in a shard":
        before(snapshot._Shard, "end", nothing)
    elif where == "before the snapshot has its name":
        before(snapshot.os, "rename", nothing)
    elif where == "after the snapshot has its name":
        before(snapshot.os, "rename", done)
    elif where == "between a file and its name":
        before(files.os, "replace", nothing)
    elif where == "before the older ones go":
        before(snapshot, "prune", nothing)
    else:
        raise ValueError(where)
    return told


def warm(weights: Path) -> None:
    """Imports what every run imports, once for all that are forked."""
    torch.set_num_threads(1)
    spec = spec_of(weights)
    tokenizers.load(spec)
    empty_model(spec)
    for module_name in ("peft", "zobench.parallel", "zobench.parallel.hosts", "zobench.schemes"):
        __import__(module_name)


class Tuning:
    """One way of fine-tuning, in folders below ``place``: see :class:`tests.reliability.workload.Workload`."""

    grain = 64
    """As :attr:`tests.reliability.stored.Writing.grain`."""

    def __init__(self, name: str, place: Path, weights: Path, data: Path, steps: int = STEPS) -> None:
        changes = {**WAYS, **{f"ranks {key}": values for key, values in RANKS.items()}}[name]
        self.name, self._place, self._data = name, place, data
        self._examine = bool(changes.get("examine", False))
        values = {"steps": steps, "eval_every": steps // 4, "lr": 1e-4, **changes}
        values.pop("examine", None)
        self.spec = spec_of(weights, **values)
        self.disturb: Callable[[Path], None] = lambda folder: None
        """Done by the process itself before it begins."""
        self.limit = 120.0
        """Seconds after which a process of it has taken too long."""

    def whole(self) -> None:
        """Runs without a kill: what all others are compared with, how long it takes and how often it is where."""
        folder = self._folder("whole")
        began = time.monotonic()
        boards = [Board(PHASES) for _ in range(self.spec.gpus)]
        ends = self._run(folder, boards, {})
        assert [end.code for end in ends] == [0] * self.spec.gpus, (ends, self._said("whole"))
        self.seconds, self.board = time.monotonic() - began, boards[0]
        self.items = items_of(folder)
        self.expected = self._outcome(folder)
        losses = [item.loss for item in self.items if isinstance(item, Taken)]
        assert len(set(losses)) > self.spec.steps // 2, f"{self.name}: nothing is trained"

    def kill(self, chain: str, random_: random.Random) -> Death | None:
        """Goes on with the run of ``chain`` and kills it; None if it came to its end before."""
        folder, rank = self._folder(chain), random_.randrange(self.spec.gpus)
        left = 1 - len(items_of(folder)) / len(self.items)
        boards = [Board(PHASES) for _ in range(self.spec.gpus)]
        moment: Moment | str
        if rank == 0 and random_.random() < 0.2:
            moment = random_.choice(TORN)
            told = f"{moment}, step {(step := random_.randrange(self.spec.steps // 5))} from there"
            ends = self._run(folder, boards, {rank: (moment, step)})
        else:
            moment = draw(random_, self.board, PHASES if rank == 0 else (), self.seconds, left)
            told = f"{moment.phase or 'the start'} {moment.entry or ''} + {moment.delay:.6f} s".replace("  ", " ")
            ends = self._run(folder, boards, {rank: moment})
        if not ends[rank].killed:
            wrong = [end for end in ends if end.code != 0]
            assert not wrong, f"{self.name} {chain}: nobody was killed, but {wrong}: {self._said(chain)}"
            return None
        phase = moment if isinstance(moment, str) else self._phase(boards, rank)
        check = self._after(folder, boards[rank].done, ends)
        return Death(
            asked=told, phase=phase, beside=boards[rank].active(), done=boards[rank].done, rank=rank,
            cpu=sum(end.cpu for end in ends), check=check,
        )  # fmt: skip

    def is_over(self, chain: str) -> bool:
        """Whether the run has come to its end."""
        folder = self._folder(chain)
        return (folder / "result.json").exists() and not self._examine

    def finish(self, chain: str) -> Check:
        """Lets the run end, and compares everything with the one that was not killed."""
        folder = self._folder(chain)
        ends = self._run(folder, [Board(PHASES) for _ in range(self.spec.gpus)], {})
        if [end.code for end in ends] != [0] * self.spec.gpus:
            return Check(lost=0, differs=f"it did not go on: {ends}: {self._said(chain)}")
        return Check(lost=0, differs=same(self.expected, self._outcome(folder)))

    def _folder(self, name: str) -> Path:
        return self._place / name

    def _said(self, chain: str) -> str:
        logs = sorted(self._place.glob(f"{chain}.*.log"))
        return " | ".join(log.read_text(errors="replace")[-800:] for log in logs)

    def _phase(self, boards: list[Board], rank: int) -> str:
        board = boards[rank]
        active = board.active()
        if len({one.done for one in boards}) > 1 and active in ([], ["in a step"]):
            return "between two ranks' steps"
        if active:
            return active[0]
        return "between two steps" if board.done > 0 else "before the first step"

    def _after(self, folder: Path, done: int, ends: list[End]) -> Check:
        """What the journal has just after a kill: all that was said to be done, and nothing that is not so."""
        if any(end.code is None for end in ends):
            return Check(lost=0, differs="a rank did not end when its peer was gone")
        there = items_of(folder)
        steps = sum(isinstance(item, Taken) for item in there)
        differs = "" if there == self.items[: len(there)] else "the journal tells another run"
        return Check(lost=max(0, done - steps), differs=differs)

    def _run(self, folder: Path, boards: list[Board], dying: dict[int, Any]) -> list[End]:
        attention_kernels(self.spec)  # timed once: all runs of a spec sum alike
        port, pids = free_port(), []
        for rank, board in enumerate(boards):
            told: dict[str, object] = {
                "RANK": rank,
                "LOCAL_RANK": rank,
                "WORLD_SIZE": len(boards),
                "LOCAL_WORLD_SIZE": len(boards),
            }
            told |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "ZOBENCH_PEER_TIMEOUT": PEER_SECONDS}
            environment = {key: str(value) for key, value in told.items()} if len(boards) > 1 else {}
            act = partial(self._child, folder, board, dying.get(rank), environment)
            pids.append(start(act, folder.with_name(f"{folder.name}.{rank}.log")))
        return [wait(pid, self.limit) for pid in pids]

    def _child(self, folder: Path, board: Board, moment: Any, environment: dict[str, str]) -> int:
        os.environ |= environment
        torch.set_num_threads(1)
        watch(board)
        told = arm(*moment) if isinstance(moment, tuple) else lambda step: None
        begun, own = 0, Training._step

        def counted(training: Training) -> None:
            own(training)
            board.done = training._record.step  # of the ranks that report nothing

        Training._step = counted  # type: ignore[assignment, method-assign]

        def begin(done: int, total: int) -> None:
            nonlocal begun
            begun, board.done = done, done

        def step(report: Any) -> None:
            board.done = report.step
            told(report.step - begun)

        if isinstance(moment, Moment):
            board.die_at(moment)
        self.disturb(folder)
        try:
            training.finetune(
                self.spec, folder=folder, data_dir=self._data, progress=Hooks(step=step, begin=begin, say=print),
                examine=self._examine,
            )  # fmt: skip
        except (OSError, ValueError) as error:  # a rank whose peer is gone; one line, as a command says it
            return refused(error)
        return 0

    def _outcome(self, folder: Path) -> dict[str, Any]:
        """All that two runs must have alike, told by a process of its own: engines start threads, which no fork takes
        along."""
        file = folder.with_name(f"{folder.name}.outcome.json")
        end = wait(start(partial(self._tell, folder, file), file.with_suffix(".log")))
        assert end.code == 0, file.with_suffix(".log").read_text()
        return dict(json.loads(file.read_text()))

    def _tell(self, folder: Path, file: Path) -> None:
        torch.set_num_threads(1)
        result = json.loads((folder / "result.json").read_text())
        told = {
            "journal": hashlib.sha256(repr(items_of(folder)).encode()).hexdigest(),
            "loss": result["samples"]["loss"], "gradient": result["samples"]["projected_grad"],
            "evaluation": result["evaluation"], "skipped": result["skipped_updates"],
            "outcome": result["outcome"], "spec": result["spec"],
            "progress": (folder / "progress.jsonl").read_text(),
            "weights": self._weights(folder),
        }  # fmt: skip
        if not self._backpropagates:
            snapshot.prune(folder, ())
            told["weights of the base and the journal alone"] = self._weights(folder)
        if self._examine:
            told["model"] = {path.name: _digest(path.read_bytes()) for path in sorted((folder / "model").iterdir())}
        file.write_text(json.dumps(told))

    @property
    def _backpropagates(self) -> bool:
        return METHODS.get(self.spec.method).backpropagates

    def _weights(self, folder: Path) -> dict[str, str]:
        with best_weights(self.spec, folder, self.spec.steps, print) as built:
            held = {**dict(built.engine.named_tensors()), **dict(built.engine.state_tensors())}
            return {name: _digest(one.contiguous().view(torch.uint8).numpy().tobytes()) for name, one in held.items()}


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def items_of(folder: Path) -> list[journal.Item]:
    """What a journal tells, but for the seconds that a step took."""
    path = folder / "journal.bin"
    if not path.exists() or not journal.is_begun(path.read_bytes()):
        return []
    return [replace(item, seconds=0.0) if isinstance(item, Taken) else item for item in journal.read(path)[1]]


def watch(board: Board) -> None:
    """Puts on the board where this process is in a fine-tuning run. Its sampler, which writes nothing, is left out."""
    Sampler.start = lambda self: None  # type: ignore[method-assign]
    for owner, name, phase in (
        (Training, "_step", "in a step"), (Training, "_evaluate", "an evaluation"),
        (journal.JournalFile, "append", "a journal's append"),
        (sys.modules["zobench.training.run"], "_keep", "the result's write"),
        (snapshot.Writer, "add", "a snapshot's write"), (snapshot.Writer, "finish", "a snapshot's write"),
        (tensors, "write", "a snapshot's write"), (BlockingSaver, "begin", "a snapshot's write"),
        (Cut, "finish", "a snapshot's write"), (snapshot, "prune", "older snapshots go"),
        (os, "rename", "a snapshot gets its name"), (os, "replace", "a file gets its name"),
        (origin, "resume_point", "resuming"), (origin, "bring", "resuming"),
    ):  # fmt: skip
        board.watch(owner, name, phase)
