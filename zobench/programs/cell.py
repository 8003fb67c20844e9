"""One cell, measured in this process: build the model and the engine, take the steps, keep every sample."""

from __future__ import annotations

import errno
import itertools
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from zobench import kernels, methods, models, training
from zobench.cost.footprint import PARTS_STEPS
from zobench.data.batch import Batch, stream
from zobench.durable.replay import local
from zobench.engine.core import judged
from zobench.engine.interface import LocalEngine, TunedEngine
from zobench.engine.weights.survival import Survival
from zobench.machine.device import choose_device
from zobench.machine.memory import is_in_memory, unique_bytes
from zobench.machine.texts import shortened
from zobench.measure import observe, threads
from zobench.measure.environment import environment
from zobench.measure.observe import Observation, Observer, StepTimer, planted_slowdown
from zobench.measure.threads import Turns
from zobench.methods import Method
from zobench.models import tokenizers
from zobench.programs.saving import Checkpoints, checkpoints
from zobench.result import HOST_OOM, Facts, Outcome, Result
from zobench.runspec import RunSpec, order, provenance
from zobench.runspec.kinds import NOISES, TIERS
from zobench.runspec.registries import TASKS
from zobench.training.assemble import empty_model, engine_config, planned, tuner
from zobench.training.cautions import cautions

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from zobench.parallel.world import World

PARTS_REPEATS = 2
"""Repeats of each of the two measurements that ``parts`` asks for."""
END_SECONDS = 1.0
"""Seconds from a cell's last step to its result."""
SENTENCES = 4096
"""How many of the training set's first sentences are read, about 50,000 tokens; batches begin anywhere in them."""


@dataclass
class Recording:
    """The measurements so far, and how the cell ended: one that ends early keeps the stages that are whole, the
    warm-up, the steps, the parts."""

    samples: dict[str, list[float | None]] = field(default_factory=dict)
    warmup: dict[str, list[float | None]] = field(default_factory=dict)
    parts: dict[str, list[float]] = field(default_factory=dict)
    timeline: list[list[Any]] = field(default_factory=list)
    memory: dict[str, int | None] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    window: tuple[float, float] = (0.0, 0.0)
    skipped: int = 0
    partial: bool = False
    seen: Observation | None = None
    outcome: Outcome = Outcome.OK
    reason: str = ""
    traceback: str = ""

    def fail(self, error: Exception, device: str) -> None:
        """Records that ``error``, which is being handled, ended the cell."""
        self.outcome, self.reason = classify(error, device)
        self.traceback = traceback.format_exc()

    def result(self, spec: RunSpec, facts: Facts) -> Result:
        """All of it as the result of ``spec``, with ``facts`` of where it ran."""
        watched: dict[str, Any] = {"memory": self.memory, "warnings": self.warnings}
        if self.seen is not None:
            watched = {
                "memory": self.seen.memory | self.memory, "power": self.seen.power, "trace": self.seen.trace,
                "warnings": [*self.warnings, *self.seen.warnings],
            }  # fmt: skip
            if self.outcome is Outcome.OK and self.seen.disturbed:
                self.outcome, self.reason = Outcome.CONTAMINATED, self.seen.disturbed
        return Result(
            spec=spec, outcome=self.outcome, reason=self.reason, traceback=self.traceback, environment=facts,
            samples=self.samples, warmup=self.warmup, parts=self.parts, timeline=self.timeline,
            skipped_updates=self.skipped, partial=self.partial, **watched,
        )  # fmt: skip


