"""One cell, measured in this process: build the model and the engine, take the steps, keep every sample."""

from __future__ import annotations

import errno
import itertools
import os
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from zobench import kernels, models
from zobench.data.tokens import stream
from zobench.engine import Batch, Engine, EngineConfig
from zobench.engine.survival import Survival
from zobench.footprint import SHARED_BLOCKS, fit, memory
from zobench.measure.device import choose_device
from zobench.measure.environment import cuda_uuid, environment
from zobench.measure.history import memory_over_time
from zobench.measure.memory import PeakMemory, is_in_memory
from zobench.measure.sampler import Sampler
from zobench.measure.samples import Samples, contamination
from zobench.measure.timer import StepTimer
from zobench.methods import ZOSGD
from zobench.result import Outcome, Result
from zobench.spec import RunSpec
from zobench.weights import PretrainedWeights, RandomWeights, Weights

if TYPE_CHECKING:
    from transformers import PreTrainedModel

BUSY_CORES = 0.2
"""Cores in use by others from which on a measurement on the CPU says so."""
PARTS_REPEATS = 2
"""Repeats of each of the two measurements that ``parts`` asks for."""


@dataclass
class Recording:
    """What has been measured so far; a cell that ends early keeps it."""

    samples: dict[str, list[float | None]] = field(default_factory=dict)
    warmup: dict[str, list[float | None]] = field(default_factory=dict)
    parts: dict[str, list[float]] = field(default_factory=dict)
    timeline: list[list[Any]] = field(default_factory=list)
    memory: dict[str, int | None] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    window: tuple[float, float] = (0.0, 0.0)
    skipped: int = 0


def run(spec: RunSpec) -> Result:
    """Measures one cell here and now, and returns its result; an error becomes the result's outcome and reason.

    Raises ``ValueError`` only for a spec that cannot run at all. Peaks mean most in a fresh process.
    """
    device, _ = choose_device(spec.device)
    spec = spec.resolve(device).replace(model=models.get(spec.model).name)
    models.check(spec)
    name, tied, positions = models.variant(spec)
    model = models.build(name, spec.dtype, tied, positions)  # without weights: its imports are baseline
    if spec.noise == "counter":
        kernels.prepare(device)  # its compiler is baseline too
    recording = Recording(warnings=models.differences(spec))
    planned, why = fit(spec)
    facts = environment(device) | ({"memory_plan": _plan(planned, why)} if why else {})
    sampler = Sampler(device=cuda_uuid(device))
    sampler.start()
    memory = PeakMemory(device)
    memory.baseline()
    outcome, reason, trace = Outcome.OK, "", ""
    try:
        _measure(planned, model, recording)
    except Exception as error:  # any failure is this cell's outcome, with its traceback, and never ends a sweep
        outcome, reason = classify(error, device)
        trace = traceback.format_exc()
    peaks = memory.peaks()
    seen = sampler.stop()
    if outcome is Outcome.OK and (disturbed := contamination(seen.window(*recording.window))):
        outcome, reason = Outcome.CONTAMINATED, disturbed
    if (others := seen.window(*recording.window).other_cpu_cores or 0.0) > BUSY_CORES and device == "cpu":
        recording.warnings.append(f"other processes kept {others:.1f} cores busy meanwhile; expect slower steps")
    return Result(
        spec=spec, outcome=outcome, reason=reason, traceback=trace, environment=facts,
        samples=recording.samples, warmup=recording.warmup, parts=recording.parts, timeline=recording.timeline,
        memory={**peaks, **_observed(seen), **recording.memory}, power=_power(seen, recording.window),
        trace=memory_over_time(seen), warnings=[*recording.warnings, *memory.notes], skipped_updates=recording.skipped,
    )  # fmt: skip


def _plan(planned: RunSpec, why: str) -> dict[str, Any]:
    """What the planner chose: the spec itself keeps what was asked for."""
    chosen = {name: getattr(planned, name) for name in ("granularity", "slots", "resident_blocks")}
    return {**chosen, "predicted_bytes": memory(planned)[0], "reason": why}


