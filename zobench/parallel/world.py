"""The ranks of a run and how scalars go between them: torch.distributed, joined from the environment of torchrun."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

from zobench.machine.accelerator import Accelerator
from zobench.machine.device import check_devices
from zobench.machine.network import LIBRARIES, address_towards, interface_of, socket_interface
from zobench.parallel.mesh import Mesh
from zobench.parallel.traffic import Traffic
from zobench.runspec import RunSpec

TIMEOUT = 600.0
"""Seconds that a rank waits for another; ``ZOBENCH_PEER_TIMEOUT`` changes it."""

GONE = "another rank of the run is gone"
"""How a :class:`PeerGoneError` begins: what a rank says that has only seen another one's end."""


class PeerGoneError(ConnectionError):
    """Another rank ended, or was silent for too long."""


@dataclass(frozen=True, kw_only=True, slots=True)
class World:
    """This rank and the others. ``local_rank`` of ``local_ranks`` on this machine. ``groups``: of the ranks that differ
    from it in the mesh's inner dimension alone, and in its outer one. ``reducing``: the group of all ranks
    whose backend adds up tensors on their devices, as NCCL does; None where scalars are gathered through host memory.
    ``traffic``: of scalars alone. ``links``: groups whose kernels run on the devices beside those of ``reducing``."""

    mesh: Mesh
    local_rank: int
    local_ranks: int
    device: str
    groups: tuple[Any, Any]
    traffic: Traffic
    reducing: Any = None
    links: list[Any] = field(default_factory=list)

    @property
    def rank(self) -> int:
        return self.mesh.rank

    @property
    def leads(self) -> bool:
        """Whether this is the rank that prints and keeps."""
        return self.mesh.rank == 0

    def gather(self, row: Tensor) -> Tensor:
        """The rows of all ranks in their order, (ranks, n), each of which has a ``row`` of n numbers (on the CPU).

        Where the backend has an all_reduce of tensors on the device (DistZO2, section 5.1), each rank fills its row of
        a table of zeros and all tables are added: a number plus zeros is that number in any order, so that all ranks
        have the same bits. Kernels of two of NCCL's communicators may each wait for what the other's device has no room
        for (NCCL's guide, "Using multiple NCCL communicators concurrently"), so those of ``links`` end first; the next
        are issued once the host has the sums. Otherwise they go to the first of each inner group, from those to rank 0,
        and from there to all: two messages a rank, and with pairs inside a machine few leave it. (Gloo's all_reduce of
        as much sends nine times the bytes among four ranks.)
        """
        if self.reducing is not None:
            table = torch.zeros(dist.get_world_size(), *row.shape, dtype=row.dtype, device=self.device)
            table[self.rank] = row
            if self.links:
                Accelerator(self.device).synchronize()
            self.traffic.given += table.nbytes
            with peer_errors():
                dist.all_reduce(table, group=self.reducing)
            return table.cpu()
        rows, leads = row[None], True
        with peer_errors():
            for group in self.groups:
                if leads:
                    leads = dist.get_rank(group) == 0
                    gathered = [torch.empty_like(rows) for _ in range(dist.get_world_size(group))] if leads else None
                    dist.gather(rows, gathered, group=group, group_dst=0)
                    rows = torch.cat(gathered) if gathered is not None else rows
            table = rows if leads else row.new_empty(dist.get_world_size(), len(row))
            dist.broadcast(table, src=0)
        return table

    def sum(self, table: Tensor) -> Tensor:
        """The sum over all ranks of ``table`` (on the CPU), the same on each of them."""
        return self.gather(table.flatten()).sum(0).view_as(table)

    def from_first(self, values: Sequence[int]) -> list[int]:
        """Rank 0's ``values``, of which each rank has as many (DistZO2, section 5: the seed is broadcast)."""
        table = torch.tensor(values, dtype=torch.int64)
        with peer_errors():
            dist.broadcast(table, src=0)
        return [int(value) for value in table]

    def barrier(self) -> None:
        """Returns when all ranks have come here."""
        self.sum(torch.zeros(1, dtype=torch.float64))


@contextmanager
def peer_errors() -> Iterator[None]:
    """Inside, a lost or silent rank raises :class:`PeerGoneError`, one line."""
    try:
        yield
    except RuntimeError as error:  # Gloo and NCCL have no errors of their own
        text = " ".join(str(error).split())
        raise PeerGoneError(f"{GONE}, or was silent for {timeout():g} s: {text}") from error


def timeout() -> float:
    return float(os.environ.get("ZOBENCH_PEER_TIMEOUT", TIMEOUT))