def run(spec: RunSpec, world: World | None = None) -> Result:
    """Measures one cell in this process, and returns its result; an error becomes the result's outcome and reason.

    With ``world`` this process measures as one rank (:mod:`zobench.execute.rank`); the result is this rank's alone.
    Raises ``ValueError`` only for a spec that cannot run at all. Peaks mean most in a fresh process.
    """
    device, _ = choose_device(spec.device)
    spec = models.checked(spec, device)
    device = device if world is None else world.device
    if spec.task != "none":
        try:  # it measures its own time and memory
            return training.cell(spec)
        except Exception as error:  # any failure is this cell's outcome, and never ends a sweep
            return failed(spec, error, environment(spec.device))
    model = empty_model(spec)  # its imports are baseline
    if not NOISES[spec.noise].in_place:
        kernels.prepare(device)  # its compiler is baseline too
    try:
        fed = batches(spec, model)  # a tokenizer is baseline too
    except (ValueError, ImportError) as error:
        return failed(spec, error, environment(spec.device))
    recording = Recording(warnings=models.differences(spec))
    chosen, plan = planned(spec)
    with suppress(ValueError):  # its memory is baseline too; a refusal is this cell's outcome, when the engine is built
        judged(model, engine_config(chosen), methods.directions(chosen))
    facts = replace(environment(device), **provenance(spec), **plan, definition=methods.definition(spec))
    if world is not None:
        from zobench.parallel import hosts

        facts = replace(facts, transfers=hosts.transfers(spec, world.local_ranks)[1])
    if slowdown := planted_slowdown():
        facts = replace(facts, planted_slowdown=slowdown)
        recording.warnings.append(f"each step was made {100 * slowdown:g} % longer on purpose, to test a comparison")
    turn = threads.given()
    observer = Observer(device, alone=world is None and turn is None)
    try:
        _measure(chosen, model, fed, recording, world, turn, observer.mark)
    except Exception as error:  # any failure is this cell's outcome, with its traceback, and never ends a sweep
        recording.fail(error, device)
    recording.seen = observer.stop(recording.window)
    return recording.result(spec, facts)


def failed(spec: RunSpec, error: Exception, facts: Facts) -> Result:
    """The result of a run that ended with ``error``, which is being handled, before anything was measured."""
    recording = Recording()
    recording.fail(error, spec.device)
    return recording.result(spec, facts)


def classify(error: BaseException, device: str) -> tuple[Outcome, str]:
    """The outcome and the one-line reason of a cell that ended with ``error``."""
    text = shortened(str(error)) or type(error).__name__
    exhausted = ("out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED")
    on_device = device.startswith("cuda") and any(words in text for words in exhausted)
    if isinstance(error, torch.OutOfMemoryError) or on_device:
        return Outcome.OOM, f"device memory ran out on {device}: {text}"
    no_memory = isinstance(error, OSError) and error.errno == errno.ENOMEM
    if isinstance(error, MemoryError) or no_memory or "can't allocate memory" in text:
        return Outcome.OOM, f"{HOST_OOM}: {text}"
    return Outcome.FAILED, text if isinstance(error, (ValueError, OSError)) else f"{type(error).__name__}: {text}"


def _measure(
    spec: RunSpec, model: PreTrainedModel, fed: Iterator[Batch], recording: Recording, world: World | None,
    turn: Turns | None, mark: Callable[[], object],
) -> None:  # fmt: skip
    with tuner(spec, model=model, world=world) as built:
        engine, method = built.engine, built.method
        tier = TIERS[spec.tier]
        if tier.is_file and tier.is_filled:
            recording.warnings += _disk_warnings(engine)
        recording.memory = {"blocks_at_rest_bytes": engine.bytes_at_rest}
        recording.memory["pinned_bytes"] = engine.bytes_at_rest if tier.is_pinned else 0
        total = spec.warmup + spec.steps
        work = zip(fed, (methods.learning_rate(spec, step, total) for step in range(total)), strict=False)
        watch = None if world is None else world.traffic
        recording.warmup = _steps(engine, method, work, spec.warmup, recording, turn)
        survival = Survival(local(engine)) if spec.survival else None
        mark()
        begin = time.monotonic()
        with checkpoints(spec, engine, world, recording.parts, recording.memory, recording.warnings) as saved:
            enough = None if world is not None else partial(_enough, spec)
            recording.samples = _steps(engine, method, work, spec.steps, recording, turn, saved, watch, enough)
            if turn:
                turn.end()
            recording.window = (begin, time.monotonic())
        mark()
        recording.timeline += saved.events()
        if world is not None:
            recording.parts["exchanged_bytes"] = world.traffic.taken
            recording.memory["host_unique_bytes"] = unique_bytes()
        recording.skipped = method.skipped
        recording.warnings += cautions(spec, recording.samples["projected_grad"], recording.skipped)
        if survival is not None:
            recording.parts["update_survival"] = [survival.share()]
        local_engine = engine.local
        if spec.parts and local_engine is not None and local_engine.pipeline is not None:
            if world is not None:
                recording.parts |= observe.alone(
                    local_engine.pipeline, len(local_engine.blocks), world.barrier, PARTS_REPEATS
                )
            engine.drain()
            recording.parts |= _parts(local_engine, lambda: method.step(engine, next(fed)), spec.device)


