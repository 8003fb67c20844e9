"""Two steps beside a checkpoint on a virtual clock: the savers' own schemes, whose copies and files take no bytes.

``python -m tools.timelines`` writes the file of :mod:`zobench.report.recorded`, which the report draws where nothing
was recorded, and docs/ranks.json, steps on several GPUs, which ``docs/pictures.py`` draws.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tools.virtual import VirtualRun, virtual_step
from zobench import models
from zobench.cost import hardware
from zobench.cost.hardware import Gpu
from zobench.cost.simulation import STEPS
from zobench.durable.savers.background import BackgroundSaver, Copy, HalvesSaver, JournalSaver
from zobench.durable.savers.base import BlockingSaver, Saved, Saver, Target, block_of, part
from zobench.engine.transfers.schedule import Event
from zobench.engine.weights.blocks import Unit
from zobench.report import recorded
from zobench.runspec import RunSpec

RANKS = Path(__file__).parents[1] / "docs" / "ranks.json"


class _Done(threading.Event):
    """The end of a copy: who waits for it stands still on the virtual clock until then."""

    def __init__(self, run: VirtualRun, end: float) -> None:
        super().__init__()
        self._run, self._end = run, end

    def is_set(self) -> bool:
        return self._run.now >= self._end

    def wait(self, timeout: float | None = None) -> bool:
        self._run.lanes.spend(max(0.0, self._end - self._run.now))
        return True


class _OnClock(BackgroundSaver):
    """Copies and writes one after the other, each on a lane of its own, at so many bytes per second."""

    _copied = _written = 0.0

    def __init__(self, run: VirtualRun, target: Target) -> None:
        self.run = run
        super().__init__(run.engine, target)

    def _room(self, nbytes: int) -> Tensor:
        return torch.empty(nbytes, dtype=torch.uint8, device="meta")

    def _touch(self, unit: Unit) -> None:
        self._due = {key: copy for key, copy in self._due.items() if not copy.done.is_set()}
        super()._touch(unit)

    def _claim(self, copy: Copy) -> bool:
        return False  # the copying lane has them all

    def _settled(self, wait: float = 0.0) -> bool:
        return self.run.now >= self._written

    def _send(self, copies: Sequence[Copy], ends: bool) -> None:
        now, lanes = self.run.now, self.run.lanes
        self._due.update((id(copy.unit), copy) for copy in copies)
        for copy in copies:
            lanes.awaited = 0.0
            if copy.unit.streamed:  # then it waits for its unit's write-back
                self.engine.read(copy.unit, copy.data, copy.first)
            start = max(now, self._copied, lanes.awaited)
            self._copied = start + copy.data.numel() / self.run.device.pageable
            begin = max(self._copied, self._written)
            self._written = begin + copy.data.numel() / recorded.DISK
            copy.done = _Done(self.run, self._copied)
            block = block_of(self.engine, copy.unit)
            self.events += [("copy", "copy", block, start, self._copied), ("save", "save", block, begin, self._written)]


class _Halves(_OnClock, HalvesSaver):
    """The paper's scheme."""


class _Journal(_OnClock, JournalSaver):
    """Bases for a journal."""


class _Sync(BlockingSaver):
    """The run is held until all is on the disk."""

    def __init__(self, run: VirtualRun, target: Target) -> None:
        super().__init__(target)
        self.run = run

    def _save(self, made: Saved) -> None:
        for unit in self.run.engine.units:
            first, last = part(self.run.engine, unit, self.target) if unit.changed else (0, 0)
            start = self.run.now
            self.run.lanes.spend((last - first) / recorded.DISK)
            if last > first:
                self.events.append(("save", "save", block_of(self.run.engine, unit), start, self.run.now))


_KINDS: Mapping[str, Callable[[VirtualRun, Target], Saver]] = {"sync": _Sync, "async": _Halves, "journal": _Journal}
"""Of ``RunSpec.checkpoint``."""


def timeline(spec: RunSpec, device: Gpu) -> list[Event]:
    """Two settled steps of ``spec`` on ``device`` from a checkpoint on, in seconds, as a run records them."""
    target = Target(folder=Path(), state=lambda step: {}, warn=_unexpected)
    with VirtualRun(spec, device) as run:
        for _ in range(STEPS):
            run.step()
        saver = _KINDS[spec.checkpoint](run, target)
        run.lanes.record()
        saver.begin(STEPS)
        for step in range(2):
            saver.after_step(STEPS + step)
            run.step()
        origin, end = run.lanes.origin, run.now
        copies = [
            (lane, kind, block, a - origin, min(b, end) - origin) for lane, kind, block, a, b in saver.events if a < end
        ]
        saver.close(finish=False)  # what is still on its way ends after the two steps
        return sorted([*run.lanes.timeline(), *copies], key=lambda event: event[3])


def _unexpected(text: str) -> None:
    raise AssertionError(f"a checkpoint that nobody writes cannot fail, but: {text}")


def made(form: Mapping[str, Any]) -> list[Event]:
    """One of the stored timelines, made anew."""
    spec, device = recorded.spec_of(form), hardware.load(recorded.GPU)
    events = virtual_step(spec, device).timeline if spec.checkpoint == "none" else timeline(spec, device)
    return [(lane, kind, block, round(start, 6), round(end, 6)) for lane, kind, block, start, end in events]


def ranks() -> list[dict[str, Any]]:
    """A settled step of one rank of 1, 2, 4 and 8 GPUs: its name, its seconds, its operations (kind, start, end)."""
    rows = []
    for gpus, way, name in ((1, "none", "ZO2"), (2, "pertp", "2, PertP"), (4, "2d", "4, 2D"), (8, "2d", "8, 2D")):
        spec = RunSpec(model="OPT-1.3B", engine="offload", dtype="fp16", batch_size=8, gpus=gpus, parallel=way)
        step = virtual_step(models.checked(spec, "cuda"), hardware.load("h20"))
        first = min(event[3] for event in step.timeline)
        events = [[event[1], round(event[3] - first, 6), round(event[4] - first, 6)] for event in step.timeline]
        rows.append({"name": name, "seconds": round(step.prediction.step_seconds, 6), "events": events})
    return rows


def main() -> None:
    """Writes the files."""
    rows = map(json.dumps, map(made, recorded.FORMS))
    recorded.DATA.write_text("[\n" + ",\n".join(rows) + "\n]\n", encoding="utf-8")
    RANKS.write_text(json.dumps(ranks()) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
