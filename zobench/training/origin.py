"""Where a run resumes: from its journal with the newest complete snapshot, or with its initial weights."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from zobench.cost import interval
from zobench.cost.interval import Consolidation
from zobench.durable import journal, replay, snapshot
from zobench.durable.journal import EvaluationItem, Item, JournalFile
from zobench.durable.snapshot import SnapshotStart
from zobench.engine.passes import attention
from zobench.runspec import METHODS, RunSpec
from zobench.runspec.kinds import ENGINES
from zobench.training.assemble import Numerics, attention_kernels, engine_config, initial_weights
from zobench.version import __version__

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from zobench.parallel.world import World

JOURNAL = "journal.bin"
_ELEMENTS = 1024
"""Elements of a vector that count in :func:`base_of`; of a matrix three rows do. Whole files would take minutes for a
large model."""


def header_of(spec: RunSpec, model: PreTrainedModel, numerics: Numerics) -> dict[str, Any]:
    """The journal's header. ``complete``: whether initial weights and journal give the run's weights; a journal has
    nothing of what backpropagation changes. ``threads``: sums on a CPU depend on how many there are. ``zobench``: the
    version that begins the run; another may go on with it. ``attention``, and ``consolidation``, the steps between
    write-backs with ``writeback_every=inf``: its ``numerics``, where there are any."""
    written = ENGINES[spec.engine].is_streamed and spec.writeback_every == "inf"
    return {
        "run": spec.hash,
        "spec": spec.to_dict(),
        "base": base_of(spec, model),
        "complete": not METHODS.get(spec.method).backpropagates,
        "threads": torch.get_num_threads(),
        "zobench": __version__,
        **({"attention": numerics.attention} if numerics.attention else {}),
        **({"consolidation": engine_config(spec, numerics).keep_steps} if written else {}),
    }


def base_of(spec: RunSpec, model: PreTrainedModel) -> str:
    """A fingerprint of the initial values of ``model``, which was built without weights: it shows whether a journal
    began from the weights of this process.

    Random values follow from the seed. Of pretrained ones the first, the middle and the last row of every tensor count,
    in the run's dtype, so that the same weights in other files are the same.
    """
    weights = initial_weights(spec, model)
    if spec.weights != "pretrained":
        return f"{spec.weights}, seed {spec.seed}"
    digest = hashlib.sha256()
    for name, parameter in model.named_parameters():
        digest.update(f"{name} {tuple(parameter.shape)} {parameter.dtype}".encode())
        size = parameter.shape[0]
        places = (0, size // 2, size - 1) if parameter.dim() > 1 else (0,)
        for first in places:
            rows = 1 if parameter.dim() > 1 else min(size, _ELEMENTS)
            out = torch.empty(rows, *parameter.shape[1:], dtype=parameter.dtype)
            weights.fill(name, out, first)
            digest.update(out.view(torch.uint8).numpy().data)
    return f"sha256 {digest.hexdigest()[:16]}"


def same_sums(spec: RunSpec, path: Path, say: Callable[[str], None]) -> Numerics:
    """Returns the numerics that the run with the journal ``path`` began with, if it has begun, else those of this
    process; and this process computes with as many threads as it did: only then are its losses and weights the same
    bits."""
    header = journal.begun(path)
    if header is None:
        return Numerics.of_process(spec)
    begun = header.get("threads", torch.get_num_threads())
    if begun != torch.get_num_threads():
        torch.set_num_threads(begun)
        say(f"threads: {begun}, as the run began")
    if spec.attention != "model" and "attention" in header:
        kernels: attention.Choice = tuple((int(most), str(name)) for most, name in header["attention"])
    else:
        kernels = attention_kernels(spec)
    numerics = Numerics(kernels, interval.ordered())
    if (steps := header.get("consolidation")) not in (None, engine_config(spec, numerics).keep_steps):
        plan = Consolidation(int(steps), f"writeback_every=inf: written every {steps} steps, as the run began")
        numerics = replace(numerics, consolidation=plan)
    return numerics


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
