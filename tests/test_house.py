"""The house: no circle among modules, no import that runs up, and a planted one is found."""

from __future__ import annotations

import graphlib
import shutil
import subprocess
import sys
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[1]


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Imports inside functions count; those for type checkers alone do not."""
    graph = grimp.build_graph("zobench", exclude_type_checking_imports=True, cache_dir=None)
    order = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    graphlib.TopologicalSorter(order).prepare()  # raises CycleError, which names the circle


@pytest.mark.parametrize("planted", ["", "from zobench.cli import console"])
def test_rooms_use_only_those_below_them_and_a_planted_upward_import_is_found(planted: str, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "zobench", tmp_path / "zobench", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    with (tmp_path / "zobench/engine/schedule.py").open("a") as module:
        module.write(f"\n{planted}\n")
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as run; run()", "--no-cache"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == bool(planted), done.stdout + done.stderr
    assert ("zobench.engine is not allowed to import zobench.cli" in done.stdout) == bool(planted)
