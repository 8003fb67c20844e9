"""The registries: everything that a spec or a recipe can name and a plug-in can add."""

from __future__ import annotations

from typing import Any

from zobench.runspec.kinds import MethodKind, SchemeKind, SpecFields
from zobench.runspec.registry import Registry

METHODS: Registry[MethodKind] = Registry("method", "zobench.methods:KINDS", "zobench.runspec.kinds:MethodKind")
SCHEMES: Registry[SchemeKind] = Registry("scheme", "zobench.schemes:KINDS", "zobench.runspec.kinds:SchemeKind")
TASKS: Registry[Any] = Registry("task", "zobench.data.tasks.prompts:PUBLISHED", "zobench.data.tasks.task:Task")
METRICS: Registry[Any] = Registry("metric", "zobench.cost.metrics:METRICS", "zobench.result.quantity:Quantity")
MODELS: Registry[Any] = Registry("model", "zobench.models.registry:ARCHITECTURES", "zobench.models:Architecture")
PROGRAMS: Registry[Any] = Registry("program", "zobench.programs:PROGRAMS", "zobench.programs:Program")


def scheme_of(spec: SpecFields) -> SchemeKind:
    """Returns the scheme of ``spec``: its method's, where the method brings one, or else its own."""
    return METHODS.get(spec.value("method")).scheme or SCHEMES.get(spec.value("scheme"))
