"""What can run a cell: zobench itself, and the programs of plug-ins. Imports no torch until a cell runs."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from zobench.runspec.registries import PROGRAMS as REGISTRY
from zobench.runspec.registry import resolve

if TYPE_CHECKING:
    from zobench.parallel import World
    from zobench.result import Result
    from zobench.runspec import RunSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class Program:
    """``run``: the dotted name (``module:attribute``) of what measures a cell in this process and returns its Result:
    ``run(spec, world)``, where ``world`` is None or, of several ranks, this one's (:class:`zobench.parallel.World`).
    ``about``: one line for ``zobench list programs``."""

    name: str
    run: str
    about: str = ""


PROGRAMS = (
    Program(name="zobench", run="zobench.programs.cell:run", about="the engine of this package, on every tier"),
)


def run(spec: RunSpec, world: World | None = None) -> Result:
    """Measures one cell here and now by ``spec.program``; see :func:`zobench.programs.cell.run` for zobench's own.

    A result of a plug-in's program says so in ``environment["program"]``; where it names no machine it gets this one.
    """
    own = resolve(REGISTRY.get(spec.program).run)
    provider = REGISTRY.provider(spec.program)
    return _signed(own, spec, world, provider) if provider else own(spec, world)


def _signed(own: Callable[[RunSpec, World | None], Result], spec: RunSpec, world: World | None, by: str) -> Result:
    """Runs a plug-in's program and returns its result. What it raises becomes the cell's outcome and reason."""
    from zobench import models
    from zobench.machine.device import choose_device
    from zobench.measure.environment import fingerprint_without_torch
    from zobench.programs.cell import classify
    from zobench.result import Result
    from zobench.runspec import provenance

    spec = models.identified(spec).resolve(choose_device(spec.device)[0])
    facts = {**fingerprint_without_torch(), **provenance(spec), "program": f"{spec.program} of {by}"}
    try:
        result = own(spec, world)
        if getattr(result, "spec", None) != spec:
            raise ValueError(f"the program {spec.program!r} of {by} must return the Result of its spec, but did not")
    except Exception as error:
        outcome, reason = classify(error, spec.device)
        return Result(spec=spec, outcome=outcome, reason=reason, traceback=traceback.format_exc(), environment=facts)
    return replace(result, environment={**facts, **result.environment, "program": facts["program"]})
