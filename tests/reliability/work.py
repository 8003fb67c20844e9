"""What is disturbed: fine-tuning in many ways, and a merge that is packed. Each goes on where it stopped."""

import abc
import hashlib
import itertools
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from tests.reliability.disk import Disk, End, forked
from tests.support import stores
from tests.support.files import written
from tests.support.small_task import spec_of, write_data, write_weights
from zobench import models, training
from zobench.durable import journal, snapshot
from zobench.machine import files
from zobench.measure.sampler import Sampler
from zobench.methods.base import Taken
from zobench.models import tokenizers
from zobench.runspec import METHODS
from zobench.store import Store, text_of
from zobench.store.merge import merge
from zobench.store.pack import pack
from zobench.training import Callback, RunStart, StepReport
from zobench.training.assemble import attention_kernels, empty_model
from zobench.training.examine import best_weights

STEPS = 40
"""Of a fine-tuning run."""
LOW_RANK: dict[str, Any] = {"noise": "counter", "options": {"interval": 7, "rank": 4}}
WAYS: dict[str, dict[str, Any]] = {
    "resident": {},
    "lazy": {"engine": "offload", "noise": "counter", "writeback_every": 3, "dtype": "bf16"},
    "halves": {"engine": "offload", "tier": "pageable", "checkpoint": "async", "checkpoint_every": 5},
    "low rank": {"method": "lozo-m", **LOW_RANK, "checkpoint": "journal", "checkpoint_every": 10},
    "zo-muon": {"method": "zo-muon", **LOW_RANK, "queries": 3, "lr": 1e-3},
    "eggroll": {"method": "eggroll", "noise": "counter", "options": {"shards": 2}, "queries": 4, "lr": 1e-6},
    "qzo": {"method": "qzo", "engine": "offload", "checkpoint": "journal", "checkpoint_every": 10, "eps": 1e-3},
    "qes": {"method": "qes", "engine": "offload", "noise": "counter", "queries": 3, "eps": 0.3, "lr": 0.02},
    "async": {"engine": "offload", "checkpoint": "async", "checkpoint_every": 3},
    "adam": {"method": "fo-adam", "lr": 1e-4, "checkpoint": "sync", "checkpoint_every": 5},
    "lora": {"scheme": "lora"},
    "examined": {"engine": "offload"},
}  # fmt: skip
EXAMINED = ("lora", "examined")
"""Ways that end with the look at test and save the model."""


class Work(abc.ABC):
    """Something that writes into folders below ``place``; ``seconds`` and ``operations`` of a run that nobody
    disturbed, and ``expected``, which all others must come to."""

    def __init__(self, name: str, place: Path) -> None:
        self.name, self._place = name, place
        place.mkdir(parents=True)

    def whole(self) -> None:
        """Runs undisturbed."""
        begin, disk = time.monotonic(), Disk()
        end = self.run("whole", disk)
        assert end.code == 0, end
        self.seconds, self.operations = time.monotonic() - begin, int(disk.counts[0])
        self.expected = self.outcome(self.folder("whole"))

    def run(self, name: str, disk: Disk, kill_after: float | None = None) -> End:
        """Begins or goes on in the folder of that name, with ``disk`` in the way."""
        folder = self.folder(name)
        if not folder.exists():
            self._prepare(folder)
        return forked(partial(self._child, folder, disk), self._place / f"{name}.log", kill_after=kill_after)

    def wrong(self, name: str) -> str:
        """What is not as it should be when a run has ended, or ""."""
        outcome = self.outcome(self.folder(name))
        differ = [key for key in self.expected | outcome if self.expected.get(key) != outcome.get(key)]
        return f"{', '.join(sorted(differ))} differ" if differ else ""

    def folder(self, name: str) -> Path:
        """Where a run of that name writes."""
        return self._place / name

    @abc.abstractmethod
    def lost(self, name: str, done: int) -> str:
        """What was said to be done by then and is not there just after a kill, or what is there and false, or ""."""

    @abc.abstractmethod
    def outcome(self, folder: Path) -> dict[str, Any]:
        """All that two runs must have alike."""

    def _prepare(self, folder: Path) -> None:
        folder.mkdir()

    def _child(self, folder: Path, disk: Disk) -> int:
        torch.set_num_threads(1)
        Sampler.start = lambda self: None  # type: ignore[method-assign]  # which writes nothing
        disk.install(folder)
        try:
            self._act(folder, partial(disk.counts.__setitem__, 1))
        except (OSError, ValueError) as error:  # one line, as a command says it
            print(f"{type(error).__name__}: {files.error_text(error) if isinstance(error, OSError) else error}")
            return 1
        return 0

    @abc.abstractmethod
    def _act(self, folder: Path, done: Callable[[int], None]) -> None:
        """Does the work, and says how much of it is done."""


class Counting(Callback):
    """Prints lines, and tells ``done`` how many steps are taken."""

    def __init__(self, done: Callable[[int], None]) -> None:
        self._done = done

    def on_line(self, text: str) -> None:
        print(text)

    def on_start(self, start: RunStart) -> None:
        self._done(len(start.steps))

    def on_step(self, step: StepReport) -> None:
        self._done(step.step)


