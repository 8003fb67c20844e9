"""Tiers: where the blocks rest while they are not in a slot: pageable or pinned host memory, or a file.

A tier copies whole flat blocks: ``upload`` into a slot on the device, ``offload`` back. ``fill`` writes a block's first
contents. With a CUDA device both copies are asynchronous on the current stream; on the CPU they are done on return.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

import torch
from torch import Tensor

from zobench.machine.accelerator import Accelerator
from zobench.machine.directio import CHUNK, DirectFile, aligned, memory_of

PIECE = CHUNK
"""Bytes of a piece: one request to a disk."""

Move = Callable[[memoryview, int], None]
"""Reads or writes so many bytes of a block, from the given one on."""


class Tier(Protocol):
    """One place for all blocks of a model. ``note``: what a reader of a measurement should know of it, or ""."""

    @property
    def note(self) -> str: ...

    def fill(self, block: int, write: Callable[[Tensor], None]) -> None:
        """Calls ``write`` with a uint8 CPU buffer for the block's contents and keeps them."""

    def upload(self, block: int, slot: Tensor, first: int = 0) -> None:
        """Copies the block, or as much of it from byte ``first`` on, into ``slot``, a uint8 buffer on the device."""

    def offload(self, block: int, slot: Tensor, first: int = 0) -> None:
        """Copies ``slot`` back, which may be only a part of the block, to its byte ``first`` and those that follow."""

    def peek(self, block: int, out: Tensor, first: int) -> None:
        """Copies bytes of the block, from ``first`` on, into ``out``, a page-aligned uint8 buffer on the CPU."""

    def read(self, block: int, out: Tensor) -> None:
        """Copies the block, as its last write-back left it, into ``out`` on the device, while no transfer runs."""
        self.upload(block, out)

    def close(self) -> None:
        """Frees the memory or removes the file."""


class Hosts(Protocol):
    """Host memory that the ranks on one machine share. ``waits``: transfers wait for other ranks, in threads."""

    waits: bool

    def padded(self, nbytes: int) -> int:
        """Bytes of a block at rest and of its slot, where it has ``nbytes``."""

    def any(self, flags: list[bool]) -> list[bool]:
        """Where this rank or another has True, of the lists that all of them give."""

    def tier(self, sizes: list[int], *, pinned: bool, device: str) -> Tier:
        """The tier of blocks of these (padded) sizes, one copy for all ranks; ``Tier.fill`` may leave a block to
        another rank."""


def allocate(nbytes: int, device: str = "cpu") -> Tensor:
    """A uint8 buffer. On the CPU: fresh zero pages of its own, page-aligned, returned to the system when freed."""
    with torch.inference_mode(False):  # an inference tensor could not be written outside of that mode
        if device != "cpu":
            return torch.empty(nbytes, dtype=torch.uint8, device=device)
        return aligned(nbytes)


def _keep_nothing(*_: object, **__: object) -> None:
    """The operation of a tier without memory: it does nothing."""


class NoTier:
    """Nothing is kept: for the meta device, where the engine runs to have its memory counted."""

    note = ""
    fill = upload = offload = peek = read = close = staticmethod(_keep_nothing)


class HostTier(Tier):
    """Blocks in host memory, one allocation each; ``pinned`` ones are registered with CUDA at their exact size.

    The framework's own pinned allocator rounds up to powers of two, which turns 350 GB of OPT-175B into some 600 GB.
    ``ring``: this many real blocks serve all layers in turn (weights=shared). ``device`` is who pins.
    """

    note = ""

    def __init__(self, sizes: list[int], *, pinned: bool, ring: int | None = None, device: str = "cuda") -> None:
        self._blocks = [allocate(size) for size in sizes[: ring or len(sizes)]]
        self._pinned, self._device = pinned, device
        self._registered: list[Tensor] = []

    def fill(self, block: int, write: Callable[[Tensor], None]) -> None:
        if block < len(self._blocks):
            memory = self._blocks[block]
            write(memory)
            if self._pinned:  # after the pages were touched, which is what registering would otherwise wait for
                Accelerator(self._device).register(memory)
                self._registered.append(memory)

    def upload(self, block: int, slot: Tensor, first: int = 0) -> None:
        slot.copy_(self._of(block)[first : first + slot.numel()], non_blocking=True)

    def offload(self, block: int, slot: Tensor, first: int = 0) -> None:
        self._of(block)[first : first + slot.numel()].copy_(slot, non_blocking=self._pinned)

    def peek(self, block: int, out: Tensor, first: int) -> None:
        out.copy_(self._of(block)[first : first + out.numel()])

    def close(self) -> None:
        for memory in self._registered:
            Accelerator(self._device).unregister(memory)
        self._registered.clear()
        self._blocks.clear()

    def _of(self, block: int) -> Tensor:
        return self._blocks[block % len(self._blocks)]


