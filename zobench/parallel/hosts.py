"""One copy of the streamed weights per node, in host memory that its ranks share; whole or sliced transfers of it.

Each rank owns a page-aligned 1/n of every block (DistZO2, section 6.1, "thread-aligned memory partitioning"): it is the
first to touch that part and the only one to write it back. With *sliced* transfers it also uploads only that part, and
the ranks give each other theirs on the fast link; nobody reads what another has written back. With *whole* transfers
each rank uploads all parts, so ranks have to wait for each other:

- an upload waits until every rank has written its part back as often as this one;
- a write-back waits until every rank has uploaded the block as often as this one.

*Naive* transfers are whole both ways (section 6.1, "naive ZO2 offloading"; table 2 without CommOpt): each rank writes
its whole copy back, and as all copies are equal, so is what they leave.

All ranks make the same transfers of a block in the same order (the same schedule over the same points and entries), so
an upload finds exactly what the last write-backs left, all of it and nothing newer. No rank waits for ever: each wait,
as each edge of a schedule and each exchange of losses, is for something that comes before in the order in which every
rank issues its operations, a lane runs its own in that order, and the issuing thread waits only for earlier ones too.
Of all operations that are not done, take the first of that order, on any rank: all it waits for is done, and so is all
that is ahead of it in its lane, so it runs. A gather is the same operation on all ranks at once, for which this holds
too.

Reading weights outside of the lanes (``Tier.read``) is one more such transfer: all ranks read, in the same order.
"""

from __future__ import annotations

import functools
import mmap
import os
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from zobench.machine.accelerator import Accelerator
from zobench.machine.directio import ALIGNMENT, ask_for_huge_pages
from zobench.machine.nvml import Nvml
from zobench.parallel.world import PeerGoneError, World, group, peer_errors, timeout
from zobench.runspec import RunSpec
from zobench.runspec.kinds import ENGINES, TIERS

if TYPE_CHECKING:
    from zobench.engine.weights.tiers import Tier

PAGE = max(mmap.PAGESIZE, ALIGNMENT)
TOUCHED, FILLED, UPLOADS, WRITES = range(4)
"""The counts of each block that each rank keeps in the shared memory."""
NAP = 5e-5
"""Seconds between two looks at another rank's count; a block's transfer takes milliseconds."""


def part_of(nbytes: int, rank: int, ranks: int) -> tuple[int, int]:
    """First byte, and the one after the last, of a rank's part of a block of ``nbytes``, padded for ``ranks``."""
    part = nbytes // ranks
    return rank * part, (rank + 1) * part


def transfers(spec: RunSpec, local_ranks: int) -> tuple[str, str]:
    """How the ranks of a node move the streamed weights of ``spec`` (resolved), and why, in a line for a result.

    "sliced", "whole" or "naive" from one shared copy, or "own": each rank has a copy of its own. The same on all ranks.
    """
    if not ENGINES[spec.engine].is_streamed or local_ranks == 1:
        return "own", ""
    if TIERS[spec.tier].is_file:
        return "own", f"transfers: each rank has a file of its own, because tier={spec.tier} is not shared"
    if not hasattr(os, "memfd_create"):
        return "own", "transfers: each rank has a copy of its own, because this system has no memfd_create"
    if spec.transfers != "auto":
        return spec.transfers, f"transfers: {spec.transfers}, as asked"
    slow = "processes on a CPU have no link but its memory"
    if spec.device.startswith("cuda"):
        slow = _slow_pair(local_ranks, Nvml())
    kind = "whole" if slow else "sliced"
    return kind, f"transfers: {kind}, because {slow or 'all GPUs of the node are linked as peers'}"


def _slow_pair(count: int, nvml: Nvml) -> str:
    """Which two of the node's first ``count`` GPUs have no fast link between them, or ""."""
    devices = [Accelerator(f"cuda:{index}") for index in range(count)]
    handles = [nvml.handle(device.uuid()) for device in devices]
    for a in range(count):
        for b in range(count):
            if a == b:
                continue
            if not devices[a].reaches(b):
                return f"cuda:{a} cannot access cuda:{b}"
            if None not in (handles[a], handles[b]):
                status = nvml.ask("peer links", "nvmlDeviceGetP2PStatus", handles[a], handles[b], 2)  # 2: NVLink
                if status:
                    return f"cuda:{a} and cuda:{b} have no NVLink between them"
    return ""


