"""The messages of a session while cells are planned and run."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zobench.execute.plan import Step
    from zobench.result import Result
    from zobench.runspec import RunSpec

_LOG = logging.getLogger("zobench")


class Monitor:
    """A monitor gets the messages of a session at work: this one logs them as ``zobench``, a command's prints them."""

    def say(self, text: str, style: str = "dim") -> None:
        """Says a line, if there is one; its ``style`` is that of a terminal, where yellow and red are warnings."""
        if text:
            _LOG.log(logging.WARNING if style in ("yellow", "red") else logging.INFO, text)

    def busy(self, what: str) -> AbstractContextManager[object]:
        """Shows inside the block that ``what`` goes on, which takes seconds."""
        self.say(what)
        return nullcontext()

    def waiting(self, what: str) -> AbstractContextManager[object]:
        """The same of what is mostly done at once, as ``planning 12 cells``: said only when it takes seconds."""
        return nullcontext()

    def show_plan(self, title: str, steps: Sequence[Step], budget: float | None) -> None:
        """Shows a plan of ``budget`` seconds (None: of as many as it takes)."""

    def show_jobs(
        self, title: str, specs: Sequence[RunSpec], cells: Sequence[RunSpec], requests: Sequence[Mapping[str, Any]]
    ) -> None:
        """Shows which of ``specs`` are handed over: ``cells``, each in a job with its ``requests`` of the scheduler."""

    def show_power(self, text: str) -> None:
        """Shows which difference a protocol can find."""

    def cells(self, steps: Sequence[Step], budget: float | None) -> AbstractContextManager[object]:
        """The cells of ``steps`` begin, go on and end inside the block."""
        return nullcontext()

    def begin(self, step: Step) -> None:
        """A cell begins."""
        self.say(f"{step.spec.label} begins" if step.action == "run" else "")

    def tick(self) -> None:
        """Time passes while a cell runs; called about ten times a second."""

    def end(self, step: Step, result: Result) -> None:
        """A cell has ended."""
        lines = [str(result), *(f"warning: {text}" for text in result.warnings)]
        for line in lines if step.action == "run" else ():
            self.say(line)
