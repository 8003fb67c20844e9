"""One Slurm for all tests of this folder, and a results folder on a machine whose rates are known."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support import cluster
from tests.support.site import Site


@pytest.fixture(scope="session")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment in which Slurm's commands find a running cluster of two nodes of four CPUs, both this machine."""
    if why := cluster.missing():
        pytest.skip(why)
    with cluster.running(tmp_path_factory.mktemp("slurm")) as config:
        env = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "SBATCH"))}
        yield {**env, "SLURM_CONF": str(config)}


@pytest.fixture
def site(slurm: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Site]:
    """Makes a folder whose matrix has so many tiny cells."""
    monkeypatch.setenv("SLURM_CONF", slurm["SLURM_CONF"])
    return lambda count, **base: Site.of(tmp_path, count, slurm, **base)
