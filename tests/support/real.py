"""Specs and data of runs of real models, for benchmarks."""

from __future__ import annotations

from typing import Any

from zobench import RunSpec, models
from zobench.data.tasks.task_data import TaskData
from zobench.finetune.run import usual_data_dir
from zobench.models import tokenizers
from zobench.models.source import identified
from zobench.recipes import matrix


def spec_of(**values: Any) -> RunSpec:
    """The spec of a resident run on this CPU."""
    return identified(matrix.asked({"weights": "random", "steps": 100, **values})).resolve("cpu")


def data_of(spec: RunSpec) -> TaskData:
    """The encoded examples of the spec's task."""
    words, _ = tokenizers.load(spec)
    masked = models.of(spec).masked
    return TaskData.load(spec, words, positions=models.position_count(spec), masked=masked, data_dir=usual_data_dir())