def classify(error: BaseException, device: str) -> tuple[Outcome, str]:
    """The outcome and the one-line reason of a cell that ended with ``error``."""
    text = " ".join(str(error).split()) or type(error).__name__
    exhausted = ("out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED")
    on_device = device.startswith("cuda") and any(words in text for words in exhausted)
    if isinstance(error, torch.OutOfMemoryError) or on_device:
        return Outcome.OOM, f"device memory ran out on {device}: {text}"
    no_memory = isinstance(error, OSError) and error.errno == errno.ENOMEM
    if isinstance(error, MemoryError) or no_memory or "can't allocate memory" in text:
        return Outcome.OOM, f"host memory ran out: {text}"
    return Outcome.FAILED, text if isinstance(error, (ValueError, OSError)) else f"{type(error).__name__}: {text}"


def _measure(spec: RunSpec, model: PreTrainedModel, recording: Recording) -> None:
    weights = _weights(spec, model)
    config = engine_config(spec)
    method = ZOSGD(lr=spec.lr, eps=spec.eps, seed=spec.seed, weight_decay=spec.weight_decay, queries=spec.queries)
    batches = stream(spec, model.config.vocab_size, model.config.pad_token_id)
    with Engine(model, config, weights=weights) as engine:
        del weights  # its pool of random values must not count as the run's memory on a device
        if spec.tier == "disk":
            recording.warnings += _disk_warnings(engine)
        recording.memory = {"blocks_at_rest_bytes": engine.bytes_at_rest}
        recording.memory["pinned_bytes"] = engine.bytes_at_rest if spec.tier == "pinned" else 0
        recording.warmup = _steps(engine, method, batches, spec.warmup, recording)
        survival = Survival(engine) if spec.survival else None
        begin = time.monotonic()
        recording.samples = _steps(engine, method, batches, spec.steps, recording, timeline=True)
        recording.window = (begin, time.monotonic())
        recording.skipped = method.skipped
        recording.warnings += _warnings(spec, recording)
        if survival is not None:
            recording.parts["update_survival"] = [survival.share()]
        if spec.parts and engine.blocks:
            recording.parts |= _parts(engine, lambda: method.step(engine, next(batches)), spec.device)


def engine_config(spec: RunSpec) -> EngineConfig:
    """The engine's configuration for ``spec`` (resolved, and planned where ``device_memory`` is given)."""
    return EngineConfig(
        placement=spec.engine, tier=spec.tier if spec.engine == "offload" else "pageable", device=spec.device,
        slots=spec.slots, overlap=spec.overlap, reusable_memory=spec.reusable_memory, fused_update=spec.fused_update,
        shared_blocks=SHARED_BLOCKS if spec.weights == "shared" else None, disk_dir=disk_dir(),
        noise=spec.noise, granularity=spec.granularity, writeback_every=spec.writeback_every, wire=spec.wire,
        autocast=spec.autocast, resident_blocks=spec.resident_blocks, compile=spec.compile,
    )  # fmt: skip


def _weights(spec: RunSpec, model: PreTrainedModel) -> Weights:
    if spec.weights == "pretrained":
        return PretrainedWeights(spec.weights_path or models.get(spec.model).hub_id, model)
    return RandomWeights(model, spec.seed)


def disk_dir() -> Path | None:
    """The folder of the disk tier: ``ZOBENCH_DISK_DIR``, or None for the system's temporary folder."""
    named = os.environ.get("ZOBENCH_DISK_DIR")
    return Path(named) if named else None


def _steps(
    engine: Engine, method: ZOSGD, batches: Iterator[Batch], count: int, recording: Recording, timeline: bool = False
) -> dict[str, list[float | None]]:
    """Takes ``count`` steps, each timed; with ``timeline`` the last one's lanes are recorded."""
    timer = StepTimer(engine.config.device)
    losses: list[float | None] = []
    gradients: list[float | None] = []
    for index, batch in enumerate(itertools.islice(batches, count)):
        if timeline and index == count - 1:
            engine.record()
        with timer:
            result = method.step(engine, batch)
        losses.append(result.loss)
        gradients.append(result.projected_grad)
    if timeline:
        recording.timeline = [list(event) for event in engine.timeline()]
    seconds: list[float | None] = [*timer.seconds()]
    return {"step_seconds": seconds, "loss": losses, "projected_grad": gradients}