_joined: list[World] = []
"""The world of this process, once it has one: torch.distributed keeps one for a process too."""


@contextmanager
def join(spec: RunSpec) -> Iterator[World]:
    """Joins the ranks of ``spec`` (resolved) as torchrun started them, and leaves them at the end; once in a process.
    Inside, to join again is to get the same world.

    Raises ``ValueError`` if this process is no rank, or one of other ranks than ``spec`` needs.
    """
    check_ranks(spec)
    if _joined:
        assert _joined[0].mesh == Mesh.of(spec, _joined[0].rank), "a process is a rank of one run"
        yield _joined[0]
        return
    device = rank_device(spec)
    if (interface := interface_of(address_towards(os.environ["MASTER_ADDR"]))) is not None:
        for library in LIBRARIES:
            os.environ.setdefault(*socket_interface(library, interface))
    with peer_errors():
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if device.startswith("cuda") else "gloo", store=meeting_place(),
            rank=int(os.environ["RANK"]), world_size=spec.gpus, timeout=timedelta(seconds=timeout()),
        )  # fmt: skip
    try:
        _joined.append(world_of(spec, device))
        yield _joined[0]
    finally:
        _joined.clear()
        dist.destroy_process_group()


@functools.cache
def meeting_place() -> Store:
    """The store that torchrun's agent keeps for this rank and the others, apart for each start of the ranks: what an
    attempt has left there would lead the next one astray. Raises ``PeerGoneError`` if it does not answer."""
    environment = os.environ
    with peer_errors():
        store = TCPStore(
            environment["MASTER_ADDR"], int(environment["MASTER_PORT"]), timeout=timedelta(seconds=timeout()),
            is_master=environment.get("TORCHELASTIC_USE_AGENT_STORE") != "True" and environment["RANK"] == "0",
            wait_for_workers=False,
        )  # fmt: skip
    return PrefixStore(f"attempt {environment.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)


def check_ranks(spec: RunSpec) -> None:
    """Raises ``ValueError`` unless this process is one of the ranks that ``spec`` needs, in torchrun's order: those of
    a machine follow each other, so that the pairs of a mesh are neighbours."""
    named = [int(os.environ.get(name, "0")) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")]
    rank, count, local_rank, local = named
    needed = spec.gpus // spec.nodes
    if count != spec.gpus:
        raise ValueError(
            f"`gpus={spec.gpus}` needs as many ranks, but got {count or 'no torchrun'}; start it with "
            f"torchrun --nproc-per-node {needed}, or through zobench"
        )
    if local != needed or rank % local != local_rank:
        raise ValueError(
            f"`gpus={spec.gpus}, nodes={spec.nodes}` needs {needed} ranks on each node, one after another, but rank "
            f"{rank} is number {local_rank} of {local} on its node; use torchrun --nnodes {spec.nodes} "
            f"--nproc-per-node {needed}"
        )


def rank_device(spec: RunSpec) -> str:
    """This rank's device. Raises ``ValueError`` if it is not there."""
    if not spec.device.startswith("cuda"):
        return spec.device
    check_devices(spec)
    device = f"cuda:{os.environ['LOCAL_RANK']}"
    Accelerator(device).make_current()
    return device


def world_of(spec: RunSpec, device: str) -> World:
    """The ranks, joined already, on the mesh of ``spec``."""
    mesh = Mesh.of(spec, dist.get_rank())
    return World(
        mesh=mesh, local_rank=int(os.environ["LOCAL_RANK"]), local_ranks=int(os.environ["LOCAL_WORLD_SIZE"]),
        device=device, groups=_groups(mesh), traffic=Traffic(),
        reducing=group(tuple(range(spec.gpus)), "nccl", "scalars") if device.startswith("cuda") else None,
    )  # fmt: skip


def _groups(mesh: Mesh) -> tuple[Any, Any]:
    """The group of this rank's row of the mesh, and that of its column. (Those of torch's DeviceMesh would wait half an
    hour for a silent rank, whatever the timeout.)"""
    table = torch.arange(mesh.shards * mesh.signs).view(mesh.shape)
    row, column = divmod(mesh.rank, mesh.shape[1])
    inner, outer = (group(tuple(ranks.tolist()), "gloo", "scalars") for ranks in (table[row], table[:, column]))
    return inner, outer


@functools.cache
def group(members: tuple[int, ...], backend: str, use: str) -> Any:
    """The process group of these ranks, of which this is one, for one use: two threads may not share a group.

    Made once in a process, and closed when that leaves.
    """
    patience = timedelta(seconds=timeout())
    with peer_errors():
        return dist.new_group(list(members), timeout=patience, backend=backend, use_local_synchronization=True)
