"""Which build of torch pip is to install, as pip's arguments; why, in one line, on standard error.

``python .ci/torch_build.py``: the CUDA build where an NVIDIA driver is present, else the CPU build. Needs no package.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path

CONSTRAINTS = Path(__file__).parents[1] / "constraints.txt"
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
DRIVERS = ("proc/driver/nvidia/version", "dev/nvidiactl", "usr/lib/wsl/lib/libcuda.so.1")
"""Files of which NVIDIA's driver has one, in Linux and in its place in Windows."""
SOURCES = r"^\S*\.(?:index-url|extra-index-url|find-links|no-index)="
"""Where pip looks for packages, in what ``pip config list`` prints."""


def driver(root: Path = Path("/"), path: str | None = None) -> str:
    """What shows that NVIDIA's driver is here; "" if nothing does. ``path``: where programs are, by default $PATH."""
    found = [f"/{name}" for name in DRIVERS if (root / name).exists()]
    return next(iter(found), "") or shutil.which("nvidia-smi", path=path) or ""


def choose(system: str, driver: str, configured: str, reachable: Callable[[], bool]) -> tuple[list[str], str]:
    """(pip's arguments, why these). ``configured``: what ``pip config list`` prints."""
    if system != "linux":
        return ["torch"], f"torch: the one build for {system}"
    if driver:
        version = re.search(r"^torch==([\w.]+)", CONSTRAINTS.read_text(), re.MULTILINE)
        assert version is not None, "constraints.txt names no torch"
        return [f"torch==={version[1]}"], f"torch: the CUDA build, because {driver} shows an NVIDIA driver"
    if re.search(SOURCES, configured, re.MULTILINE):
        why = "no NVIDIA driver is here; pip looks for it where its configuration says"
        return ["torch"], f"torch: the CPU build, because {why}"
    if reachable():
        return ["--extra-index-url", CPU_INDEX, "torch"], "torch: the CPU build, because no NVIDIA driver is here"
    return ["torch"], f"torch: what pip finds, because {CPU_INDEX} cannot be reached (no NVIDIA driver is here)"


def _configured() -> str:
    return subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True).stdout


def _reachable() -> bool:
    try:
        with urllib.request.urlopen(f"{CPU_INDEX}/torch/", timeout=10):
            return True
    except OSError:
        return False


if __name__ == "__main__":
    arguments, why = choose(sys.platform, driver(), _configured(), _reachable)
    print(why, file=sys.stderr)
    print(*arguments)
