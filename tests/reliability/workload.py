"""What every workload of the campaign of kills has: a run without a kill, kills, and an end that must be the same."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tests.reliability.board import Board, Moment
from zobench.machine import files

WINDOWS = 0.65
"""Of the kills, the share that is aimed at a short phase; the others come at any time of the run."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """``lost``: how much of what was said to be done is not there; ``differs``: what is not as it should be, or ""."""

    lost: int
    differs: str

    @property
    def holds(self) -> bool:
        """Whether nothing is lost and nothing differs."""
        return not self.lost and not self.differs


@dataclass(frozen=True, kw_only=True, slots=True)
class Death:
    """A kill: what was ``asked`` for, the ``phase`` in which it landed, the phases that were under way ``beside``,
    steps or cells ``done`` by then, which ``rank`` died, seconds of processor, and what was found just after."""

    asked: str
    phase: str
    check: Check
    done: int = -1
    rank: int = 0
    cpu: float = 0.0
    beside: list[str] = field(default_factory=list)


class Workload(Protocol):
    """Something that is killed and gone on with until it has come to its end, in a chain of kills."""

    name: str

    def whole(self) -> None:
        """Runs it without a kill, which all others are compared with."""

    def kill(self, chain: str, random_: random.Random) -> Death | None:
        """Goes on with ``chain`` and kills it at a moment drawn; None if it came to its end before that."""

    def is_over(self, chain: str) -> bool:
        """Whether nothing is left at which to die."""

    def finish(self, chain: str) -> Check:
        """Lets it end, and compares it with the one that was not killed."""


def draw(random_: random.Random, board: Board, phases: Sequence[str], seconds: float, left: float) -> Moment:
    """A moment of a run that took ``seconds`` and of which a share of ``left`` is still to come.

    It is any time of it, or a time inside one of the ``phases`` that the run without a kill was in.
    """
    seen = [phase for phase in phases if board.entries(phase)]
    if not seen or random_.random() > WINDOWS:
        return Moment(delay=random_.uniform(0, seconds * max(0.3, left)))
    phase = random_.choice(seen)
    entries = max(1, round(board.entries(phase) * left * 0.4))
    return Moment(delay=random_.uniform(0, board.seconds(phase)), phase=phase, entry=random_.randint(1, entries))


def refused(error: OSError | ValueError) -> int:
    """Says an error as a command does, in one line; the exit code."""
    print(f"{type(error).__name__}: {files.error_text(error) if isinstance(error, OSError) else error}")
    return 1


def same(expected: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """Which of the things that two runs must have alike differ, or ""."""
    names = [key for key in expected.keys() | found.keys() if expected.get(key) != found.get(key)]
    return "" if not names else f"{', '.join(sorted(names))} differ"
