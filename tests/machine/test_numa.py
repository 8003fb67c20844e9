"""NUMA: which CPUs are near a GPU, on a fake /sys; the threads that fill the tier stay there, the caller's does not."""

import os
import threading
import types
from pathlib import Path

import pytest
import torch

from tests.support.files import written
from tests.support.watched import before
from zobench import Engine, EngineConfig, models
from zobench.engine import build
from zobench.engine.weights.tiers import HostTier
from zobench.machine import accelerator
from zobench.models.weights import RandomWeights

GPU = "0000:c1:00.0"

pytestmark = pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="the system has no CPU affinity")


@pytest.fixture(autouse=True)
def _gpu(monkeypatch):
    """A GPU at 0000:c1:00.0, and a process that may use CPUs 0 to 23."""
    places = types.SimpleNamespace(pci_domain_id=0, pci_bus_id=0xC1, pci_device_id=0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: places)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(24)))


def tree(root: Path, node: str = "1", nodes: tuple[str, ...] = ("0-7,16-23", "8-15,24-31")) -> str:
    files = {f"bus/pci/devices/{GPU}/numa_node": node, "devices/system/node/has_cpu": "0-1"}
    files |= {f"devices/system/node/node{n}/cpulist": cpus for n, cpus in enumerate(nodes)}
    for name, text in files.items():
        written(root / "sys" / name, f"{text}\n")
    return str(root)


@pytest.mark.parametrize(("node", "cpus"), [("0", {*range(8), *range(16, 24)}), ("1", set(range(8, 16)))])
def test_the_cpus_of_the_gpus_node_that_this_process_may_use(tmp_path, node, cpus):
    assert accelerator.cpus_near("cuda:0", tree(tmp_path, node)) == cpus


@pytest.mark.parametrize(
    ("device", "node", "nodes"),
    [
        ("cpu", "1", ("0-3", "4-7")),
        ("cuda:0", "0", ("0-7",)),  # one node: everything is near
        ("cuda:0", "-1", ("0-3", "4-7")),  # the firmware does not say
        ("cuda:0", "1", ("0-23", "24-31")),  # all of its CPUs are forbidden here
    ],
)
def test_none_where_there_is_nothing_to_choose(tmp_path, device, node, nodes):
    assert accelerator.cpus_near(device, tree(tmp_path, node, nodes)) is None


def test_the_threads_that_fill_the_tier_stay_near_and_the_caller_does_not_move(monkeypatch):
    monkeypatch.undo()
    allowed = os.sched_getaffinity(0)
    near = frozenset([max(allowed)])
    seen, note = [], lambda *_: seen.append((threading.get_ident(), os.sched_getaffinity(0)))
    monkeypatch.setattr(build, "cpus_near", lambda device: near)
    before(monkeypatch.setattr, HostTier, "fill", note)
    model = models.build("opt-tiny", "fp32")
    with Engine(model, EngineConfig(), weights=RandomWeights(model, 0)):
        assert os.sched_getaffinity(0) == allowed
    assert len(seen) == 3
    assert all(cpus == near and thread != threading.get_ident() for thread, cpus in seen)
