"""The order of uploads, computes and offloads of one step as data: ZO2's algorithm 2, without running anything.

Every dependency is written as the (kind, block) of an earlier operation and means its most recent run. So the schedule
of a step is the same list each time and steps follow each other without a gap: the last operations of one traversal
already upload the first blocks of the next.
"""

from __future__ import annotations

from dataclasses import dataclass

Key = tuple[str, int]
"""(kind, block): the name of an operation."""


@dataclass(frozen=True, slots=True)
class Op:
    """One operation of ``kind`` upload, compute, update or offload; waits for the latest of each key in ``after``."""

    kind: str
    block: int
    slot: int
    lane: str
    after: tuple[Key, ...] = ()

    @property
    def key(self) -> Key:
        """The name other operations wait for."""
        return (self.kind, self.block)


def prologue(n_blocks: int, n_slots: int, overlap: bool = True) -> tuple[Op, ...]:
    """The uploads that fill the slots before the first traversal."""
    lane = "upload" if overlap else "compute"
    return tuple(Op("upload", block, block, lane) for block in range(min(n_blocks, n_slots)))


def traversal(n_blocks: int, n_slots: int, overlap: bool = True, work: str = "compute") -> tuple[Op, ...]:
    """One pass over all blocks, in issue order: ``work`` on block i, its offload, then the upload that takes its slot.

    Block i uses slot i mod n_slots. The upload takes the slot's next block, of the next traversal where this one has no
    more; it waits for the offload that empties the slot and for the last write of the block it reads.
    ``overlap=False`` puts everything on one lane (ZO2 table 3, "no scheduler overlap").
    """
    slots = min(n_blocks, n_slots)
    upload, offload = ("upload", "offload") if overlap else ("compute", "compute")
    ops = []
    for block in range(n_blocks):
        slot = block % slots
        following = block + slots if block + slots < n_blocks else slot
        ops.append(Op(work, block, slot, "compute", (("upload", block),)))
        ops.append(Op("offload", block, slot, offload, ((work, block),)))
        ops.append(Op("upload", following, slot, upload, tuple({("offload", block): 0, ("offload", following): 0})))
    return tuple(ops)


def step(n_blocks: int, n_slots: int, overlap: bool = True, fused_update: bool = True) -> tuple[Op, ...]:
    """One training step: the dual forward, and without ``fused_update`` a second round of transfers for the update
    (ZO2 section D.3, figure 6)."""
    probe = traversal(n_blocks, n_slots, overlap)
    return probe if fused_update else probe + traversal(n_blocks, n_slots, overlap, work="update")
