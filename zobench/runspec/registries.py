"""The registries of a spec's words."""

from __future__ import annotations

from zobench.runspec.kinds import MethodKind, SchemeKind
from zobench.runspec.registry import Registry

METHODS: Registry[MethodKind] = Registry("method", "zobench.methods", "zobench.methods:KINDS")
SCHEMES: Registry[SchemeKind] = Registry("scheme", "zobench.schemes", "zobench.schemes:KINDS")
