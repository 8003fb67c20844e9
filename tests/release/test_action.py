"""The action for pull requests, as far as it runs without a runner: two installations are measured in turns."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.files import written
from tests.support.rates import calibrate
from zobench.measure.environment import fingerprint_without_torch

ROOT = Path(__file__).parents[2]
FAKE = """#!/usr/bin/env bash
echo "$(basename "$(dirname "$0")") $*" >>"$LOG"
side=$(basename "$(dirname "$0")")
[ "$1" != compare ] || { echo "1 cell: 1 $WORD"; [ "$side" = base ] || CODE=${HEAD_CODE:-$CODE}; exit "$CODE"; }
exit "${SWEEP:-0}"
"""


def compared(tmp_path: Path, rounds: int, **settings: str) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """What action/compare did with two stand-ins for zobench, and their calls in order."""
    for side in ("base", "head"):
        written(tmp_path / side / "zobench", FAKE).chmod(0o755)
    log = tmp_path / "log"
    log.touch()
    command = [ROOT / "action" / "compare", tmp_path / "base" / "zobench", tmp_path / "head" / "zobench"]
    done = subprocess.run(
        [*command, "smoke", str(rounds), "10%", tmp_path / "out", "steps=3"], capture_output=True, text=True,
        env={**os.environ, "LOG": str(log), "WORD": "SAME", "CODE": "0", **settings},
    )  # fmt: skip
    return done, log.read_text().splitlines()


def test_sides_are_measured_in_turns_and_judged_by_the_base(tmp_path: Path) -> None:
    done, calls = compared(tmp_path, 3)
    assert done.returncode == 0, done.stderr
    assert [call.split()[0] for call in calls] == ["base", "head", "head", "base", "base", "head", "base"]
    assert calls[2] == f"head sweep smoke --set steps=3 --repeats 2 --results {tmp_path}/out/head --quiet"
    assert calls[-1] == f"base compare {tmp_path}/out/base {tmp_path}/out/head --fail-on-regression 10%"
    assert "1 cell: 1 SAME" in (tmp_path / "out" / "comment.md").read_text()


def test_a_sweep_that_cannot_begin_ends_it_before_anything_is_compared(tmp_path: Path) -> None:
    done, calls = compared(tmp_path, 2, SWEEP="2")
    assert done.returncode == 2
    assert len(calls) == 1


@pytest.mark.slow
def test_two_installations_of_zobench_are_compared(tmp_path: Path) -> None:
    calibrate(tmp_path / "cache", str(fingerprint_without_torch().machine))
    environment = {**os.environ, "ZOBENCH_CACHE_DIR": str(tmp_path / "cache" / "results")}
    zobench = str(Path(sys.executable).with_name("zobench"))
    matrix = tmp_path / "tiny.toml"
    # 3 steps a side, of which no test makes a verdict: a busy machine cannot fail it
    base = 'model = "opt-tiny"\nseq_len = 16\nsteps = 3\nwarmup = 1\n'
    matrix.write_text(f'[base]\n{base}[[variants]]\nengine = "resident"\n')
    command = [str(ROOT / "action" / "compare"), zobench, zobench, str(matrix), "1", "100%", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr
    comment = (tmp_path / "out" / "comment.md").read_text()
    assert "opt-tiny resident" in comment
    assert "1 AMBIGUOUS" in comment
    assert comment.count("```") == 2
