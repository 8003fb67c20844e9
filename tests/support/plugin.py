"""Packages outside the repository: one module and the metadata that pip leaves, and zobench with them installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.rates import calibrate
from zobench.measure.environment import fingerprint_without_torch

ROOT = Path(__file__).parents[2]
SWEEP = """
import sys
from zobench import cli, programs
from zobench.execute import sweep
sweep.run_in_process = lambda spec, **_: programs.run(spec)
cli.main(["sweep", *sys.argv[1:], "--device", "cpu"])
"""
"""``zobench sweep`` whose cells run in its own process: one for each would load torch and transformers anew."""


def install(folder: Path, package: str, group: str, entries: dict[str, str], source: str) -> None:
    """Puts ``package`` into ``folder``, on a measured machine: a module of ``source``, and ``entries`` (name ->
    attribute) of ``group``."""
    calibrate(folder, fingerprint_without_torch()["machine"])
    (folder / f"{package}.py").write_text(source)
    info = folder / f"{package}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    points = "\n".join(f"{name} = {package}:{attribute}" for name, attribute in entries.items())
    (info / "entry_points.txt").write_text(f"[{group}]\n{points}\n")


def zobench(folder: Path, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    """``zobench ARGUMENTS`` in ``folder``, whose packages it finds; it must end with ``code``."""
    return python(folder, "-P", "-m", "zobench", *arguments, code=code)


def python(folder: Path, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    """``python ARGUMENTS`` there."""
    path = os.pathsep.join([str(folder), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done


def results(folder: Path) -> list[dict[str, Any]]:
    """What the store holds, as it is written: this process has none of the packages. Hidden folders hold no results."""
    return [json.loads(path.read_text()) for path in sorted(folder.glob("results/[!.]*/*.json"))]


def last_line(done: subprocess.CompletedProcess[str]) -> str:
    """The last line that it said on standard error, which holds no traceback."""
    assert "Traceback" not in done.stderr
    return done.stderr.strip().splitlines()[-1]
