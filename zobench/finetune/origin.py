"""What a run goes on from: its journal, and beside it the newest whole snapshot or its base."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zobench.durable import fingerprint, journal, replay, snapshot
from zobench.durable.journal import EvaluationItem, Item, JournalFile
from zobench.durable.snapshot import SnapshotStart
from zobench.finetune.assemble import Tuner, initial_weights
from zobench.runspec import METHODS, RunSpec

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from zobench.parallel import World

JOURNAL = "journal.bin"


def header_of(spec: RunSpec, model: PreTrainedModel) -> dict[str, Any]:
    """The journal's. ``complete``: whether weights are base and journal; what backpropagation changes is in none."""
    base = fingerprint.of_base(spec, model, initial_weights(spec, model))
    return {
        "run": spec.hash,
        "spec": spec.to_dict(),
        "base": base,
        "complete": not METHODS.get(spec.method).backpropagates,
    }


@contextmanager
def opened(
    folder: Path, header: dict[str, Any], world: World | None
) -> Iterator[tuple[JournalFile | None, list[Item]]]:
    """(the journal, which only the first rank writes, and what it tells all ranks)."""
    if world is None or world.leads:
        folder.mkdir(parents=True, exist_ok=True)
        with JournalFile(folder / JOURNAL, header) as file:
            if not file.items:
                snapshot.prune(folder, ())  # of a run whose journal was taken away
            if world is not None:
                world.from_first([len(file.items)])
            yield file, list(file.items)
    else:
        items: list[Item] = []
        if world.from_first([0])[0]:
            told, items = journal.read(folder / JOURNAL)
            journal.check_header(folder / JOURNAL, told, header)
        yield None, items


def resume_point(
    spec: RunSpec, folder: Path, header: dict[str, Any], file: JournalFile | None, items: list[Item],
    say: Callable[[str], None],
) -> tuple[list[Item], SnapshotStart | None, Path | None, list[int]]:  # fmt: skip
    """What a run goes on from: all of its journal and the newest snapshot that is whole; where it backpropagates, the
    newest snapshot and what the journal tells up to it. Also the steps of the snapshots that stay."""
    start, path, steps = None, None, snapshot.steps(folder)
    if METHODS.get(spec.method).backpropagates:
        last = steps[-1] if steps else 0
        path = snapshot.place(folder, last) if steps else None
        items = [item for item in items if (item.step if isinstance(item, EvaluationItem) else item.step + 1) <= last]
        assert file is not None
        file.cut(len(items))
    elif (start := replay.newest(folder, header, items, say)) is not None:
        last, path = int(start.state["step"]), None
    else:
        last = 0
    place = path or (start.path if start is not None else None)
    done = sum(not isinstance(item, EvaluationItem) for item in items)
    if items:
        say(f"goes on after step {done}, from {place or 'the base'}")
    return items, start, path, [step for step in steps if step <= last]


def bring(spec: RunSpec, built: Tuner, items: list[Item], start: SnapshotStart | None, path: Path | None) -> None:
    """Brings engine and method to the end of ``items``."""
    if not METHODS.get(spec.method).backpropagates:
        replay.bring(built.engine, built.method, items, start)
    elif path is not None:
        built.method.restore(snapshot.state(path)["method"])
