"""The pipeline runs a schedule: the model's forward calls ``compute`` block by block, transfers run around it."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import Tensor

from zobench.engine.transfers import schedule
from zobench.engine.transfers.lanes import Lanes
from zobench.engine.transfers.schedule import Event
from zobench.engine.weights.blocks import Pieces, Unit
from zobench.engine.weights.tiers import Tier, allocate
from zobench.engine.weights.wire import Wire
from zobench.machine.accelerator import Accelerator


class Pipeline:
    """Units in a tier, slots on the device, lanes between them.

    ``sizes``: bytes of each unit at rest, ``written`` how many of them, from its front on, are written back if it is
    dirty. ``new_slot(nbytes)`` allocates device memory. There is room for ``slots`` of the largest unit; smaller ones
    lie closer (:func:`zobench.engine.transfers.schedule.places`). With ``fresh``, of each unit the bytes (first, end)
    of each of its tensors, there is no such room: an upload allocates each tensor, and they are let go of after the
    offload (ZO2 section D.2). ``free`` gives back what was let go of, and waits for the lanes that use it: it is called
    where they are waited for anyway, in :meth:`drain` and :meth:`close`; what ``new_slot`` does before it allocates is
    its own.
    """

    def __init__(
        self, units: Sequence[Unit], sizes: Sequence[int], written: Sequence[int], tier: Tier, lanes: Lanes,
        new_slot: Callable[[int], Tensor], *, slots: int, overlap: bool,
        fresh: Sequence[Sequence[tuple[int, int]]] = (), free: Callable[[], None] | None = None,
    ) -> None:  # fmt: skip
        self._units, self.sizes, self.written, self.tier, self.lanes = units, sizes, written, tier, lanes
        self._new_slot, self._fresh, self._free = new_slot, fresh, free or (lambda: None)
        ring = schedule.places([1] * len(sizes) if fresh else sizes, slots)
        self._numbers = schedule.numbered(ring)
        self.depth = _depth(ring)
        """How many units that follow one another have places of their own."""
        used = list(dict.fromkeys(ring))
        memory = None if fresh else new_slot(max(last for _, last in used))
        self.slots: list[Tensor | Pieces | None] = [
            None if memory is None else memory[first:last] for first, last in used
        ]
        self._turns = {
            work: _turns(schedule.traversal(len(units), slots, overlap, work=work, ring=ring))
            for work in ("compute", "update")
        }
        self._fill_slots = schedule.prologue(len(units), slots, overlap, ring=ring)
        self._primed = self._broken = False
        self._whole: list[Tensor] = []
        self._tickets: dict[schedule.Key, Any] = {}
        self._position = 0
        self._transfers = True

    def compute(self, block: int, action: Callable[[], None], work: str = "compute") -> None:
        """Runs ``action`` while the block's slot is its unit's buffer, then issues the transfers that follow it."""
        if self._broken or self._position != block:
            raise RuntimeError("the engine must not be used after an error in a step, but was; build a new one")
        self._broken = True  # until this block is through
        if not self._primed:
            self._primed = True
            for op in self._fill_slots:
                self._issue(op)
        first, *transfers = self._turns[work][block]
        self._issue(first, action)
        for op in transfers:
            self._issue(op)
        self._position = (block + 1) % len(self._units)
        self._broken = False

    def drain(self) -> None:
        """Returns when all transfers are done and the memory that they were through with is given back."""
        self.lanes.drain()
        self._free()

    def read(self, block: int, buffer: Tensor) -> None:
        """Copies a block's weights at rest into ``buffer``; call between traversals, and on all ranks."""
        assert self._position == 0, "read in the middle of a traversal"
        self.drain()
        self.tier.read(block, buffer)

    def peek(self, block: int, out: Tensor, first: int = 0) -> None:
        """Copies bytes of a block at rest, from ``first`` on, into ``out`` on the CPU, after its last write-back.

        For another thread than the one that computes, which must not come to the block meanwhile.
        """
        ticket = self._tickets.get(("offload", block))
        if ticket is not None:
            self.lanes.wait(ticket)
        self.tier.peek(block, out, first)

    def alone(self, kind: str, blocks: Sequence[int]) -> None:
        """Runs the transfers of ``kind`` (upload, offload) of these blocks one after the other, and nothing else.

        Call between traversals. An offload takes what the block's place holds, so upload the same blocks, at most
        ``depth`` that follow one another, just before it. The slots are filled anew afterwards.
        """
        assert self._position == 0, "transfers alone in the middle of a traversal"
        self.drain()
        self._primed = False
        for block in blocks:
            self._units[block].dirty = kind == "offload"
            self._issue(schedule.Op(kind, block, self._numbers[block], kind))
        self.drain()

    @contextlib.contextmanager
    def without_transfers(self) -> Iterator[None]:
        """Inside, uploads and offloads copy and allocate nothing; afterwards the slots are filled anew."""
        self.drain()
        if self._fresh:
            self._lend()
        self._transfers = False
        try:
            yield
        finally:
            self.lanes.drain()
            self._transfers, self._primed = True, False
            if self._fresh:
                self._whole, self.slots = [], [None] * len(self.slots)
                self._free()

    def _lend(self) -> None:
        """Memory as large as the largest block for each slot, with weights in it, in place of the tensors' own."""
        self.slots = [None] * len(self.slots)
        self._free()
        self._whole = [self._new_slot(max(self.sizes)) for _ in self.slots]
        for slot, memory in enumerate(self._whole):
            self.tier.read(slot, memory[: self.sizes[slot]])
            self.slots[slot] = self._pieces(slot, memory)

    def close(self) -> None:
        """Waits for the transfers, then gives slots and tier back."""
        try:
            self.lanes.drain()
        finally:
            try:
                self.lanes.close()
            finally:
                self.slots, self._whole = [], []
                self._free()
                self.tier.close()

    def _issue(self, op: schedule.Op, action: Callable[[], None] | None = None) -> None:
        unit, slot = self._units[op.block], op.slot
        work = {"upload": self._upload, "offload": self._offload}.get(op.kind)
        body = (lambda: work(unit, op.block, slot)) if work else (lambda: self._work(unit, slot, action))
        after = [self._tickets[key] for key in op.after if key in self._tickets]
        self._tickets[op.key] = self.lanes.submit(op, body, after)

    def _upload(self, _: Unit, block: int, slot: int) -> None:
        if self._fresh:
            self.slots[slot] = self._pieces(block, self._whole[slot] if self._whole else None)
        buffer = self.slots[slot]
        assert buffer is not None
        for first, piece in _parts(buffer, self.sizes[block]) if self._transfers else ():
            self.tier.upload(block, piece, first)

    def _pieces(self, block: int, memory: Tensor | None) -> Tensor | Pieces:
        """Memory of a block's tensors: an allocation of each, or its part of ``memory``."""
        parts = [
            (first, self._new_slot(last - first) if memory is None else memory[first:last])
            for first, last in self._fresh[block]
        ]
        return Pieces(parts) if len(parts) > 1 else parts[0][1]

    def _work(self, unit: Unit, slot: int, action: Callable[[], None] | None) -> None:
        buffer = self.slots[slot]
        assert buffer is not None
        assert action is not None
        unit.buffer = buffer
        action()
        unit.buffer = None
        self._used(buffer)

    def _offload(self, unit: Unit, block: int, slot: int) -> None:
        buffer = self.slots[slot]
        assert buffer is not None
        for first, piece in _parts(buffer, self.written[block]) if unit.dirty and self._transfers else ():
            self.tier.offload(block, piece, first)
        unit.dirty = False
        self._used(buffer)
        if self._fresh:
            self.slots[slot] = None

    def _used(self, buffer: Tensor | Pieces) -> None:
        """Tells CUDA's allocator that this lane reads memory that another lane allocated and somebody will free."""
        for _, piece in _parts(buffer, max(self.sizes)) if self._fresh else ():
            if piece.is_cuda:
                piece.record_stream(Accelerator(piece.device).current_stream())


