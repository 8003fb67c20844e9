"""The campaign's log: a line of JSON for each thing that was tried, so that a campaign goes on where it was stopped."""

import json
from pathlib import Path
from typing import Any


class Log:
    """``path``: the file, or None to keep nothing; ``lines``: what it holds, those of earlier processes too."""

    def __init__(self, path: Path | None) -> None:
        self.path, self.lines = path, list[dict[str, Any]]()
        if path is not None and path.exists():
            whole = path.read_text().rpartition("\n")[0]  # a line that a kill has torn is done again
            self.lines = [json.loads(line) for line in whole.splitlines()]
            path.write_text("".join(json.dumps(line) + "\n" for line in self.lines))

    def add(self, *lines: dict[str, Any]) -> None:
        """Adds lines at once: all of what belongs together, or nothing."""
        self.lines += lines
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a") as file:
                file.write("".join(json.dumps(line) + "\n" for line in lines))

    def of(self, kind: str) -> list[dict[str, Any]]:
        """The lines of one kind."""
        return [line for line in self.lines if line["kind"] == kind]
