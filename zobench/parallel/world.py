"""The ranks of a run and how scalars go between them: torch.distributed, joined from the environment of torchrun."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from zobench.parallel.mesh import Mesh
from zobench.spec import RunSpec

TIMEOUT = 600.0
"""Seconds that a rank waits for another; ``ZOBENCH_PEER_TIMEOUT`` changes it."""


class PeerGoneError(RuntimeError):
    """Another rank ended, or was silent for too long."""


@dataclass(frozen=True, kw_only=True, slots=True)
class World:
    """This rank and the others. ``local_rank`` of ``local_ranks`` on this machine. Scalars go through host memory on
    Gloo, also beside NCCL: a loss is on the host when it is known, and needs no kernel to travel."""

    mesh: Mesh
    local_rank: int
    local_ranks: int
    device: str
    devices: DeviceMesh

    @property
    def rank(self) -> int:
        """This rank among all."""
        return self.mesh.rank

    @property
    def leads(self) -> bool:
        """Whether this is the rank that prints and keeps."""
        return self.mesh.rank == 0

    def sum(self, table: Tensor) -> Tensor:
        """The sum over all ranks of ``table`` (float64, on the CPU), in place: first inside, then between the groups.

        Where each entry is filled by one rank and 0 on the others, as here, no order of the sum rounds.
        """
        with telling():
            for name in reversed(self.mesh.order):
                dist.all_reduce(table, group=self.devices.get_group(name))
        return table

    def from_first(self, values: Sequence[int]) -> list[int]:
        """Rank 0's ``values``, of which each rank has as many (DistZO2, section 5: the seed is broadcast)."""
        table = torch.tensor(values, dtype=torch.int64)
        with telling():
            dist.broadcast(table, src=0)
        return [int(value) for value in table]

    def barrier(self) -> None:
        """Returns when all ranks have come here."""
        self.sum(torch.zeros(1, dtype=torch.float64))


@contextmanager
def telling() -> Iterator[None]:
    """Inside, a lost or silent rank raises :class:`PeerGoneError`, one line."""
    try:
        yield
    except RuntimeError as error:  # Gloo and NCCL have no errors of their own
        text = " ".join(str(error).split())
        raise PeerGoneError(f"another rank of the run is gone, or was silent for {timeout():g} s: {text}") from error


def timeout() -> float:
    """Seconds that a rank waits for another."""
    return float(os.environ.get("ZOBENCH_PEER_TIMEOUT", TIMEOUT))


@contextmanager
def join(spec: RunSpec) -> Iterator[World]:
    """Joins the ranks of ``spec`` (resolved) as torchrun started them; leaves them at the end, once in a process.

    Raises ``ValueError`` if this process is no rank, or one of another number of ranks.
    """
    count = int(os.environ.get("WORLD_SIZE", "0"))
    if count != spec.gpus:
        raise ValueError(
            f"`gpus={spec.gpus}` needs as many ranks, but got {count or 'no torchrun'}; start it with "
            f"torchrun --nproc-per-node {spec.gpus // spec.nodes}, or through zobench"
        )
    cuda = spec.device.startswith("cuda")
    device = f"cuda:{os.environ['LOCAL_RANK']}" if cuda else spec.device
    if cuda:
        torch.cuda.set_device(device)
    with telling():
        dist.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo", timeout=timedelta(seconds=timeout()))
    try:
        yield world_of(spec, device)
    finally:
        dist.destroy_process_group()


def world_of(spec: RunSpec, device: str) -> World:
    """The ranks, joined already, on the mesh of ``spec``."""
    mesh = Mesh.of(spec, dist.get_rank())
    with telling():
        devices = init_device_mesh("cpu", mesh.shape, mesh_dim_names=mesh.order)
    return World(
        mesh=mesh, local_rank=int(os.environ["LOCAL_RANK"]), local_ranks=int(os.environ["LOCAL_WORLD_SIZE"]),
        device=device, devices=devices,
    )  # fmt: skip
