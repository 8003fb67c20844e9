"""A cell by an authors' own program in its own process: same weights, tokens and seeds, watched as any cell is."""

from __future__ import annotations

import itertools
import os
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
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
from zobench.measure.observe import Observation, Observer
from zobench.methods.zo_sgd import drawn
from zobench.models.weights import Weights
from zobench.programs import authors, clones
from zobench.programs.asking import AdapterProcess, ProgramError, asking
from zobench.programs.cell import END_SECONDS, batches, classify
from zobench.programs.clones import Clone
from zobench.result import Outcome, Result
from zobench.runspec import RunSpec, order, provenance
from zobench.training.assemble import disk_dir, empty_model, initial_weights
from zobench.training.cautions import cautions

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from zobench.parallel.world import World

SAMPLES = ("step_seconds", "loss", "projected_grad")


@dataclass
class ProgramOutput:
    """The output of the program so far; a cell that ends early keeps it."""

    rows: list[dict[str, float | None]] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    memory: dict[str, int | None] = field(default_factory=dict)
    window: tuple[float, float] = (0.0, 0.0)
    seen: Observation | None = None

    def samples(self, first: int, last: int) -> dict[str, list[float | None]]:
        """The samples of the steps ``first`` to ``last - 1``, by name."""
        return {name: [row[name] for row in self.rows[first:last]] for name in SAMPLES}

    def measured(self, spec: RunSpec, outcome: Outcome) -> dict[str, Any]:
        """The output as fields of a :class:`~zobench.result.Result` that ended with ``outcome``."""
        samples, count = self.samples(spec.warmup, len(self.rows)), len(self.rows) - spec.warmup
        partial = outcome in (Outcome.OK, Outcome.CONTAMINATED) and count < spec.steps
        warnings = [*models.differences(spec), *cautions(spec, samples["projected_grad"], 0)]
        if partial:
            warnings.append(f"partial: {count} of {spec.steps} steps, because the time it was given was used up")
        fields = {"samples": samples, "warmup": self.samples(0, spec.warmup), "partial": partial, "warnings": warnings}
        if self.seen is None:
            return fields
        warnings += self.seen.warnings
        return {**fields, "memory": self.seen.memory | self.memory, "power": self.seen.power, "trace": self.seen.trace}


def run(spec: RunSpec, world: World | None = None) -> Result:
    """Measures one cell by ``spec.program`` and returns its result; what the program does becomes outcome and reason.

    The program gets the weights that zobench would begin with, the same tokens and seeds, and takes the steps with its
    own classes. Its process is watched: the memory of a CPU is that process's peak above what it had after its imports.
    Raises ``ValueError`` for a spec that it cannot run, and for a program that is not here as it was added.
    """
    spec = models.checked(spec, choose_device(spec.device)[0])
    authors.check(spec)
    clone, output = clones.checked(spec.program), ProgramOutput()
    other_order = authors.AUTHORS[spec.program].other_order
    facts = replace(
        environment(spec.device), **provenance(spec), program=authors.described(clone), own_order=other_order
    )
    outcome, reason, trace = Outcome.OK, "", ""
    try:
        with scratch(disk_dir(), "program") as folder:
            question = _question(spec, folder)
            with asking(clone, question, folder, _shown(spec.device)) as asked:
                _follow(asked, spec, clone, output)
    except Exception as error:  # any failure is this cell's outcome, with its traceback, and never ends a sweep
        outcome, reason = classify(error, spec.device)
        trace = traceback.format_exc()
    if output.seen is not None and outcome is Outcome.OK and output.seen.disturbed:
        outcome, reason = Outcome.CONTAMINATED, output.seen.disturbed
    return Result(
        spec=spec, outcome=outcome, reason=reason, traceback=trace, environment=replace(facts, **output.facts),
        **output.measured(spec, outcome),
    )  # fmt: skip


def _follow(asked: AdapterProcess, spec: RunSpec, clone: Clone, output: ProgramOutput) -> None:
    """Watches the program while it takes the steps of ``spec``, and records its output."""
    observer = Observer(spec.device, pid=asked.pid)
    try:
        facts = asked.answer("facts")
        output.facts = {name: facts[name] for name in ("versions", "threads")}
        clones.check_versions(clone, facts["versions"])
        asked.answer("ready")
        observer.baseline()
        asked.ask()
        while (row := asked.answer("step", "done"))["kind"] == "step":
            output.rows.append({name: None if row[name] is None else float(row[name]) for name in SAMPLES})
        if not spec.warmup < len(output.rows) <= spec.warmup + spec.steps:
            raise ProgramError(f"{asked.name} must take the steps that it is asked for, but took {len(output.rows)}")
        output.memory, output.window = row["memory"], (row["window"][0], row["window"][1])
    finally:
        output.seen = observer.stop(output.window)


def _question(spec: RunSpec, folder: Path) -> dict[str, Any]:
    """What the adapter needs of a cell; the weights lie in ``folder`` as transformers writes a checkpoint."""
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
    seen = os.environ.get("CUDA_VISIBLE_DEVICES")
    return "" if kind == "cpu" else index if seen is None else seen.split(",")[int(index)]
