"""Seconds of a whole cell on a GPU that is not here: its process, its weights, its steps. No torch."""

from __future__ import annotations

from zobench import models
from zobench.predict.footprint import PARTS_STEPS, memory
from zobench.predict.gpu import predict
from zobench.predict.hardware import Gpu
from zobench.runspec import RunSpec
from zobench.runspec.kinds import ENGINES, WIDTHS

START_SECONDS = 15.0
"""Guessed: a fresh process with torch, transformers, a CUDA context and kernels that were compiled before."""
FILL_RATE = 0.75e9
"""Guessed: bytes of initial weights that a host draws and registers for its GPU in a second; a CPU with two cores drew
0.4 to 1.5e9."""


def whole_seconds(spec: RunSpec, gpu: Gpu, disk: float = 0.0) -> float:
    """What a cell takes from its process's start to its end, without evaluations and checkpoints. ``disk``: bytes/s of
    a tier there."""
    weights = models.parameter_count(*models.variant(spec)) * WIDTHS[spec.dtype]
    filled = memory(spec)[1] if ENGINES[spec.engine].is_streamed else weights
    steps = spec.steps + spec.warmup + (PARTS_STEPS if spec.parts else 0)
    return START_SECONDS + filled / FILL_RATE + steps * predict(spec, gpu, disk).step_seconds
