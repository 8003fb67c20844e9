"""One Slurm for all tests of this folder, and a results folder on a machine whose rates are known."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support import cluster
from tests.support.rates import calibrate
from tests.support.site import Site
from zobench.measure.environment import fingerprint_without_torch

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment in which Slurm's commands find a running cluster of two nodes of four CPUs, both this machine."""
    if why := cluster.missing():
        pytest.skip(why)
    with cluster.running(tmp_path_factory.mktemp("slurm")) as config:
        env = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "SBATCH"))}
        yield {**env, "SLURM_CONF": str(config), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "COLUMNS": "160"}


@pytest.fixture
def site(slurm: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Site]:
    """Makes a folder whose matrix has so many tiny cells."""

    monkeypatch.setenv("SLURM_CONF", slurm["SLURM_CONF"])

    def make(count: int, **base: object) -> Site:
        values = {"model": "opt-tiny", "seq_len": 16, "steps": 2, "warmup": 0, **base}
        rows = [f"{key} = {json.dumps(value)}" for key, value in values.items()]
        text = "\n".join(['title = "Tiny cells"', "[base]", *rows, "[axes]", f"seed = {list(range(count))}"])
        (tmp_path / "cells.toml").write_text(text)
        calibrate(tmp_path, fingerprint_without_torch().machine)
        return Site(tmp_path, slurm)

    return make
