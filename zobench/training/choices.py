"""The choices of a fine-tuning run on a CPU for fields that were not given: packed rows, products in bf16, kernels of
attention.

Weights and updates stay in float32, so no update is lost; products alone are in bf16. They are chosen where this
processor multiplies faster in it and g of the run's own model and data comes out alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from zobench import models
from zobench.data.tasks.task_data import TaskData
from zobench.durable import journal
from zobench.engine.passes import packing
from zobench.machine.texts import reporting
from zobench.measure.calibrate import matmul_rate
from zobench.models import tokenizers
from zobench.runspec import METHODS, RunSpec, scheme_of
from zobench.training.assemble import empty_model, planned, tuner
from zobench.training.origin import JOURNAL
from zobench.training.run import task_data

FIELDS = ("packed", "autocast", "attention")
SMALLEST = 50_000_000
"""Parameters of a model from which anything is chosen: a smaller one's steps take milliseconds."""
FASTER = 1.5
"""The ratio of the rates of products from which on bf16 counts as faster than float32."""
DIRECTIONS, MOST_DIFFERENCE = 16, 0.3
"""Directions along which g is compared, at weights that do not move; how large the difference between the two types may
be, relative to g in float32, both as root mean squares over all directions: then their correlation is 0.95 or more."""
WIDER = 1.53
"""Times the relative difference along 16 directions: the end of its one-sided 95 % interval, the root of the quantile
2.33 of F with 16 and 16 degrees of freedom, of which the ratio of two mean squares of 16 normal numbers is."""
SECONDS = 0.2
"""Seconds for which products are timed in each type."""


def chosen(
    spec: RunSpec, fields: Collection[str], folder: Path | None, data_dir: Path | None, say: Callable[[str], None]
) -> RunSpec:
    """``spec`` with a value for each of :data:`FIELDS` that is not among ``fields``; says which, and why.

    A run that has begun in ``folder`` keeps the values that it has.
    """
    stored = None if folder is None else begun(folder)
    if stored is not None:
        return _with(spec, {name: getattr(stored, name) for name in FIELDS if name not in fields}) or spec
    free = (
        spec.device == "cpu" and spec.gpus == 1 and spec.tier != "disk" and not METHODS.get(spec.method).backpropagates
    )
    if not free or models.parameter_count(models.of(spec)) < SMALLEST:
        return spec
    if "packed" not in fields and (packed := _with(spec, {"packed": True})) is not None and _packs(packed):
        spec = packed
        say("packed: true, because this model gives the same scores without padding; packed=false pads")
    if not {"dtype", "autocast"} & set(fields) and spec.dtype == "fp32":
        fast, why = _in_16_bits(spec, fields, data_dir, say)
        say(why)
        return fast
    return spec


def begun(folder: Path) -> RunSpec | None:
    """The spec of the run that has begun in ``folder``, or None."""
    header = journal.begun(folder / JOURNAL)
    return None if header is None else RunSpec.from_stored(header["spec"])


def _with(spec: RunSpec, values: dict[str, Any]) -> RunSpec | None:
    """The spec with ``values``, None where its method or scheme does not take them."""
    try:
        return spec.replace(**values)
    except ValueError:
        return None


def _packs(spec: RunSpec) -> bool:
    if scheme_of(spec).virtual_tokens:
        return False
    try:
        packing.check(empty_model(spec))
    except ValueError:
        return False
    return True


def _in_16_bits(
    spec: RunSpec, fields: Collection[str], data_dir: Path | None, say: Callable[[str], None]
) -> tuple[RunSpec, str]:
    """The spec with products in bf16 where they are fast and g is alike, else itself; and a line that says why."""
    fast = None if "attention" in fields else _with(spec, {"autocast": "bf16", "attention": "fast"})
    fast = fast or _with(spec, {"autocast": "bf16"})
    if fast is None:
        return spec, f"autocast: none, because {spec.method} with scheme={spec.scheme} takes no other"
    single, half = (matmul_rate("cpu", name, SECONDS) for name in ("fp32", "bf16"))
    rates = f"products reach {half / 1e9:.0f} GFLOP/s in bf16 and {single / 1e9:.0f} in fp32 here"
    if half < FASTER * single:
        return spec, f"autocast: none, because {rates}"
    say(f"autocast: {rates}; comparing g along {DIRECTIONS} directions in both")
    words, _ = tokenizers.load(spec)
    data = task_data(spec, words, data_dir)
    with reporting(say, "autocast: comparing"):
        exact = gradients(spec, data)
        try:
            difference = distance(exact, gradients(fast, data))
        except ValueError as error:  # the model's attention cannot be driven so, as the error says; float32 can
            return spec, f"autocast: none, because with {rates} this model could not be driven in bf16: {error}"
    compared = (
        f"g along {DIRECTIONS} directions is {difference:.0%} from float32's, so with 95 % confidence at most "
        f"{WIDER * difference:.0%} ({MOST_DIFFERENCE:.0%} is allowed)"
    )
    if WIDER * difference > MOST_DIFFERENCE:
        return spec, f"autocast: none, because {compared}"
    return fast, f"autocast: bf16, weights and updates in fp32, because {rates} and {compared}; autocast=none ends that"


def gradients(spec: RunSpec, data: TaskData) -> list[float]:
    """g along the first :data:`DIRECTIONS` directions of a run with lr = 0, each step's on its own batch, all at the
    weights that the run begins with."""
    measured: list[float] = []
    with tuner(planned(spec)[0]) as built:
        for step in range(DIRECTIONS):
            built.method.lr = 0.0
            measured += built.method.step(built.engine, data.train_batch(step)).gradients
            if len(measured) >= DIRECTIONS:
                break
    return measured[:DIRECTIONS]


def distance(exact: Sequence[float], other: Sequence[float]) -> float:
    """``|other - exact| / |exact|`` of two lists of as many numbers; infinite where that is not finite."""
    if not any(exact):  # no loss moved, so nothing is compared
        return math.inf
    size = math.dist(exact, other) / math.hypot(*exact)
    return size if math.isfinite(size) else math.inf
