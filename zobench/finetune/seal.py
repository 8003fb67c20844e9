"""Ensures that the test set is evaluated once, after everything has been chosen on dev."""

from __future__ import annotations

from pathlib import Path

from zobench.machine.texts import json_of

RECORD = "search.json"
"""In a search's folder: its whole grid and the winner."""


class Seal:
    """Permission to evaluate on the test set, given once to a run, or once to all runs of a search together."""

    def __init__(self) -> None:
        self._broken_by = ""

    def break_for(self, label: str) -> None:
        """Allows the run called ``label`` to evaluate on test. Raises ``RuntimeError`` if the seal was broken before."""
        if self._broken_by:
            raise RuntimeError(
                f"the test set must be looked at once, but {label} would look after {self._broken_by}; choose on dev"
            )
        self._broken_by = label


def _winner(path: Path) -> str:
    try:
        run = str(json_of(path.read_text())["winner"]["run"])
        return run if run.isprintable() else repr(run)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{path} must name the winner of a search, but is damaged ({error}); name another --out"
        ) from error


def check_winner(run: str, folder: Path) -> None:
    """Raises ``ValueError`` if ``folder`` is of a run that lost a search: test was evaluated for the winner."""
    path = folder.parent / RECORD
    winner = _winner(path) if path.is_file() else run
    if winner != run:
        raise ValueError(
            f"the test set must be looked at once, but {path} has looked for {winner}, and this run is {run}; name "
            "another --out to train it on its own"
        )
