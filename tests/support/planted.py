"""Bugs that tests must find: tests/planted/bugs.toml lists them, ``python -m tests.planted`` plants them in a copy."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, kw_only=True, slots=True)
class Bug:
    """In ``file`` the text ``old``, which is there once, becomes ``new``; ``tests`` are files that must fail then."""

    name: str
    file: str
    old: str
    new: str
    tests: list[str]

    def planted_in(self, text: str) -> str:
        """The file's text with the bug. Raises ``ValueError`` where ``old`` is not there exactly once."""
        if text.count(self.old) != 1:
            raise ValueError(
                f"the bug {self.name!r} must have its text once in {self.file}, but it is there "
                f"{text.count(self.old)} times; mend tests/planted/bugs.toml"
            )
        return text.replace(self.old, self.new)


def bugs() -> list[Bug]:
    """Those of bugs.toml."""
    return [Bug(**row) for row in tomllib.loads((ROOT / "tests" / "planted" / "bugs.toml").read_text())["bug"]]
