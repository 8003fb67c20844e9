"""Where ranks and machines meet, and which are refused before they start."""

import re
from pathlib import Path

import pytest

from tests.support.processes import free_port
from zobench.machine.network import interface_of, socket_interface
from zobench.parallel.launch import Meeting
from zobench.parallel.world import check_ranks
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
