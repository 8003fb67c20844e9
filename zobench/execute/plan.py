"""The plan of a sweep: what each cell needs, how long it will take, and whether it runs, is kept or is skipped."""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from zobench import cost, models, programs
from zobench.cost import footprint
from zobench.execute.process import ask
from zobench.machine.memory import available_host_bytes, disk_folder, free_disk_bytes, is_in_memory
from zobench.machine.nvml import full_uuid
from zobench.machine.texts import gigabytes
from zobench.result import Outcome, Result, Round
from zobench.result.repeats import number_of
from zobench.runspec import METHODS, SEQ_LEN, RunSpec
from zobench.runspec.kinds import ENGINES
from zobench.store import Store, is_current

HOST_RESERVE = 1 << 30
"""Bytes of host memory left for the interpreter, the libraries and everything else on the machine."""
DISK = "disk space"


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """The room that a cell may use. ``device_bytes`` is None on a CPU: there the host's bytes are the device's.
    ``devices``: GPUs that CUDA shows, None on a CPU. ``meets``: whether a place is named at which several nodes
    meet."""

    device_bytes: int | None
    host_bytes: int | None
    disk_bytes: int
    disk_is_memory: bool = False
    devices: int | None = None
    meets: bool = False


class Shortage(NamedTuple):
    """A cell needs more than the machine has: ``reason`` says both, ``available`` only what there is."""

    reason: str
    available: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One cell of a plan. ``action``: "run"; "keep" an earlier result; "skip", because it cannot run here.
    ``lacks``: the room that is too small for it now, also of a kept cell. ``earlier``: what is stored, unless it was
    skipped. ``round``: which repeat it is."""

    spec: RunSpec
    action: str
    reason: str
    estimate: cost.Estimate | None
    lacks: Shortage | None = None
    earlier: Result | None = None
    round: Round | None = None

    @property
    def seconds(self) -> float:
        """The seconds that the cell is predicted to take; 0 where that is not known."""
        return 0.0 if self.estimate is None or math.isnan(self.estimate.seconds) else self.estimate.seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """The steps of a sweep, one for each cell, and what their seconds are predicted from."""

    steps: list[Step]
    rates: dict[str, Any]
    earlier: Sequence[Result] = ()

    def learned(self, step: Step, results: Sequence[Result]) -> Step:
        """``step`` as it is expected after more ``results`` of this machine: a small cell corrects a large one's."""
        if step.action != "run" or step.estimate is None:
            return step
        guess = cost.estimate(step.spec, cost.Rates.of(self.rates), [*self.earlier, *results])
        return replace(step, estimate=guess)


def within(steps: Sequence[Step], budget: float | None) -> tuple[list[Step], list[Step]]:
    """(the cells to run that are predicted to fit the budget, in order; those that are not)."""
    run, over, spent = list[Step](), list[Step](), 0.0
    for step in steps:
        if step.action == "run":
            fits = budget is None or spent + step.seconds <= budget
            (run if fits else over).append(step)
            spent += step.seconds if fits else 0
    return run, over


def for_machine(
    cells: Sequence[RunSpec], store: Store, machine: str, device: str, retry: Collection[str], disk_dir: Path | None,
    rates: dict[str, Any] | None, number: int = 0,
) -> Plan:  # fmt: skip
    """Plans ``cells`` for ``device`` of this ``machine`` (its name in the store), with its ``rates``; None: no seconds
    are known. ``retry``: outcomes to run again. ``number``: of the round. Raises ``OSError`` without the device."""
    priced = None if rates is None else cost.Rates.of(rates)
    steps = make(cells, store, machine, priced, limits(device, disk_dir), retry, number)
    return Plan(steps=steps, rates=rates or {}, earlier=store.load(machine) if rates else ())


def limits(device: str, disk_dir: Path | None) -> Limits:
    """The memory and disk space that are free on this machine now, for cells on ``device``; in bytes."""
    device_bytes = devices = None
    if device.startswith("cuda"):
        # in a process of its own: a CUDA context in this one would disturb every cell of the sweep
        device_bytes, devices = map(int, ask(_ROOM, device).split())
    folder = disk_folder(disk_dir)
    return Limits(
        device_bytes=device_bytes,
        host_bytes=available_host_bytes(),
        disk_bytes=free_disk_bytes(folder),
        disk_is_memory=is_in_memory(folder),
        devices=devices,
        meets=bool(os.environ.get("ZOBENCH_RENDEZVOUS")),
    )


def gpu_uuids() -> tuple[str, ...]:
    """The UUIDs of the GPUs that CUDA shows here, in its order."""
    program = "from zobench.machine import accelerator; print(*(device.uuid() for device in accelerator.devices()))"
    return tuple(full_uuid(uuid) for uuid in ask(program).split())