class Tuning(Work):
    """One way of fine-tuning."""

    def __init__(self, name: str, place: Path, weights: Path, data: Path) -> None:
        super().__init__(name, place)
        self._data, self._examine = data, name in EXAMINED
        self.spec = spec_of(weights, **{"steps": STEPS, "eval_every": STEPS // 4, "lr": 1e-4, **WAYS[name]})

    def whole(self) -> None:
        """See :class:`Work`."""
        attention_kernels(self.spec)  # timed once: all runs of a spec sum alike
        super().whole()
        self._items = items_of(self.folder("whole"))
        losses = [item.loss for item in self._items if isinstance(item, Taken)]
        assert len(set(losses)) > STEPS // 2, f"{self.name}: nothing is trained"

    def lost(self, name: str, done: int) -> str:
        """See :class:`Work`."""
        items = items_of(self.folder(name))
        if items != self._items[: len(items)]:
            return "the journal is of another run"
        steps = sum(isinstance(item, Taken) for item in items)
        return f"{done - steps} steps" if steps < done else ""

    def outcome(self, folder: Path) -> dict[str, Any]:
        """By a process of its own, because engines start threads, which no fork takes along."""
        file = folder.with_name(f"{folder.name}.outcome.json")
        end = forked(partial(self._write_outcome, folder, file), file.with_suffix(".log"))
        return dict(json.loads(file.read_text())) if end.code == 0 else {"outcome": end.said[-800:]}

    def _act(self, folder: Path, done: Callable[[int], None]) -> None:
        counts = Counting(done)
        training.finetune(self.spec, folder=folder, data_dir=self._data, callbacks=[counts], examine=self._examine)

    def _write_outcome(self, folder: Path, file: Path) -> None:
        torch.set_num_threads(1)
        result = json.loads((folder / "result.json").read_text())
        outcome = {
            "journal": hashlib.sha256(repr(items_of(folder)).encode()).hexdigest(),
            "weights": self._weights(folder),
            "samples": [result["samples"][name] for name in ("loss", "projected_grad")],
            **{key: result[key] for key in ("evaluation", "skipped_updates", "outcome", "spec")},
        }  # fmt: skip
        if not METHODS.get(self.spec.method).backpropagates:
            snapshot.prune(folder, ())
            outcome["weights of the base and the journal alone"] = self._weights(folder)
        if self._examine:
            outcome["model"] = {path.name: _digest(path.read_bytes()) for path in sorted((folder / "model").iterdir())}
        file.write_text(json.dumps(outcome))

    def _weights(self, folder: Path) -> dict[str, str]:
        with best_weights(self.spec, folder, self.spec.steps, print) as built:
            tensors = itertools.chain(built.engine.named_tensors(), built.engine.state_tensors())
            return {name: _digest(value.contiguous().view(torch.uint8).numpy().tobytes()) for name, value in tensors}


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def items_of(folder: Path) -> list[journal.Item]:
    """What a journal holds, but for the seconds that a step took."""
    path = folder / "journal.bin"
    if not path.exists() or not journal.is_begun(path.read_bytes()):
        return []
    return [replace(item, seconds=0.0) if isinstance(item, Taken) else item for item in journal.read(path)[1]]


class Merging(Work):
    """Two stores that share some cells merged into a third, and that packed."""

    COUNT = 24

    def lost(self, name: str, done: int) -> str:
        """See :class:`Work`."""
        store, archive = Store(self.folder(name) / "all"), self.folder(name) / "all.tar.gz"
        missing = min(done, self.COUNT) - len(store.runs())
        torn = archive.exists() and _digest(archive.read_bytes()) != self.expected["archive"]
        wrong = [*store.problems, *(["the archive is torn"] if torn else [])]
        return "; ".join([*wrong, *([f"{missing} results"] if missing > 0 else [])])

    def outcome(self, folder: Path) -> dict[str, Any]:
        """See :class:`Work`."""
        texts = {path.name: path.read_text() for path in Store(folder / "all").paths()}
        return {**texts, "archive": _digest((folder / "all.tar.gz").read_bytes())}

    def _prepare(self, folder: Path) -> None:
        for number, name in enumerate(("first", "second")):
            store = Store(folder / name)
            for place, spec in enumerate(itertools.islice(stores.specs(), number * 8, self.COUNT + number * 8)):
                slow = {"step_seconds": [100.0] * (stores.STEPS - number), "loss": [float(place)] * stores.STEPS}
                written(store.path(spec, stores.MACHINE), text_of(stores.run(spec, place, samples=slow)))

    def _act(self, folder: Path, done: Callable[[int], None]) -> None:
        save, saved = Store.save, itertools.count(1)

        def counted(store: Store, *given: Any) -> Path:
            path = save(store, *given)
            done(next(saved))
            return path

        Store.save = counted  # type: ignore[assignment, method-assign]
        merge([folder / "first", folder / "second"], folder / "all")
        pack(folder / "all", folder / "all.tar.gz")


def everything(place: Path, only: Sequence[str] = ()) -> Iterator[Work]:
    """All of it, or what ``only`` names, in folders below ``place``; each has run undisturbed."""
    torch.set_num_threads(1)
    models.build("opt-tiny", "fp32")
    (place / "weights").mkdir()
    (place / "data").mkdir()
    weights, data = write_weights(place / "weights"), write_data(place / "data")
    tokenizers.load(spec_of(weights))
    empty_model(spec_of(weights))
    makers: dict[str, Callable[[Path], Work]] = {
        "merge and pack": partial(Merging, "merge and pack"),
        **{name: partial(Tuning, name, weights=weights, data=data) for name in WAYS},
    }
    for number, name in enumerate(only or makers):
        work = makers[name](place / f"work-{number}")
        work.whole()
        yield work
