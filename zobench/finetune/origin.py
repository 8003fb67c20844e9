"""Where a run resumes: from its journal with the newest complete snapshot, or with its initial weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from zobench.durable import fingerprint, journal, replay, snapshot
from zobench.durable.journal import EvaluationItem, Item, JournalFile
from zobench.durable.snapshot import SnapshotStart
from zobench.engine.passes import attention
from zobench.finetune.assemble import Tuner, attention_kernels, initial_weights
from zobench.runspec import METHODS, RunSpec
from zobench.version import __version__

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from zobench.parallel.world import World

JOURNAL = "journal.bin"


def header_of(spec: RunSpec, model: PreTrainedModel, kernels: attention.Choice) -> dict[str, Any]:
    """The journal's header. ``complete``: whether initial weights and journal give the run's weights; a journal has
    nothing of what backpropagation changes. ``threads``: sums on a CPU depend on how many there are. ``zobench``: the
    version that begins the run; another may go on with it. ``attention``: its ``kernels``, where there are any."""
    base = fingerprint.of_base(spec, model, initial_weights(spec, model))
    return {
        "run": spec.hash,
        "spec": spec.to_dict(),
        "base": base,
        "complete": not METHODS.get(spec.method).backpropagates,
        "threads": torch.get_num_threads(),
        "zobench": __version__,
        **({"attention": kernels} if kernels else {}),
    }


def same_sums(spec: RunSpec, path: Path, say: Callable[[str], None]) -> attention.Choice:
    """The kernels of attention that the run with the journal ``path`` began with, if it has begun, else those of this
    machine; and this process computes with as many threads as it did: only then are its losses the same bits."""
    if not path.exists() or not journal.is_begun(path.read_bytes()):
        return attention_kernels(spec)
    header = journal.read(path)[0]
    begun = header.get("threads", torch.get_num_threads())
    if begun != torch.get_num_threads():
        torch.set_num_threads(begun)
        say(f"threads: {begun}, as the run began")
    if spec.attention == "model" or "attention" not in header:
        return attention_kernels(spec)
    return tuple((int(most), str(name)) for most, name in header["attention"])


def begun_by_another(spec: RunSpec, folder: Path) -> str:
    """A line for a run whose journal another version of zobench began, else "". Before 0.2.0 a journal named none.

    Raises ``ValueError`` where its initial weights were random: each version draws its own, and a journal has only the
    seed.
    """
    begun = journal.read(folder / JOURNAL)[0].get("zobench", "0.1.0")
    if begun == __version__:
        return ""
    if spec.weights != "pretrained":
        raise ValueError(
            f"`{folder / JOURNAL}` must be of zobench {__version__}, because its run began from random weights, but is "
            f"of {begun}; name another --out"
        )
    return (
        f"zobench {begun} began this run and {__version__} goes on: all steps stay as they were taken, but g of the "
        "two may differ in their last digits; for those of one version name another --out"
    )


@contextmanager
def opened(
    folder: Path, header: dict[str, Any], world: World | None
) -> Iterator[tuple[JournalFile | None, list[Item]]]:
    """(the journal on the first rank, which alone writes it, else None; the items that are in it already)."""
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
            stored_header, items = journal.read(folder / JOURNAL)
            journal.check_header(folder / JOURNAL, stored_header, header)
        yield None, items


def resume_point(
    spec: RunSpec, folder: Path, header: dict[str, Any], file: JournalFile | None, items: list[Item],
    say: Callable[[str], None],
) -> tuple[list[Item], SnapshotStart | None, Path | None, list[int]]:  # fmt: skip
    """Where a run resumes: (journal items, start, snapshot's folder, steps of the snapshots to keep).

    A zeroth-order run has all items, and as ``start`` the newest complete snapshot or None. A run that backpropagates
    has the folder of its newest snapshot or None, and the items up to it; the journal is cut there.
    """
    start, path, steps = None, None, snapshot.steps(folder)
    if METHODS.get(spec.method).backpropagates:
        last = steps[-1] if steps else 0
        path = snapshot.path_of(folder, last) if steps else None
        items = [item for item in items if (item.step if isinstance(item, EvaluationItem) else item.step + 1) <= last]
        assert file is not None
        file.cut(len(items))
    elif (start := replay.newest(folder, header, items, say)) is not None:
        last, path = int(start.state["step"]), None
    else:
        last = 0
    source = path or (start.path if start is not None else None)
    done = sum(not isinstance(item, EvaluationItem) for item in items)
    if items:
        say(f"goes on after step {done}, from {source or 'the base'}")
    return items, start, path, [step for step in steps if step <= last]


def bring(spec: RunSpec, built: Tuner, items: list[Item], start: SnapshotStart | None, path: Path | None) -> None:
    """Replays ``items`` so that engine and method are as after the last of them; with backpropagation, restores."""
    if not METHODS.get(spec.method).backpropagates:
        replay.bring(built.engine, built.method, items, start)
    elif path is not None:
        built.method.restore(snapshot.state(path)["method"])