def _parts(buffer: Tensor | Pieces, nbytes: int) -> Sequence[tuple[int, Tensor]]:
    """(first byte, uint8 tensor) of each allocation in which the first ``nbytes`` of a unit lie."""
    if isinstance(buffer, Pieces):
        return [(first, piece) for first, piece in buffer.parts if first < nbytes]
    return [(0, buffer[:nbytes])]


def _turns(ops: Sequence[schedule.Op]) -> list[list[schedule.Op]]:
    """The operations of a traversal by block: its work first, and the transfers that follow it."""
    turns: list[list[schedule.Op]] = []
    for op in ops:
        if op.kind not in ("upload", "offload"):
            turns.append([])
        turns[-1].append(op)
    return turns


def _depth(ring: Sequence[schedule.SlotBytes]) -> int:
    """The most blocks of which any that follow one another lie apart."""
    for depth in range(len(ring), 1, -1):
        windows = (sorted(ring[first : first + depth]) for first in range(len(ring) - depth + 1))
        if all(a[1] <= b[0] for window in windows for a, b in itertools.pairwise(window)):
            return depth
    return 1


class WeightStore:
    """A model's weights between two turns, as they were last written: on the device for good, or in a tier.

    ``blocks``: the streamed units, in call order; ``residents``: all others; ``units``: both. ``pipeline`` moves the
    streamed units, None where there are none; they lie in their tier in the format of ``wire``, ``nbytes`` in all.
    """

    def __init__(
        self, blocks: Sequence[Unit], residents: Sequence[Unit], device: str, pipeline: Pipeline | None,
        wire: Wire | None, nbytes: int,
    ) -> None:  # fmt: skip
        self.blocks, self.residents, self.units = blocks, residents, [*blocks, *residents]
        self.pipeline, self.nbytes, self._device, self._wire = pipeline, nbytes, device, wire
        self.note = "" if pipeline is None else pipeline.tier.note
        """A caution for readers of a measurement about the tier, or ""."""
        self._number = {id(unit): number for number, unit in enumerate(blocks)}

    @property
    def streamed(self) -> Pipeline:
        """The pipeline that moves the streamed units, where there are any."""
        assert self.pipeline is not None, "a resident model has no transfers"
        return self.pipeline

    def number(self, unit: Unit) -> int:
        """A streamed unit's place in the pipeline and in its tier."""
        return self._number[id(unit)]

    def kept_bytes(self, unit: Unit) -> int:
        """Bytes at the front of the unit's weights that steps change."""
        return self.streamed.written[self.number(unit)] if unit.streamed else unit.kept

    def rest_bytes(self, unit: Unit) -> int:
        """Bytes of the unit's weights, those that pad it for several ranks included."""
        return self.streamed.sizes[self.number(unit)] if unit.streamed else unit.nbytes

    def run(self, unit: Unit, turn: Callable[[], None], work: str = "compute") -> None:
        """Runs a unit's turn while its weights are on the device; those of the streamed ones in their order."""
        if unit.streamed:
            self.streamed.compute(self.number(unit), turn, work)
        else:
            turn()

    def weights(self, unit: Unit) -> Tensor:
        """A unit's weights on the device in the model's dtype, between two passes: its own buffer or a copy."""
        if unit.buffer is not None:
            assert isinstance(unit.buffer, Tensor), "between two passes only resident units have memory"
            return unit.buffer
        at_rest = allocate(self.rest_bytes(unit), self._device)
        self.streamed.read(self.number(unit), at_rest)
        if self._wire is None:
            return at_rest
        master = allocate(unit.nbytes, self._device)
        self._wire.decode(unit, at_rest, master)
        return master

    def read(self, unit: Unit, out: Tensor, first: int = 0) -> None:
        """Copies bytes of a unit, from byte ``first`` on, into ``out`` (uint8, on the CPU, page-aligned)."""
        if not unit.streamed:
            assert unit.buffer is not None
            out.copy_(unit.buffer[first : first + out.numel()])
        else:
            self.streamed.peek(self.number(unit), out, first)

    def drain(self) -> None:
        """Returns when all transfers are done."""
        if self.pipeline is not None:
            self.pipeline.drain()

    def transfer_only(self, written: bool) -> None:
        """One traversal's transfers without any compute; with ``written`` the trained units are written back."""
        for unit in self.blocks:
            self.run(unit, functools.partial(setattr, unit, "dirty", written and unit.trained > 0))
        self.streamed.drain()

    def compute_only(self) -> contextlib.AbstractContextManager[None]:
        """Inside, steps run without any transfer, on whatever the slots hold: only their duration means something.
        Updates committed inside are lost, so close the engine afterwards."""
        return self.streamed.without_transfers()

    def record(self) -> None:
        """Starts an empty timeline of the lanes."""
        if self.pipeline is not None:
            self.pipeline.lanes.record()

    def timeline(self) -> list[Event]:
        """The events of the lanes since :meth:`record`; a resident model has none."""
        return [] if self.pipeline is None else self.pipeline.lanes.timeline()

    def close(self) -> None:
        """Ends the lanes and gives slots and tier back."""
        if self.pipeline is not None:
            self.pipeline.close()