def make(
    cells: Sequence[RunSpec], store: Store, machine: str, rates: cost.Rates | None, room: Limits,
    retry: Collection[str], number: int = 0,
) -> list[Step]:  # fmt: skip
    """Decides each cell: kept if ``store`` has its outcome in round ``number``, of the plug-ins as they are now, and
    ``retry`` does not name it, skipped if it cannot fit. Without ``rates`` no estimate says seconds."""
    earlier = store.runs(machine)
    by_hash = {result.spec.hash: result for result in earlier if number_of(result) == number}
    return [decide(spec, by_hash.get(spec.hash), earlier, rates, room, retry) for spec in cells]


def decide(
    spec: RunSpec, stored: Result | None, earlier: Sequence[Result], rates: cost.Rates | None, room: Limits,
    retry: Collection[str],
) -> Step:  # fmt: skip
    """The step of one cell: see :func:`make`. ``stored``: its result in the round that is planned, or None."""
    before = None if stored is None or stored.outcome is Outcome.SKIPPED else stored
    try:
        models.check(spec)
        programs.check(spec)
        guess = cost.unpriced(spec) if rates is None else cost.estimate(spec, rates, earlier)
    except ValueError as error:
        return Step(spec=spec, action="skip", reason=str(error), estimate=None, earlier=before)
    stored = before if before is not None and is_current(before) else None
    missing = _missing_devices(spec, room) or shortage((guess.device_bytes, guess.host_bytes, guess.disk_bytes), room)
    if stored is not None and is_settled(stored, retry):
        history = "done" if stored.outcome is Outcome.OK else f"{stored.outcome} before: {stored.reason}"
        return Step(spec=spec, action="keep", reason=history, estimate=guess, lacks=missing, earlier=stored)
    if missing is not None:
        return Step(spec=spec, action="skip", reason=missing.reason, estimate=guess, lacks=missing, earlier=before)
    return Step(spec=spec, action="run", reason="", estimate=guess, earlier=stored)


def is_settled(stored: Result | None, retry: Collection[str]) -> bool:
    """Whether a cell need not run: ``stored`` is whole, of the plug-ins as they are, and no outcome to ``retry``."""
    if stored is None or stored.outcome is Outcome.SKIPPED or not is_current(stored):
        return False
    return str(stored.outcome) not in retry and not stored.partial


def _missing_devices(spec: RunSpec, room: Limits) -> Shortage | None:
    """Which GPUs or nodes the ranks of a cell need that the machine has not; None if it has them."""
    ranks = spec.gpus // spec.nodes
    if room.devices is not None and ranks > room.devices:
        visible = "1 GPU is visible" if room.devices == 1 else f"{room.devices} GPUs are visible"
        return Shortage(f"needs {ranks} GPUs{' on each node' if spec.nodes > 1 else ''}, {visible}", visible)
    if spec.nodes > 1 and not room.meets:
        node = "this is one node; use --executor slurm, or --rendezvous on all nodes"
        return Shortage(f"needs {spec.nodes} nodes, {node}", node)
    return None


def shortage(need: tuple[int, int, int], room: Limits) -> Shortage | None:
    """Returns what is too small for a cell that needs these (device, host, disk) bytes; None if it fits."""
    device, host, disk = need
    host += (device if room.device_bytes is None else 0) + (disk if room.disk_is_memory else 0)
    wants = [
        ("device memory", device if room.device_bytes is not None else 0, room.device_bytes),
        ("host memory", host, None if room.host_bytes is None else max(0, room.host_bytes - HOST_RESERVE)),
        (DISK, disk, room.disk_bytes),
    ]
    for what, wanted, have in wants:
        if have is not None and wanted > have:
            free = f"{gigabytes(have)} are free (need predicted)"
            return Shortage(f"needs {gigabytes(wanted)} of {what}, {free}", f"{what}, {free}")
    return None


def misfit(spec: RunSpec, disk_dir: Path | None, room: Limits | None = None) -> str:
    """Why ``spec`` alone is predicted not to fit this machine, whose free ``room`` this is, and what helps; or ""."""
    missing = shortage(footprint.memory(spec), room or limits(spec.device, disk_dir))
    if missing is None:
        return ""
    if missing.available.startswith(DISK):
        return f"{missing.reason} in {disk_folder(disk_dir)}; name a folder of a larger disk (--disk-dir)"
    stays = ENGINES[spec.engine].is_streamed or METHODS.get(spec.method).backpropagates
    smaller = "batch_size, model or seq_len" if spec.seq_len > SEQ_LEN else "batch_size or model"
    return f"{missing.reason}; use {'' if stays else 'engine=offload, or '}a smaller {smaller}"


_ROOM = """
import sys
from zobench.machine import accelerator
print(accelerator.Accelerator(sys.argv[1]).free_bytes(), accelerator.count())
"""
