"""The notes of a release, on standard output: ``python .ci/release_notes.py v0.2.0``.

They are the version's part of CHANGELOG.md. Ends with a line and exit code 1 if the tag, zobench/version.py,
CITATION.cff and the newest part of CHANGELOG.md do not name one version, or not one day. Needs no package.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
HEADING = re.compile(r"^## (\S+) \((\d{4}-\d\d-\d\d)\)$", re.MULTILINE)
"""Of a release in the changelog."""


def notes(tag: str, root: Path = ROOT) -> str:
    """What changed in the release ``tag``. Raises ``ValueError`` where its version is told otherwise."""
    changelog = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    first = HEADING.search(changelog)
    if first is None:
        raise ValueError("CHANGELOG.md must begin with a release, but has none; write ## 1.2.3 (2026-01-31)")
    version, day = first.groups()
    told = {
        "the tag": tag.removeprefix("v"),
        "zobench/version.py": _word(root / "zobench/version.py", r'^__version__ = "(.+)"$'),
        "CITATION.cff": _word(root / "CITATION.cff", r"^version: (.+)$"),
    }
    for where, other in told.items():
        if other != version:
            raise ValueError(f"one version must be named, but CHANGELOG.md has {version} and {where} {other}")
    if (cited := _word(root / "CITATION.cff", r"^date-released: (.+)$")) != day:
        raise ValueError(f"one day must be named, but CHANGELOG.md has {day} and CITATION.cff {cited}")
    rest = changelog[first.end() :]
    end = HEADING.search(rest)
    return rest[: end.start() if end else None].strip() + "\n"


def _word(path: Path, pattern: str) -> str:
    """What ``pattern`` finds in the file, or ""."""
    found = re.search(pattern, path.read_text(encoding="utf-8"), re.MULTILINE)
    return found[1] if found else ""


if __name__ == "__main__":
    try:
        print(notes(sys.argv[1]), end="")
    except ValueError as error:
        sys.exit(str(error))
