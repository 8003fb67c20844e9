"""Staging: pinned host memory between a device and what is read or written through the CPU, such as a file.

A copy of pageable memory goes through the driver's own pinned buffer and stops whoever issues it. Two pinned pieces
take turns instead: while one is copied, the other is read or written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from zobench.machine.accelerator import Accelerator
from zobench.machine.directio import CHUNK, aligned, memory_of

PIECE = CHUNK
"""Bytes of a piece: one request to a disk."""

Move = Callable[[memoryview, int], None]
"""Reads or writes so many bytes of a block, from the given one on."""


class Staging:
    """Two pinned pieces for one lane, one thread at a time: each half of the ``largest`` block, at most ``PIECE``.

    Raises ``MemoryError`` where the device refuses to pin them.
    """

    def __init__(self, largest: int, device: str | torch.device) -> None:
        self._device = Accelerator(device)
        with torch.inference_mode(False):  # an inference tensor could not be written outside of that mode
            self._pieces = [aligned(min(largest // 2, PIECE)) for _ in range(2)]
        self._copied: list[torch.Event | None] = [None, None]
        self._pinned = list[Tensor]()
        for piece in self._pieces:
            self._device.register(piece)
            self._pinned.append(piece)

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
