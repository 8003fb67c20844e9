"""Ensures that the test set is evaluated once, after everything has been chosen on dev."""

from __future__ import annotations

import json
from pathlib import Path

RECORD = "search.json"
"""In a search's folder: its whole grid and the winner."""


class Seal:
    """Permission to evaluate on the test set, given once to a run, or once to all runs of a search together."""

    def __init__(self) -> None:
        self._broken_by = ""

    def break_for(self, who: str) -> None:
        """Allows ``who`` to evaluate on test. Raises ``RuntimeError`` if the seal was broken before."""
        if self._broken_by:
            raise RuntimeError(
                f"the test set must be looked at once, but {who} would look after {self._broken_by}; choose on dev"
            )
        self._broken_by = who


def check_winner(run: str, folder: Path) -> None:
    """Raises ``ValueError`` if ``folder`` is of a run that lost a search: test was evaluated for the winner."""
    path = folder.parent / RECORD
    winner = json.loads(path.read_text())["winner"]["run"] if path.is_file() else run
    if winner != run:
        raise ValueError(
            f"the test set must be looked at once, but {path} has looked for {winner}, and this run is {run}; name "
            "another --out to train it on its own"
        )