def _steps(
    engine: TunedEngine, method: Method, work: Iterator[tuple[Batch, float]], count: int, recording: Recording,
    turn: Turns | None, saved: Checkpoints | None = None, watch: AbstractContextManager[object] | None = None,
    enough: Callable[[float], bool] | None = None,
) -> dict[str, list[float | None]]:  # fmt: skip
    """Takes ``count`` steps, each timed, on a batch and with a learning rate of ``work``, inside ``watch``. With
    ``turn`` each waits for its turn and then for its own transfers, so that nothing of it goes on in another's. With
    ``saved``, checkpoints are taken between them, and the lanes of the last steps are recorded. No more of them once
    ``enough`` says so, given a step's mean seconds."""
    timer = StepTimer(engine.config.device, planted_slowdown())
    losses: list[float | None] = []
    gradients: list[float | None] = []
    began = time.monotonic()
    chosen = itertools.islice(work, count)
    for index, (batch, rate) in enumerate(turn.each(chosen) if turn else chosen):
        if enough is not None and index and enough((time.monotonic() - began) / index):
            recording.warnings.append(f"partial: {index} of {count} steps, because the time it was given was used up")
            recording.partial = True
            break
        method.lr = rate
        if saved is not None and index == max(0, count - saved.recorded):
            engine.record()
            saved.record()
        with watch or nullcontext(), timer:
            if saved is not None:
                saved.boundary(index)
            result = method.step(engine, batch)
            if turn:
                engine.drain()
        losses.append(result.loss)
        gradients.append(result.projected_grad)
    if saved is not None:
        recording.timeline = [list(event) for event in engine.timeline()]
    seconds: list[float | None] = [*timer.seconds()]
    return {"step_seconds": seconds, "loss": losses, "projected_grad": gradients}


def _enough(spec: RunSpec, step_seconds: float) -> bool:
    """Whether the time that the cell was given does not hold another step and what comes after the last one."""
    left = order.seconds_left()
    return left is not None and left < END_SECONDS + (1 + PARTS_STEPS * spec.parts) * step_seconds


def _parts(engine: LocalEngine, step: Callable[[], object], device: str) -> dict[str, list[float]]:
    """Seconds of a step's transfers without compute, of its compute without transfers, and of whole steps after them:
    with updates that stay pending, each step replays one more than the last."""
    transfer, compute, whole = StepTimer(device), StepTimer(device), StepTimer(device)
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


def _disk_warnings(engine: TunedEngine) -> list[str]:
    folder = engine.config.disk_dir or Path(tempfile.gettempdir())
    if is_in_memory(folder):
        return ["the disk tier's folder is in memory (tmpfs), not on a disk; name another with --disk-dir"]
    return [engine.tier_note] if engine.tier_note else []


def batches(spec: RunSpec, model: PreTrainedModel) -> Iterator[Batch]:
    """The batches of ``spec`` without end. Raises ``ValueError`` (one line) where data=sst2 lacks its tokenizer or its
    files, ``ImportError`` where they would come from the hub and ``datasets`` is missing."""
    config = model.config.get_text_config()
    text = _sentences(spec) if spec.data == "sst2" else None
    return stream(spec, config.vocab_size, getattr(config, "pad_token_id", None), text=text)


def _sentences(spec: RunSpec) -> np.ndarray:
    """Token ids (n,), int64: sentences of SST-2's training set, each with the tokenizer's special tokens."""
    words, _ = tokenizers.load(spec)
    source, rows = TASKS.get("sst2").rows("sst2", "train", training.usual_data_dir())
    records = [record for _, record in itertools.islice(rows, SENTENCES)]
    if not records or any(not isinstance(record.get("sentence"), str) for record in records):
        raise ValueError(f"{source} must hold sentences in a column `sentence`, but has none; give SST-2 as published")
    ids = words([record["sentence"] for record in records])["input_ids"]
    return np.fromiter(itertools.chain.from_iterable(ids), dtype=np.int64)
