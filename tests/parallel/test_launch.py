"""Where ranks and machines meet, and which are refused before they start; and what they tell each other."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tests.support.processes import free_port
from zobench.machine.network import interface_of, socket_interface
from zobench.parallel import world as worlds
from zobench.parallel.launch import Meeting
from zobench.parallel.mesh import Mesh
from zobench.parallel.traffic import Traffic
from zobench.parallel.world import World, check_ranks
from zobench.runspec import RunSpec


def test_a_machine_meets_the_first_one_of_its_own_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not that of the run before, whose store may still be there, nor one that has ended its run."""
    monkeypatch.setenv("ZOBENCH_PEER_TIMEOUT", "1")
    endpoint = f"127.0.0.1:{free_port()}"
    first = Meeting(run="a", nodes=2, endpoint=endpoint)
    assert (first.node, Meeting(run="a", nodes=2, endpoint=endpoint).node) == (0, 1)
    with pytest.raises(ValueError, match=f"`nodes=2` machines must meet at {endpoint}, but one more has come; give"):
        Meeting(run="a", nodes=2, endpoint=endpoint)
    late = f"the first machine must answer at {endpoint}, but none did within 1 s"
    with pytest.raises(OSError, match=late):
        Meeting(run="b", nodes=2, endpoint=endpoint)
    first.shutdown()
    with pytest.raises(OSError, match=late):
        Meeting(run="a", nodes=2, endpoint=endpoint)


def test_a_name_for_this_machine_in_either_family_leads_to_its_interface() -> None:
    assert interface_of("127.0.1.1") == "lo"  # Debian's own host name
    assert interface_of("192.0.2.1") is None  # nobody's
    if Path("/proc/net/if_inet6").exists():
        assert interface_of("::1") == "lo"  # where localhost may lead first
    assert interface_of("2001:db8::1") is None
    assert socket_interface("NCCL", "eth0") == ("NCCL_SOCKET_IFNAME", "=eth0")  # eth01 is another one
    assert socket_interface("GLOO", "eth0") == ("GLOO_SOCKET_IFNAME", "eth0")


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ((0, 2, 0, 2), "`gpus=4` needs as many ranks, but got 2; start it with torchrun --nproc-per-node 2, or through "
         "zobench"),
        ((1, 4, 0, 1), "`gpus=4, nodes=2` needs 2 ranks on each node, one after another, but rank 1 is number 0 of 1 "
         "on its node; use torchrun --nnodes 2 --nproc-per-node 2"),
    ],
)  # fmt: skip
def test_ranks_that_do_not_make_the_mesh_are_refused(numbers, said, monkeypatch) -> None:
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    for name, number in zip(names, numbers, strict=False):
        monkeypatch.setenv(name, str(number))
    with pytest.raises(ValueError, match=re.escape(said)):
        check_ranks(RunSpec(model="opt-tiny", parallel="2d", gpus=4, nodes=2, batch_size=4))


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
