"""The seal of a test set: it is looked at once, after everything has been chosen on dev."""

from __future__ import annotations


class Seal:
    """What a run, or all runs of a search together, must break before they look at the test set."""

    def __init__(self) -> None:
        self._broken_by = ""

    def break_for(self, who: str) -> None:
        """Allows ``who`` to look. Raises ``RuntimeError`` if anybody has looked before."""
        if self._broken_by:
            raise RuntimeError(
                f"the test set must be looked at once, but {who} would look after {self._broken_by}; choose on dev"
            )
        self._broken_by = who
