"""A cell by an authors' own program in its own process: same weights, tokens and seeds, watched as any cell is."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from zobench import models
from zobench.data.batch import Batch
from zobench.durable.scratch import scratch
from zobench.engine.weights.checkpoint import save_checkpoint
from zobench.machine.device import choose_device
from zobench.measure.environment import environment
from zobench.measure.observe import Observer
from zobench.methods.zo_sgd import drawn
from zobench.models.weights import Weights
from zobench.programs import authors, clones
from zobench.programs.asking import AdapterProcess, ProgramError, asking
from zobench.programs.cell import END_SECONDS, Recording, batches
from zobench.programs.clones import Clone
from zobench.result import Outcome, Result
from zobench.runspec import RunSpec, order, provenance
from zobench.training.assemble import disk_dir, empty_model, initial_weights
from zobench.training.cautions import cautions

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from zobench.parallel.world import World

SAMPLES = ("step_seconds", "loss", "projected_grad")


def run(spec: RunSpec, world: World | None = None) -> Result:
    """Measures one cell by ``spec.program`` and returns its result; what the program does becomes outcome and reason.

    The program gets the weights that zobench would begin with, the same tokens and seeds, and takes the steps with its
    own classes. Its process is watched: the memory of a CPU is that process's peak above what it had after its imports.
    Raises ``ValueError`` for a spec that it cannot run, and for a program that is not here as it was added.
    """
    spec = models.checked(spec, choose_device(spec.device)[0])
    authors.check(spec)
    clone, other_order = clones.checked(spec.program), authors.AUTHORS[spec.program].other_order
    facts = replace(
        environment(spec.device), **provenance(spec), program=authors.described(clone), own_order=other_order
    )
    samples, warmup = ({name: list[float | None]() for name in SAMPLES} for _ in range(2))
    recording, program_facts = Recording(samples=samples, warmup=warmup), dict[str, Any]()
    try:
        with scratch(disk_dir(), "program") as folder:
            question = _question(spec, folder)
            with asking(clone, question, folder, _shown(spec.device)) as adapter:
                _follow(adapter, spec, clone, recording, program_facts)
    except Exception as error:  # any failure is this cell's outcome, with its traceback, and never ends a sweep
        recording.fail(error, spec.device)
    count = len(samples["loss"])
    recording.partial = recording.outcome is Outcome.OK and count < spec.steps
    recording.warnings = [*models.differences(spec), *cautions(spec, samples["projected_grad"], 0)]
    if recording.partial:
        recording.warnings.append(f"partial: {count} of {spec.steps} steps, because the time it was given was used up")
    return recording.result(spec, replace(facts, **program_facts))


def _follow(
    adapter: AdapterProcess, spec: RunSpec, clone: Clone, recording: Recording, program_facts: dict[str, Any]
) -> None:  # fmt: skip
    """Watches the program while it takes the steps of ``spec``, and records its output; ``program_facts`` get what it
    tells of its environment."""
    observer, count = Observer(spec.device, pid=adapter.pid), 0
    try:
        facts = adapter.answer("facts")
        program_facts |= {name: facts[name] for name in ("versions", "threads")}
        clones.check_versions(clone, facts["versions"])
        adapter.answer("ready")
        observer.baseline()
        adapter.ask()
        while (row := adapter.answer("step", "done"))["kind"] == "step":
            samples, count = recording.warmup if count < spec.warmup else recording.samples, count + 1
            for name, value in {name: None if row[name] is None else float(row[name]) for name in SAMPLES}.items():
                samples[name].append(value)
        if not spec.warmup < count <= spec.warmup + spec.steps:
            raise ProgramError(f"{adapter.name} must take the steps that it is asked for, but took {count}")
        recording.memory, recording.window = row["memory"], (row["window"][0], row["window"][1])
    finally:
        recording.seen = observer.stop(recording.window)


def _question(spec: RunSpec, folder: Path) -> dict[str, Any]:
    """Returns the facts of a cell that the adapter needs; the weights lie in ``folder`` as transformers writes a
    checkpoint."""
    model = empty_model(spec)
    save_checkpoint(model, _tensors(model, initial_weights(spec, model)), folder / "weights")
    (scratch := folder / "scratch").mkdir()
    count, left = spec.warmup + spec.steps, order.seconds_left()
    fed = [_listed(batch) for batch in itertools.islice(batches(spec, model), count)]
    return {
        "spec": {**spec.to_dict(), "device": "cuda" if spec.device.startswith("cuda") else spec.device},
        "weights": str(folder / "weights"), "scratch": str(scratch), "batches": fed,
        "seeds": drawn(np.random.default_rng(spec.seed), count),
        "end": None if left is None else time.monotonic() + left - END_SECONDS,
    }  # fmt: skip


def _tensors(model: PreTrainedModel, weights: Weights) -> Iterator[tuple[str, torch.Tensor]]:
    """Each of the model's parameters, filled; one is in memory at a time."""
    for name, parameter in model.named_parameters():
        values = torch.empty_like(parameter, device="cpu")
        weights.fill(name, values)
        yield name, values


def _listed(batch: Batch) -> dict[str, Any]:
    """A batch as a model's own forward takes it, in lists."""
    masks = {} if batch.attention_mask is None else {"attention_mask": batch.attention_mask.tolist()}
    return {"input_ids": batch.input_ids.tolist(), "labels": batch.labels.tolist(), **masks}


def _shown(device: str) -> str:
    """CUDA's number of the one GPU that the program may see; "" on a CPU, which hides all."""
    kind, _, index = device.partition(":")
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return "" if kind == "cpu" else index if visible is None else visible.split(",")[int(index)]
