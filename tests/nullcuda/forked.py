"""Programs on the null GPU, each in a process that is forked from one in which torch's CUDA build is loaded."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

from tests.nullcuda import build
from tests.support import warm


def python(program: str, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """``python -c PROGRAM ARGUMENTS`` on the null GPU, with ``settings`` in its environment."""
    interpreter = build.interpreter()
    libraries = {"TRITON_LIBCUDA_PATH": str(interpreter.parents[1] / "lib")}  # as tests/nullcuda/start.py sets it
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **libraries, **settings}
    if "NULLCUDA_VALUES" in settings:  # which is read when torch is loaded
        command = [str(interpreter), "-c", program, *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True)
    with tempfile.TemporaryDirectory() as folder:
        return warm.python(["-c", program, *arguments], Path(folder), environment, str(interpreter))
