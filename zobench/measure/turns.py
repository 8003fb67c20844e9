"""Turns: processes that measure side by side and take their steps one after the other, each while all others wait.

What slows a machine down for longer than a step (a neighbour on its host, a clock that falls) then slows all of them
alike, so that ratios of their steps are known far better than those of processes that ran a minute apart.
:mod:`zobench.execute.together` starts them and gives the turns; this is what a process does with its own.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from zobench.measure.threads import Threads
from zobench.runspec.order import current

ASKS, IS_DONE = b"?", b"."
"""What a process says: it would take its next step; it has taken them all."""
Item = TypeVar("Item")


@dataclass(frozen=True, kw_only=True, slots=True)
class ChildPipes:
    """What a process needs to take turns: the file descriptors at which it is ``given`` one and ``says`` what it wants.
    ``threads``: those that it computes with, chosen once for all, because each is busy beside the others as they
    start."""

    given: int
    says: int
    threads: Threads | None

    @property
    def descriptors(self) -> tuple[int, int]:
        """The file descriptors that it must inherit."""
        return self.given, self.says


class Turns:
    """This process's side of the two pipes. Where the one that gives turns is gone, none is waited for."""

    def __init__(self, given: int, says: int) -> None:
        self._given, self._says = given, says

    def each(self, work: Iterable[Item]) -> Iterator[Item]:
        """``work``, each item once this process has the turn; it keeps the turn until it asks for the next item."""
        for item in work:
            self._wait(ASKS)
            yield item

    def end(self) -> None:
        """Gives the turns up, and returns once nobody else has steps left that this process could disturb."""
        self._wait(IS_DONE)

    def _wait(self, word: bytes) -> None:
        with contextlib.suppress(BrokenPipeError):
            os.write(self._says, word)
            os.read(self._given, 1)


def given() -> Turns | None:
    """The turns that this process was started with, or None: then it has the machine to itself."""
    running = current()
    return None if running is None or running.turn is None else Turns(*running.turn)
