"""What can run a cell: zobench itself, and programs of plug-ins."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Program:
    """A program by its ``name`` in a spec. ``run``: what measures one cell with it, as ``module:attribute``."""

    name: str
    run: str


PROGRAMS = (Program(name="zobench", run="zobench.programs.cell:run"),)
