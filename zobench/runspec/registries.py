"""The registries: everything that a spec or a recipe can name and a plug-in can add."""

from __future__ import annotations

from typing import Any

from zobench.runspec.kinds import MethodKind, SchemeKind
from zobench.runspec.registry import Registry

METHODS: Registry[MethodKind] = Registry("method", "zobench.methods", "zobench.methods:KINDS")
SCHEMES: Registry[SchemeKind] = Registry("scheme", "zobench.schemes", "zobench.schemes:KINDS")
TASKS: Registry[Any] = Registry("task", "zobench.tasks", "zobench.data.tasks.prompts:PUBLISHED")
METRICS: Registry[Any] = Registry("metric", "zobench.metrics", "zobench.predict.metrics:METRICS")
MODELS: Registry[Any] = Registry("model", "zobench.models", "zobench.models.registry:ARCHITECTURES")
PROGRAMS: Registry[Any] = Registry("program", "zobench.programs", "zobench.programs:PROGRAMS")
