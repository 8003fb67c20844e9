"""Which build of torch ``make`` installs: by a driver that is there or not, without a network."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.files import module_at, script

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / ".ci" / "torch_build.py"
torch_build = module_at(SCRIPT)

PINNED = re.search(r"^torch==([\w.]+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE)[1]  # type: ignore[index]
CUDA = [f"torch==={PINNED}"]
CPU_INDEX = ["--extra-index-url", "https://download.pytorch.org/whl/cpu", "torch"]


def never():
    raise AssertionError("the network was asked")


@pytest.mark.parametrize(
    ("system", "driver", "configured", "reachable", "arguments", "why"),
    [
        ("linux", "/dev/nvidiactl", "", never, CUDA, "the CUDA build, because /dev/nvidiactl shows"),
        ("linux", "", "global.find-links='/w'", never, ["torch"], "the CPU build, .* where its configuration says"),
        ("linux", "", "global.timeout='60'", lambda: True, CPU_INDEX, "the CPU build, because no NVIDIA driver is"),
        ("darwin", "", "", never, ["torch"], "the one build for darwin"),
    ],
)
def test_the_build_follows_the_driver(system, driver, configured, reachable, arguments, why):
    chosen, said = torch_build.choose(system, driver, configured, reachable)
    assert chosen == arguments
    assert re.search(why, said)
    assert "\n" not in said


def test_make_gives_pip_what_the_script_prints_and_says_why(tmp_path):
    """With a driver's program on the path, and another pip: make's own recipe, nothing is installed."""
    script(tmp_path / "nvidia-smi", "")
    path = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run([sys.executable, SCRIPT], env=path, capture_output=True, text=True, check=True)
    assert done.stdout.split() == CUDA
    assert done.stderr.startswith("torch: the CUDA build, because ")
    recipe = subprocess.run(
        ["make", "-n", "sweep", f"VENV={tmp_path / 'none'}"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert re.search(r"pip install -q --no-compile -c constraints\.txt \$\(\S+ \.ci/torch_build\.py\)", recipe)
