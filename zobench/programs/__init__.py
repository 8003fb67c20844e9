"""The programs that can run a cell: zobench itself, authors' programs, those of plug-ins. Imports no torch until a cell
runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from zobench.runspec import FIELDS, check_spec, named_arguments
from zobench.runspec.registries import PROGRAMS as REGISTRY
from zobench.runspec.registry import resolve

if TYPE_CHECKING:
    from zobench.parallel.world import World
    from zobench.result import Result
    from zobench.runspec import RunSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class Program:
    """``run``: the dotted name (``module:attribute``) of what measures a cell in this process and returns its Result:
    ``run(spec, world)``, where ``world`` is None or, of several ranks, this one's
    (:class:`zobench.parallel.world.World`).
    ``about``: one line for ``zobench list programs``. ``check``: the dotted name of what raises ``ValueError`` for a
    spec that it cannot run here, ``check(spec)``; ``origin``: of the function that gives its edition in this
    environment, ``origin(name)``: results of another edition count as not measured."""

    name: str
    run: str
    about: str = ""
    check: str = ""
    origin: str = ""


def _authors(name: str, about: str) -> Program:
    """A program that is not ours, run as its authors published it (:mod:`zobench.programs.authors`)."""
    home = "zobench.programs.authors"
    return Program(
        name=name, run="zobench.programs.author_cell:run", about=about, check=f"{home}:check", origin=f"{home}:origin"
    )


PROGRAMS = (
    Program(name="zobench", run="zobench.programs.cell:run", about="the engine of this package, on every tier"),
    _authors("mezo", "MeZO's own trainer (princeton-nlp/MeZO), added by `zobench program add`"),
    _authors("zo-llm", "ZO-Bench's own trainer, its ZO-SGD (ZO-Bench/ZO-LLM), added likewise"),
    _authors("zo2", "ZO2's own model on a GPU (liangyuwang/zo2), added likewise; its adapter is untested"),
)


def check(spec: RunSpec) -> None:
    """Raises ``ValueError``, one line, if ``spec.program`` is unknown, or says that it cannot run ``spec`` here."""
    program = REGISTRY.get(spec.program)
    if program.check:
        resolve(program.check)(spec)


@named_arguments(FIELDS)
def run(spec: RunSpec, world: World | None = None) -> Result:
    """Measures one cell in this process by ``spec.program``; see :func:`zobench.programs.cell.run` for zobench's own.

    A result of a plug-in's program says so in ``environment.program``; where it names no machine it gets this one.
    """
    check_spec(spec)
    measure = resolve(REGISTRY.get(spec.program).run)
    provider = REGISTRY.provider(spec.program)
    return _signed(measure, spec, world, provider) if provider else measure(spec, world)


def _signed(measure: Callable[[RunSpec, World | None], Result], spec: RunSpec, world: World | None, by: str) -> Result:
    """Runs a plug-in's program and returns its result. What it raises becomes the cell's outcome and reason."""
    from zobench import models
    from zobench.machine.device import choose_device
    from zobench.measure.environment import fingerprint_without_torch
    from zobench.programs.cell import failed
    from zobench.result import Facts
    from zobench.runspec import provenance

    spec = models.identified(spec).resolve(choose_device(spec.device)[0])
    facts = replace(fingerprint_without_torch(), **provenance(spec), program=f"{spec.program} of {by}")
    try:
        result = measure(spec, world)
        if getattr(result, "spec", None) != spec:
            raise ValueError(f"the program {spec.program!r} of {by} must return the Result of its spec, but did not")
    except Exception as error:
        return failed(spec, error, facts)
    values = {**facts.to_dict(), **result.environment.to_dict(), "program": facts.program}
    try:
        return replace(result, environment=Facts.from_dict(values))
    except ValueError:
        warning = f"what the program of {by} says of its environment is left out: a fact is not as Facts has it"
        return replace(result, environment=facts, warnings=[*result.warnings, warning])
