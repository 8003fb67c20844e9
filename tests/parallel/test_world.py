"""Scalars on the devices: in which order with the blocks' slices, and how many bytes."""

from types import SimpleNamespace

import torch

from zobench.parallel import world as worlds
from zobench.parallel.mesh import Mesh
from zobench.parallel.traffic import Traffic
from zobench.parallel.world import World
from zobench.runspec import RunSpec


def gathered(monkeypatch, links):
    """What a rank of two does to gather a row by an all_reduce that has nothing of the other's, and what it sent."""
    done = []
    monkeypatch.setattr(worlds.dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(worlds.dist, "all_reduce", lambda table, group: done.append(("all_reduce", group)))
    monkeypatch.setattr(
        worlds, "Accelerator", lambda device: SimpleNamespace(synchronize=lambda: done.append(("synchronize", device)))
    )
    spec = RunSpec(model="opt-tiny", engine="offload", gpus=2, parallel="pertp", batch_size=2)
    world = World(mesh=Mesh.of(spec, 1), local_rank=1, local_ranks=2, device="cpu", groups=(), traffic=Traffic(),
                  reducing="scalars", links=links)  # fmt: skip
    with world.traffic:
        table = world.gather(torch.tensor([1.5, -2.0], dtype=torch.float64))
    assert table.tolist() == [[0.0, 0.0], [1.5, -2.0]]
    return done, world.traffic.taken


def test_slices_of_blocks_end_before_scalars_are_added_up_and_these_are_counted(monkeypatch):
    """Two communicators of NCCL at work on one device can wait for each other for ever."""
    done, sent = gathered(monkeypatch, ["slices"])
    assert done == [("synchronize", "cpu"), ("all_reduce", "scalars")]
    assert sent == [2 * 2 * 8]
    assert gathered(monkeypatch, [])[0] == [("all_reduce", "scalars")]
