"""The registries of what a spec names, zobench's own and plug-ins'; their homes are rooms above this one."""

from __future__ import annotations

from typing import Any

from zobench.runspec.registry import Registry

TASKS: Registry[Any] = Registry("task", "zobench.tasks", "zobench.data.tasks.prompts:PUBLISHED")
"""Of :class:`zobench.data.tasks.task.Task`."""
MODELS: Registry[Any] = Registry("model", "zobench.models", "zobench.models.registry:ARCHITECTURES")
"""Of :class:`zobench.models.Architecture`; :func:`zobench.models.get` finds one in any case."""
METRICS: Registry[Any] = Registry("metric", "zobench.metrics", "zobench.predict.metrics:METRICS")
"""Of :class:`zobench.result.quantity.Quantity`."""
PROGRAMS: Registry[Any] = Registry("program", "zobench.programs", "zobench.programs:PROGRAMS")
"""Of :class:`zobench.programs.Program`."""