class Staging:
    """Pinned host memory between a device and a file: two pieces for one lane, one thread at a time, each half of the
    ``largest`` block, at most ``PIECE``. They take turns: while one is copied, the other is read or written. A copy of
    pageable memory would go through the driver's own pinned buffer and stop whoever issues it.

    Raises ``MemoryError`` where the device refuses to pin them.
    """

    def __init__(self, largest: int, device: str | torch.device) -> None:
        self._device = Accelerator(device)
        self._pieces = [allocate(min(largest // 2, PIECE)) for _ in range(2)]
        self._copied: list[torch.Event | None] = [None, None]
        self._pinned = list[Tensor]()
        try:
            for piece in self._pieces:
                self._device.register(piece)
                self._pinned.append(piece)
        except BaseException:
            self.close()  # what is registered must not be unmapped
            raise

    def upload(self, slot: Tensor, read: Move) -> None:
        """Fills ``slot``, a uint8 buffer on the device, with what ``read`` gives; returns when it is there."""
        for number, first, piece in self._parts(slot):
            self._wait(number)
            read(memory_of(piece), first)
            slot[first : first + piece.numel()].copy_(piece, non_blocking=True)
            self._mark(number)
        self._settle()

    def offload(self, slot: Tensor, write: Move) -> None:
        """Gives all bytes of ``slot`` to ``write``; returns when that has them."""
        before: tuple[int, int, Tensor] | None = None
        for number, first, piece in self._parts(slot):
            piece.copy_(slot[first : first + piece.numel()], non_blocking=True)
            self._mark(number)
            if before is not None:
                self._write(write, *before)
            before = number, first, piece
        if before is not None:
            self._write(write, *before)

    def close(self) -> None:
        """Waits for the copies and gives the memory back."""
        self._settle()
        for piece in self._pinned:
            self._device.unregister(piece)
        self._pinned.clear()
        self._pieces.clear()

    def _parts(self, slot: Tensor) -> Iterator[tuple[int, int, Tensor]]:
        """(which of the two, the first byte of the slot, a piece as long as what is left)."""
        size = self._pieces[0].numel()
        for count, first in enumerate(range(0, slot.numel(), size)):
            yield count % 2, first, self._pieces[count % 2][: slot.numel() - first]

    def _write(self, write: Move, number: int, first: int, piece: Tensor) -> None:
        self._wait(number)
        write(memory_of(piece), first)

    def _mark(self, number: int) -> None:
        self._copied[number] = self._device.mark(self._device.current_stream(), timed=False)

    def _wait(self, number: int) -> None:
        if (copied := self._copied[number]) is not None:
            copied.synchronize()
            self._copied[number] = None

    def _settle(self) -> None:
        for number in range(2):
            self._wait(number)


class DiskTier(Tier):
    """Blocks in one unlinked file, read and written with direct I/O where the file system allows it.

    With a CUDA device each lane copies through pinned pieces of its own and waits for them.
    """

    def __init__(self, sizes: list[int], folder: Path, *, ring: int | None = None) -> None:
        self._ring = ring or len(sizes)
        self._sizes = sizes[: self._ring]
        self._offsets = [sum(sizes[:block]) for block in range(self._ring)]
        self._staging: dict[str, Staging] = {}
        self._largest = max(sizes)
        self._file = DirectFile(folder / f"zobench-{os.getpid()}-{id(self)}.bin", sum(self._sizes))

    @property
    def note(self) -> str:
        """Why the page cache is not bypassed, or "" if it is."""
        return self._file.note

    def fill(self, block: int, write: Callable[[Tensor], None]) -> None:
        if block < self._ring:
            buffer = allocate(self._sizes[block])
            write(buffer)
            self._file.write_from(memory_of(buffer), self._offsets[block])

    def upload(self, block: int, slot: Tensor, first: int = 0) -> None:
        offset = self._offsets[block % self._ring] + first
        if slot.device.type == "cpu":
            self._file.read_into(memory_of(slot), offset)
        else:
            self._stage("upload", slot).upload(slot, lambda memory, begin: self._file.read_into(memory, offset + begin))

    def offload(self, block: int, slot: Tensor, first: int = 0) -> None:
        offset = self._offsets[block % self._ring] + first
        if slot.device.type == "cpu":
            self._file.write_from(memory_of(slot), offset)
        else:
            self._stage("offload", slot).offload(
                slot, lambda memory, begin: self._file.write_from(memory, offset + begin)
            )

    def peek(self, block: int, out: Tensor, first: int) -> None:
        self._file.read_into(memory_of(out), self._offsets[block % self._ring] + first)

    def close(self) -> None:
        for staging in self._staging.values():
            staging.close()
        self._staging.clear()
        self._file.close()

    def _stage(self, lane: str, slot: Tensor) -> Staging:
        if lane not in self._staging:
            self._staging[lane] = Staging(self._largest, slot.device)
        return self._staging[lane]


@dataclass(frozen=True, slots=True)
class Extent:
    """Where one tensor of a unit is: ``nbytes`` from ``offset`` of ``file`` on; in the slot from ``target`` on."""

    file: Path
    offset: int
    nbytes: int
    target: int


class CheckpointTier(Tier):
    """The safetensors files of a checkpoint, read where they lie and never written (writeback_every=inf).

    What is offloaded in spite of that, when the journal is consolidated, goes to a :class:`DiskTier` in ``folder`` and
    is read from there ever after. Reads go through the page cache: tensors lie in a file at any offset.
    """

    note = "the checkpoint is read through the page cache: its second reading may be faster than the disk"

    def __init__(self, sizes: list[int], extents: Sequence[Sequence[Extent]], folder: Path) -> None:
        self._sizes, self._extents, self._folder = sizes, extents, folder
        self._files = {extent.file: extent.file.open("rb") for unit in extents for extent in unit}
        self._changed: set[int] = set()
        self._overlay: DiskTier | None = None
        self._staging: Staging | None = None

    def fill(self, block: int, write: Callable[[Tensor], None]) -> None:
        """Nothing to do: the files hold the weights."""

    def upload(self, block: int, slot: Tensor, first: int = 0) -> None:
        if block in self._changed:
            assert self._overlay is not None
            self._overlay.upload(block, slot, first)
            return
        if slot.device.type == "cpu":
            self._read_part(block, memory_of(slot), first)
            return
        self._staging = self._staging or Staging(max(self._sizes), slot.device)
        self._staging.upload(slot, lambda memory, begin: self._read_part(block, memory, first + begin))

    def _read_part(self, block: int, memory: memoryview, first: int) -> None:
        """Fills ``memory`` with the block's bytes from ``first`` on, wherever its tensors lie."""
        for extent in self._extents[block]:
            begin, end = max(extent.target, first), min(extent.target + extent.nbytes, first + len(memory))
            if begin < end:
                offset = extent.offset + begin - extent.target
                _read_exactly(self._files[extent.file], memory[begin - first : end - first], offset)

    def offload(self, block: int, slot: Tensor, first: int = 0) -> None:
        if self._overlay is None:
            self._overlay = DiskTier(self._sizes, self._folder)
        self._overlay.offload(block, slot, first)
        self._changed.add(block)

    def peek(self, block: int, out: Tensor, first: int) -> None:
        if self._overlay is None or block not in self._changed:
            raise ValueError(f"block {block} must have been written to be read back, but is as its checkpoint has it")
        self._overlay.peek(block, out, first)

    def close(self) -> None:
        if self._staging is not None:
            self._staging.close()
        for file in self._files.values():
            file.close()
        if self._overlay is not None:
            self._overlay.close()


def _read_exactly(file: BinaryIO, memory: memoryview, offset: int) -> None:
    done = 0
    while done < len(memory):
        count = os.preadv(file.fileno(), [memory[done:]], offset + done)
        if count == 0:
            raise OSError(f"the checkpoint must hold {len(memory)} bytes from {offset} on, but {file.name} is shorter")
        done += count
