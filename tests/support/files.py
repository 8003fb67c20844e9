"""Files for tests."""

from pathlib import Path


def written(path: Path, text: str) -> Path:
    """Writes the file, and makes the folders that it is in; returns it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8", newline="\n")
    return path
