"""The environment: publishable, the same id with and without torch, honest about the source."""

import getpass
import json
import os
import socket
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from tests.support.files import written
from zobench.machine.nvml import Nvml
from zobench.measure import environment

SOURCE = Path(__file__).resolve().parents[2]


def test_names_no_host_no_user_no_path():
    facts = environment.environment("cpu").to_dict()
    text = json.dumps(facts)
    values = [json.dumps(value) for value in leaves(facts)]
    for secret in (socket.gethostname(), getpass.getuser(), str(Path.home().name)):
        assert not secret or f'"{secret}"' not in values
    for path in (os.getcwd(), str(SOURCE), sys.prefix, str(Path.home())):
        assert len(path) < 3 or path not in text
    assert not any('"/' in value for value in values)
    assert json.loads(text) == facts


def leaves(value):
    if isinstance(value, dict):
        return [leaf for item in value.values() for leaf in leaves(item)]
    return [leaf for item in value for leaf in leaves(item)] if isinstance(value, list) else [value]


def test_same_id_with_and_without_torch():
    code = (
        "import sys; from zobench.measure.environment import fingerprint_without_torch as f;"
        "print(f().machine, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=SOURCE, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [environment.environment("cpu").machine, "False"]


def test_gpu_machine_is_named_after_its_gpu(fake_nvml, monkeypatch):
    monkeypatch.setattr(environment, "machine_bytes", lambda: 126 * 2**30)
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    facts = environment.fingerprint_without_torch(Nvml(fake_nvml()))
    assert facts.machine.startswith("h200-16c-")
    assert facts.description == "NVIDIA H200 150 GB, 16 cores, 128 GiB"


@pytest.mark.parametrize(("shown", "nominal"), [(23.5, 24), (251.6, 256), (503.2, 512), (7.6, 8), (15.5, 16), (1.9, 2)])
def test_memory_is_rounded_to_what_was_bought(shown, nominal):
    assert environment.nominal_gib(int(shown * 2**30)) == nominal


def test_source_is_known_only_for_a_checkout_of_zobench(tmp_path, monkeypatch):
    assert environment.source(tmp_path) is None

    def git(*arguments):
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True)

    git("init")
    written(tmp_path / "zobench" / "a.py", "")
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "other"\n')
    git("add", ".")
    git("commit", "-m", "x")
    assert environment.source(tmp_path) is None
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "zobench"\n')
    facts = environment.source(tmp_path)
    assert len(facts["commit"]) == 40
    assert facts["dirty"] is True
    git("commit", "-am", "y")
    (tmp_path / "results.json").write_text("")  # results do not make the source dirty
    assert environment.source(tmp_path)["dirty"] is False
    monkeypatch.setenv("PATH", "")
    assert environment.source(tmp_path) is None


def test_source_of_what_pip_installed_from_a_repository_is_its_commit(tmp_path, monkeypatch):
    package = metadata.PathDistribution(tmp_path / "zobench-1.dist-info")
    monkeypatch.setattr(environment.metadata, "distribution", lambda _: package)
    assert environment.source(tmp_path) is None
    written(tmp_path / "zobench-1.dist-info" / "direct_url.json", '{"vcs_info": {"commit_id": "abc"}}')
    assert environment.source(tmp_path) == {"commit": "abc", "dirty": False}
    assert environment.source(tmp_path / "elsewhere") is None