def hosts_for(spec: RunSpec, world: World) -> SharedHosts | None:
    """The memory that the ranks of this node share for ``spec`` (resolved); None where each has its own.

    Every rank must call it, and build the same engines with what it returns, in the same order.
    """
    kind, _ = transfers(spec, world.local_ranks)
    if kind == "own":
        return None
    return SharedHosts(world, sliced=kind == "sliced", naive=kind == "naive", coordinated=spec.weights != "shared")


class SharedHosts:
    """Implements :class:`~zobench.engine.weights.tiers.Hosts` for the ranks of one node.

    ``coordinated`` is off where several layers share a block (weights=shared): its values mean nothing then, and ranks
    do not wait for each other.
    """

    def __init__(self, world: World, *, sliced: bool, naive: bool = False, coordinated: bool = True) -> None:
        self._rank, self._ranks = world.local_rank, world.local_ranks
        first = world.rank - world.local_rank
        members = tuple(range(first, first + world.local_ranks))
        self._talk = group(members, "gloo", "blocks")
        self._link = self._talk
        if sliced and world.device.startswith("cuda"):
            self._link = group(members, "nccl", "blocks")
            world.links.append(self._link)
        self._sliced, self._naive, self._coordinated = sliced, naive, coordinated
        self.waits = coordinated and not sliced

    def padded(self, nbytes: int) -> int:
        """``nbytes`` up to a whole number of pages for each rank."""
        step = PAGE * self._ranks
        return -(-nbytes // step) * step

    def any(self, flags: list[bool]) -> list[bool]:
        """Where this rank or another of the node has True."""
        table = torch.tensor(flags, dtype=torch.int32)
        with peer_errors():
            dist.all_reduce(table, dist.ReduceOp.MAX, group=self._talk)
        return [bool(flag) for flag in table]

    def tier(self, sizes: list[int], *, pinned: bool, device: str) -> Tier:
        """A tier of blocks of these sizes, of which every rank maps the same memory."""
        counts = 4 * len(sizes) * self._ranks * 8
        head = -(-counts // PAGE) * PAGE
        memory = self._map(head + sum(sizes))
        table = memory[:counts].view(torch.int64).view(4, len(sizes), self._ranks)
        blocks = list(memory[head:].split(sizes))
        gather = functools.partial(_gather, self._link) if self._sliced else None
        return SharedTier(
            blocks, Counts(table, self._rank), gather, coordinated=self._coordinated, pinned=pinned, device=device,
            naive=self._naive,
        )  # fmt: skip

    def _map(self, nbytes: int) -> Tensor:
        """Maps ``nbytes`` of zeros that all ranks share, and that are gone when the last of them has ended.

        The memory is a file without a name, so no limit of /dev/shm applies. The others open it through /proc.
        """
        leads = self._rank == 0
        file = os.memfd_create("zobench") if leads else -1
        if leads:
            os.ftruncate(file, nbytes)
        facts = torch.tensor([os.getpid(), file, nbytes, self._sliced], dtype=torch.int64)
        with peer_errors():
            dist.broadcast(facts, group=self._talk, group_src=0)
        pid, number, size, sliced = facts.tolist()
        if (size, sliced) != (nbytes, self._sliced):
            raise ValueError(
                f"ranks of one node must stream the same blocks, but got {size} and {nbytes} bytes, sliced "
                f"{bool(sliced)} and {self._sliced}; start them with the same spec"
            )
        if not leads:
            file = os.open(f"/proc/{pid}/fd/{number}", os.O_RDWR | os.O_CLOEXEC)
        pages = mmap.mmap(file, nbytes, flags=mmap.MAP_SHARED)
        ask_for_huge_pages(pages)
        with peer_errors():
            dist.barrier(group=self._talk)  # until all have opened it
        os.close(file)
        with torch.inference_mode(False):  # an inference tensor could not be written outside of that mode
            return torch.frombuffer(pages, dtype=torch.uint8)


_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
"""torch 2.13 names it anew and warns of the old name."""


def _gather(link: Any, slot: Tensor, part_of_rank: Tensor) -> None:
    """Makes ``slot`` whole on all ranks of the group ``link``, each of which holds ``part_of_rank`` of it in place."""
    with peer_errors():
        if slot.is_cuda:  # on the current stream, which the host does not wait for
            _all_gather(slot, part_of_rank, group=link)
            return
        # Gloo gathers into memory of its own, a block more on every rank; a broadcast works in place.
        parts = slot.split(part_of_rank.numel())
        sent = [dist.broadcast(part, group=link, group_src=n, async_op=True) for n, part in enumerate(parts)]
        for work in sent:
            work.wait()


class Counts:
    """How often each rank has done what, block by block: int64 (kinds, blocks, ranks) in shared memory, of which a rank
    writes its own column only."""

    def __init__(self, table: Tensor, rank: int) -> None:
        self._table, self.rank, self.ranks = table.numpy(), rank, table.shape[2]
        self._lock = threading.Lock()
        self._gone = False

    def close(self) -> None:
        """Lets go of the shared memory; there is nothing to count any more."""
        self._table = self._table[:0, :0, :0].copy()

    def publish(self, kind: int, block: int, count: int = 1) -> None:
        """Lets the others know, after everything that this rank has written to memory before."""
        self._fence()
        self._table[kind, block, self.rank] = count

    def wait(self, kind: int, block: int, count: int = 1, rank: int | None = None) -> None:
        """Returns when all ranks, or ``rank``, have told at least ``count``; raises :class:`PeerGoneError`, after which
        no wait is longer: this rank is to end."""
        row = self._table[kind, block] if rank is None else self._table[kind, block, rank : rank + 1]
        deadline = time.monotonic() + timeout()
        while (row < count).any():
            if self._gone or time.monotonic() > deadline:
                self._gone = True
                late = int((row < count).argmax()) if rank is None else rank
                raise PeerGoneError(
                    f"another rank of the run is gone, or was silent for {timeout():g} s: local rank {late} at block "
                    f"{block}"
                )
            time.sleep(NAP)
        self._fence()

    def _fence(self) -> None:
        """Orders memory accesses before and after it, on processors that would not by themselves: what comes before
        cannot pass the first release, what comes after not the second acquire."""
        for _ in range(2):
            with self._lock:
                pass  # a lock is taken for its acquire and its release alone


class SharedTier:
    """Blocks in shared memory: see the module's docstring. ``gather`` makes a slot whole; None: transfers are whole.
    ``written``: bytes that this rank has written back.

    With a CUDA device, sliced transfers are asynchronous on the current stream; whole ones are done on return.
    """

    note = ""

    def __init__(
        self, blocks: list[Tensor], counts: Counts, gather: Callable[[Tensor, Tensor], None] | None, *,
        coordinated: bool, pinned: bool, device: str, naive: bool = False,
    ) -> None:  # fmt: skip
        self._blocks, self._counts, self._gather, self._naive = blocks, counts, gather, naive
        self.written = 0
        self._coordinated, self._pinned, self._device = coordinated, pinned, device
        self._rank, self._ranks = counts.rank, counts.ranks
        self._uploads, self._writes = [0] * len(blocks), [0] * len(blocks)
        self._filled: set[int] = set()
        self._registered: list[Tensor] = []

    def fill(self, block: int, write: Callable[[Tensor], None]) -> None:
        """Block i is written by rank i mod n, after every rank has touched its part, which so lies near to it."""
        if block >= len(self._blocks):
            return
        memory = self._blocks[block]
        self._share_of(memory).zero_()
        self._counts.publish(TOUCHED, block)
        if self._pinned:
            self._pin(block)
        if block % self._ranks == self._rank:
            self._counts.wait(TOUCHED, block)
            write(memory)
            self._counts.publish(FILLED, block)

    def upload(self, block: int, slot: Tensor, first: int = 0) -> None:
        assert first == 0, "ranks share out whole blocks"
        block %= len(self._blocks)
        self._await_filling(block)
        memory = self._blocks[block]
        if self._gather is not None:
            part_of_rank = self._share_of(slot)
            part_of_rank.copy_(self._share_of(memory), non_blocking=True)
            self._gather(slot, part_of_rank)
        else:
            self._copy(block, slot)

    def read(self, block: int, out: Tensor) -> None:
        block %= len(self._blocks)
        self._await_filling(block)
        if self._gather is not None and self._coordinated:
            self._counts.publish(WRITES, block, self._writes[block])  # they are done, because the lanes are drained
        self._copy(block, out)

    def offload(self, block: int, slot: Tensor, first: int = 0) -> None:
        assert first == 0, "ranks share out whole blocks"
        block %= len(self._blocks)
        size = self._blocks[block].numel()
        first, last = (0, size) if self._naive else part_of(size, self._rank, self._ranks)
        last = min(last, slot.numel())
        if self._coordinated:
            self._counts.wait(UPLOADS, block, self._uploads[block])
        if first < last:
            self._blocks[block][first:last].copy_(slot[first:last], non_blocking=self._pinned)
            self.written += last - first
        if self._coordinated:
            self._writes[block] += 1
            if self._gather is None:
                self._settle(slot)
                self._counts.publish(WRITES, block, self._writes[block])

    def peek(self, block: int, out: Tensor, first: int) -> None:
        """Bytes of this rank's own part (:func:`part_of`) only: the others' may be a pass ahead."""
        memory = self._blocks[block % len(self._blocks)]
        begin, end = part_of(memory.numel(), self._rank, self._ranks)
        if not (begin <= first and first + out.numel() <= end):
            raise ValueError(
                f"a rank must peek at its own part of block {block}, bytes {begin} to {end}, but got {first} to "
                f"{first + out.numel()}; leave the rest to the other ranks"
            )
        self._await_filling(block % len(self._blocks))
        out.copy_(memory[first : first + out.numel()])

    def close(self) -> None:
        for memory in self._registered:
            Accelerator(self._device).unregister(memory)
        self._registered.clear()
        self._blocks = []
        self._counts.close()  # the last that holds the memory: it must not stay until the engine is collected

    def _copy(self, block: int, out: Tensor) -> None:
        """Copies all ranks' parts as the last write-backs left them."""
        if self._coordinated:
            self._counts.wait(WRITES, block, self._writes[block])
        parts = zip(out.split(self._part(block)), self._blocks[block].split(self._part(block)), strict=True)
        for target, source in parts:  # CUDA copies nothing that is pinned in part only, as with slices a block is
            target.copy_(source, non_blocking=True)
        if self._coordinated:
            self._settle(out)
            self._uploads[block] += 1
            self._counts.publish(UPLOADS, block, self._uploads[block])

    def _settle(self, slot: Tensor) -> None:
        """Waits for what the current stream copies: a count that is told must be true."""
        if slot.is_cuda:
            Accelerator(slot.device).current_stream().synchronize()

    def _await_filling(self, block: int) -> None:
        if block not in self._filled:
            self._counts.wait(FILLED, block, rank=block % self._ranks)
            self._filled.add(block)

    def _part(self, block: int) -> int:
        """Bytes that are copied at a time: a rank's part with sliced transfers, else the block."""
        return self._blocks[block].numel() // (1 if self._gather is None else self._ranks)

    def _share_of(self, block: Tensor) -> Tensor:
        first, last = part_of(block.numel(), self._rank, self._ranks)
        return block[first:last]

    def _pin(self, block: int) -> None:
        """Registers what this rank copies: its part, or with whole transfers the block, once all have touched it."""
        memory = self._share_of(self._blocks[block])
        if self._gather is None:
            self._counts.wait(TOUCHED, block)
            memory = self._blocks[block]
        Accelerator(self._device).register(memory)
        self._registered.append(memory)
