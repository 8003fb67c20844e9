"""Takes the checkpoints of a measured cell in a temporary folder, and records what they cost."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from zobench.durable import savers, snapshot
from zobench.durable.savers import Saved, Saver, Target
from zobench.durable.scratch import scratch
from zobench.machine.memory import is_in_memory
from zobench.runspec import RunSpec
from zobench.runspec.constraints import AFTER_A_CHECKPOINT
from zobench.training.assemble import disk_dir

if TYPE_CHECKING:
    from zobench.engine.interface import TunedEngine
    from zobench.parallel.world import World

KEPT = 2
"""Checkpoints that a cell keeps at most: the last, and one that is whole while it is written."""


class Checkpoints:
    """Takes checkpoints between the measured steps of a cell and records the events of the last ones."""

    def __init__(self, spec: RunSpec, saver: Saver | None) -> None:
        self._spec, self._saver = spec, saver
        self._origin = 0.0

    @property
    def recorded(self) -> int:
        """The number of last steps whose lanes are recorded: two show all stages of the paper's scheme."""
        return 1 if self._saver is None else AFTER_A_CHECKPOINT

    def record(self) -> None:
        self._origin = time.perf_counter()

    def boundary(self, step: int) -> None:
        """Begins a checkpoint if one is due; to be called between two steps, when ``step`` steps are done."""
        if self._saver is None or step == 0:
            return
        if step % self._spec.checkpoint_every == 0 and step <= self._spec.steps - AFTER_A_CHECKPOINT:
            self._saver.begin(step)
        self._saver.after_step(step)

    def events(self) -> list[list[Any]]:
        """The events of the saver's lanes from :meth:`record` on, as a timeline has them."""
        events = [] if self._saver is None else self._saver.events
        return [
            [lane, kind, block, start - self._origin, end - self._origin]
            for lane, kind, block, start, end in events
            if start >= self._origin
        ]


@contextmanager
def checkpoints(
    spec: RunSpec, engine: TunedEngine, world: World | None, parts: dict[str, list[float]],
    memory: dict[str, int | None], warnings: list[str],
) -> Iterator[Checkpoints]:  # fmt: skip
    """Checkpoints as ``spec`` wants them, in a folder beside the disk tier's that is gone afterwards.

    At the end ``parts`` and ``memory`` have what they cost: for how many seconds each held the run (if steps went on
    until all was copied), after how many it was on the disk, how many bytes this rank wrote; and the memory for copies.
    """
    if spec.checkpoint == "none":
        yield Checkpoints(spec, None)
        return
    with scratch(disk_dir(), "checkpoints", world) as folder:
        if is_in_memory(folder.parent):
            warnings.append("checkpoints go to memory (tmpfs), not to a disk; name another folder with --disk-dir")

        def prune() -> None:
            if world is None or world.leads:
                snapshot.prune(folder, snapshot.steps(folder)[-KEPT:])

        target = Target(
            folder=folder, state=lambda step: {"run": spec.hash, "base": "", "step": step}, warn=warnings.append,
            kept=prune, world=world,
        )  # fmt: skip
        with savers.saving(spec.checkpoint, engine, target) as saver:
            yield Checkpoints(spec, saver)
        _report(spec, saver, parts, memory, warnings)


def _report(
    spec: RunSpec, saver: Saver, parts: dict[str, list[float]], memory: dict[str, int | None], warnings: list[str]
) -> None:
    saved: list[Saved] = [checkpoint for checkpoint in saver.saved if not checkpoint.error]
    if not saver.saved:
        least = spec.checkpoint_every + AFTER_A_CHECKPOINT
        needs = f"with checkpoint_every={spec.checkpoint_every} the first needs steps={least}, but"
        reason = f"there are {spec.steps}" if spec.steps < least else "the steps ended before it"
        warnings.append(f"no checkpoint was due: {needs} {reason}")
    parts["checkpoint_stall_seconds"] = [checkpoint.stall for checkpoint in saved if checkpoint.overlapped]
    parts["checkpoint_seconds"] = [checkpoint.seconds for checkpoint in saved]
    parts["checkpoint_written_bytes"] = [float(checkpoint.nbytes) for checkpoint in saved]
    memory["checkpoint_bytes"] = saver.held_bytes
