"""Files for tests."""

import importlib.util
import sys
from pathlib import Path
from typing import Any


def written(path: Path, text: str) -> Path:
    """Writes the file, and makes the folders that it is in; returns it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8", newline="\n")
    return path


def script(path: Path, text: str) -> Path:
    """Writes a shell script that can be run; returns it."""
    written(path, f"#!/bin/sh\n{text}\n").chmod(0o755)
    return path


def module_at(path: Path) -> Any:
    """The module of a file that lies in no package."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