def _parts(engine: Engine, step: Callable[[], object], device: str) -> dict[str, list[float]]:
    """Seconds of a step's transfers without compute, of its compute without transfers, and of whole steps after them:
    with updates that stay pending, each step replays one more than the last."""
    transfer, compute, whole = StepTimer(device), StepTimer(device), StepTimer(device)
    engine.drain()
    for _ in range(PARTS_REPEATS):
        with transfer:
            engine.transfer_only()
    with engine.compute_only():
        step()  # leaves an update pending, as every step of a run finds one
        for _ in range(PARTS_REPEATS):
            with compute:
                step()
    for _ in range(PARTS_REPEATS):
        with whole:
            step()
    names = ("transfer_seconds", "compute_seconds", "whole_seconds")
    return {name: timer.seconds() for name, timer in zip(names, (transfer, compute, whole), strict=True)}


def _disk_warnings(engine: Engine) -> list[str]:
    """Why the disk tier is not what its name says, if it is not."""
    folder = engine.config.disk_dir or Path(tempfile.gettempdir())
    if is_in_memory(folder):
        return ["the disk tier's folder is in memory (tmpfs), not on a disk; name another with --disk-dir"]
    return [engine.tier_note] if engine.tier_note else []


def _warnings(spec: RunSpec, recording: Recording) -> list[str]:
    found = []
    gradients = [g for g in recording.samples["projected_grad"] if g is not None]
    if recording.skipped:
        found.append(f"{recording.skipped} updates were skipped, because their projected gradient was not finite")
    finite = sorted(abs(g) for g in gradients if g == g and abs(g) != float("inf"))
    if finite and (lost := _lost(spec, finite[len(finite) // 2])):
        found.append(lost)
    return found


def _lost(spec: RunSpec, gradient: float) -> str:
    """That updates with this projected gradient round away at the precision in which weights rest, or ""."""
    kept = spec.dtype if spec.wire == "none" else spec.wire
    if kept == "fp32" or spec.writeback_every == "inf":
        return ""
    half_ulp = torch.finfo(getattr(torch, models.DTYPES.get(kept, "float8_e4m3fn"))).eps / 2 * TYPICAL_WEIGHT
    typical = spec.lr * gradient
    if typical >= half_ulp:
        return ""
    wider = "fp32" if spec.wire == "none" else "wire=none"
    return (
        f"{kept} updates are lost: lr * g = {typical:.1e} is below half an ulp of a weight of {TYPICAL_WEIGHT} "
        f"({half_ulp:.1e}); use {wider}, writeback_every=inf with noise=counter, or a larger lr to learn"
    )


TYPICAL_WEIGHT = 0.02
"""The models' initial standard deviation, the magnitude at which a lost update is judged."""


def _observed(seen: Samples) -> dict[str, int | None]:
    return {
        "device_wide_peak_bytes": seen.device_peak_bytes_device_wide,
        "device_process_peak_bytes": seen.device_peak_bytes_process,
    }


def _power(seen: Samples, window: tuple[float, float]) -> dict[str, Any]:
    """Energy, power and clocks of the measured steps, and what the sampler could not see."""
    during = seen.window(*window)
    rows = during.summary()
    kept = (
        *("energy_joules", "mean_power_watts", "max_temperature_c", "throttle_reasons"),
        *("swapped_bytes", "other_cpu_cores", "samples"),
    )
    notes = {"sampler_overhead": seen.overhead, "notes": seen.notes}
    return {name: rows[name] for name in kept} | _clocks(during) | notes


def _clocks(during: Samples) -> dict[str, float | None]:
    result: dict[str, float | None] = {}
    for name in ("sm_clock_hz", "memory_clock_hz"):
        values = sorted(value for value in during.series[name] if value is not None)
        result[f"median_{name}"] = values[len(values) // 2] if values else None
    return result
