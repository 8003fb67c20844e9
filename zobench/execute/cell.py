"""One cell, measured in this process: build the model and the engine, take the steps, keep every sample."""

from __future__ import annotations

import errno
import itertools
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from zobench import finetune, kernels, methods, models
from zobench.assemble import empty_model, planned, tuner
from zobench.caution import cautions
from zobench.data.tokens import stream
from zobench.engine import Batch, Engine
from zobench.engine.survival import Survival
from zobench.measure.device import choose_device
from zobench.measure.environment import environment
from zobench.measure.memory import is_in_memory
from zobench.measure.observe import Observer
from zobench.measure.timer import StepTimer
from zobench.methods import Method
from zobench.result import Outcome, Result
from zobench.spec import RunSpec

if TYPE_CHECKING:
    from transformers import PreTrainedModel

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
    if spec.task != "none":
        return _tuned(spec)
    model = empty_model(spec)  # its imports are baseline
    if spec.noise == "counter":
        kernels.prepare(device)  # its compiler is baseline too
    recording = Recording(warnings=models.differences(spec))
    chosen, plan = planned(spec)
    facts = environment(device) | plan | {"definition": methods.definition(spec)}
    observer = Observer(device)
    outcome, reason, trace = Outcome.OK, "", ""
    try:
        _measure(chosen, model, recording)
    except Exception as error:  # any failure is this cell's outcome, with its traceback, and never ends a sweep
        outcome, reason = classify(error, device)
        trace = traceback.format_exc()
    seen = observer.stop(recording.window)
    if outcome is Outcome.OK and seen.disturbed:
        outcome, reason = Outcome.CONTAMINATED, seen.disturbed
    return Result(
        spec=spec, outcome=outcome, reason=reason, traceback=trace, environment=facts,
        samples=recording.samples, warmup=recording.warmup, parts=recording.parts, timeline=recording.timeline,
        memory={**seen.memory, **recording.memory}, power=seen.power, trace=seen.trace,
        warnings=[*recording.warnings, *seen.warnings], skipped_updates=recording.skipped,
    )  # fmt: skip


def _tuned(spec: RunSpec) -> Result:
    """A fine-tuning run, which watches itself."""
    try:
        return finetune.cell(spec)
    except Exception as error:  # as above
        outcome, reason = classify(error, spec.device)
        facts = environment(spec.device)
        return Result(spec=spec, outcome=outcome, reason=reason, traceback=traceback.format_exc(), environment=facts)


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
    batches = stream(spec, model.config.vocab_size, model.config.pad_token_id)
    with tuner(spec, model=model) as built:
        engine, method = built.engine, built.method
        if spec.tier == "disk":
            recording.warnings += _disk_warnings(engine)
        recording.memory = {"blocks_at_rest_bytes": engine.bytes_at_rest}
        recording.memory["pinned_bytes"] = engine.bytes_at_rest if spec.tier == "pinned" else 0
        work = zip(batches, _rates(spec), strict=False)
        recording.warmup = _steps(engine, method, work, spec.warmup, recording)
        survival = Survival(engine) if spec.survival else None
        begin = time.monotonic()
        recording.samples = _steps(engine, method, work, spec.steps, recording, timeline=True)
        recording.window = (begin, time.monotonic())
        recording.skipped = method.skipped
        recording.warnings += cautions(spec, recording.samples["projected_grad"], recording.skipped)
        if survival is not None:
            recording.parts["update_survival"] = [survival.share()]
        if spec.parts and engine.blocks:
            recording.parts |= _parts(engine, lambda: method.step(engine, next(batches)), spec.device)


def _rates(spec: RunSpec) -> Iterator[float]:
    """The learning rate of each step, those of the warm-up included."""
    total = spec.warmup + spec.steps
    return (methods.learning_rate(spec, step, total) for step in range(total))


def _steps(
    engine: Engine, method: Method, work: Iterator[tuple[Batch, float]], count: int, recording: Recording,
    timeline: bool = False,
) -> dict[str, list[float | None]]:  # fmt: skip
    """Takes ``count`` steps, each timed, on a batch and with a learning rate of ``work``; with ``timeline`` the last
    one's lanes are recorded."""
    timer = StepTimer(engine.config.device)
    losses: list[float | None] = []
    gradients: list[float | None] = []
    for index, (batch, rate) in enumerate(itertools.islice(work, count)):
        method.lr = rate
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
